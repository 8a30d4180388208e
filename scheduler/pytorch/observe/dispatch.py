"""Operations as torch's dispatcher runs them: seen one by one, and what each says of itself."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class OperationMode(TorchDispatchMode):
    """A dispatch mode that is handed each operation with all of its arguments."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return self._operation(func, args, kwargs or {})

    def _operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation, which a subclass looks at; its result."""
        raise NotImplementedError


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors in nested containers."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def is_random(operation: Any) -> bool:
    """Whether an operation draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(operation, "tags", ())


def reads_values(operation: Any) -> bool:
    """Whether what an operation gives, or how much, is decided by values of tensors."""
    tags = getattr(operation, "tags", ())
    return torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags


def is_mutable(operation: Any, *, unknown: bool = False) -> bool:
    """Whether an operation writes to its arguments; `unknown` for one that does not say."""
    schema = getattr(operation, "_schema", None)
    return unknown if schema is None else bool(schema.is_mutable)


_STATISTICS = ("running_mean", "running_var")
"""Arguments that a norm writes to in training, though its schema does not say so."""


def statistics_written(operation: Any, args: tuple[Any, ...]) -> list[Any]:
    """The running statistics that an operation writes to and does not say so."""
    schema = getattr(operation, "_schema", None)
    names = [] if schema is None else [argument.name for argument in schema.arguments]
    if not names or "running_mean" not in names:
        return []
    given = dict(zip(names, args, strict=False))
    if given.get("training", given.get("use_input_stats", True)) is False:
        return []
    return [given.get(name) for name in _STATISTICS]


def written(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that an operation writes to: tensors, or lists of them."""
    if not is_mutable(operation):
        return []
    return [
        args[i] if i < len(args) else kwargs.get(argument.name)
        for i, argument in enumerate(operation._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
