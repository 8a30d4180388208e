"""The calls of blocks: which argument is the activation, which is not."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from scheduler.common.errors import UnsupportedModel
from scheduler.common.text import ordinal
from scheduler.pytorch.model.replace import check_unplanned
from scheduler.pytorch.model.settings import check_own_checkpointing
from scheduler.pytorch.observe.dispatch import tensors_of


@dataclass(frozen=True)
class Call:
    """The arguments of a block's call; `place` of the activation: a position or a keyword."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    place: int | str

    @classmethod
    def of(cls, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Take apart a call: the activation is the first argument that is a tensor.

        Positional arguments come first; a keyword called ``hidden_states`` before other keywords.
        """
        for i, value in enumerate(args):
            if isinstance(value, torch.Tensor):
                return cls(args, kwargs, i)
        for key in sorted(kwargs, key=lambda key: key != "hidden_states"):
            if isinstance(kwargs[key], torch.Tensor):
                return cls(args, kwargs, key)
        raise UnsupportedModel(f"block {name!r} was called without a tensor")

    @property
    def activation(self) -> torch.Tensor:
        """The tensor that the layer before handed over."""
        value = self.args[self.place] if isinstance(self.place, int) else self.kwargs[self.place]
        assert isinstance(value, torch.Tensor)
        return value

    def run(self, forward: Callable[..., Any], activation: torch.Tensor) -> Any:
        """Call `forward` with another activation and everything else as it was.

        What its output only passes on of the other arguments is in it as `PassedOn`.
        """
        args, kwargs = self.arguments(activation)
        return self.mark(forward(*args, **kwargs))

    def mark(self, output: Any) -> Any:
        """Put `PassedOn` in the place of tensors that are arguments, after a sequence's first."""
        if not isinstance(output, (tuple, list)) or not any(map(torch.is_tensor, output[1:])):
            return output
        others = self.others
        places = {id(leaf): i for i, leaf in enumerate(others) if isinstance(leaf, torch.Tensor)}
        rest = [PassedOn(places[id(v)], v) if id(v) in places else v for v in output[1:]]
        return _pack(type(output), [output[0], *rest])

    def arguments(self, activation: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with something else as the activation."""
        if isinstance(self.place, int):
            args = (*self.args[: self.place], activation, *self.args[self.place + 1 :])
            return args, self.kwargs
        return self.args, {**self.kwargs, self.place: activation}

    @property
    def others(self) -> list[Any]:
        """Every leaf of the other arguments, in a fixed order."""
        return tree_leaves(self._rest())

    def with_others(self, instead: Mapping[int, Any]) -> Call:
        """The same call with something else at places among `others`."""
        leaves, form = tree_flatten(self._rest())
        rest = tree_unflatten([instead.get(i, leaf) for i, leaf in enumerate(leaves)], form)
        activation = self.activation
        args = tuple(rest.get(i, activation) for i in range(len(self.args)))
        return Call(args, {key: rest.get(key, activation) for key in self.kwargs}, self.place)

    def _rest(self) -> dict[Any, Any]:
        rest: dict[Any, Any] = {**dict(enumerate(self.args)), **self.kwargs}
        del rest[self.place]
        return rest

    def without_activation(self) -> Call:
        """The same call without its activation, so that holding it holds nothing large."""
        return Call(*self.arguments(None), self.place)


class PassedOn:
    """In a block's output: an argument of its call, beside the activation, that it passes on.

    Holds the tensor weakly, so that what knows how a block packs its output holds nothing else.
    """

    def __init__(self, place: int, tensor: torch.Tensor) -> None:
        self.place = place
        self._tensor = weakref.ref(tensor)

    def among(self, others: Sequence[Any] | None) -> Any:
        """The argument: of the call with these `others`, or the one that was given."""
        return self._tensor() if others is None else others[self.place]


def _pack(kind: Any, values: list[Any]) -> Any:
    return kind(*values) if hasattr(kind, "_fields") else kind(values)


def split_output(name: str, output: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
    """The activation in a block's output, and a function that puts another in its place.

    That function is called with the other activation, and perhaps with the other arguments of the
    call that the output is for, of which the block may pass some on.

    Raises `UnsupportedModel` where the output does not hold one tensor: a plan moves one
    activation.
    """
    if isinstance(output, torch.Tensor):
        return output, lambda tensor, others=None: tensor
    tensors = tensors_of(output)
    if isinstance(output, (tuple, list)) and output and output[0] is not None and len(tensors) == 1:
        kind, rest = type(output), list(output[1:])

        def rebuild(tensor: torch.Tensor, others: Sequence[Any] | None = None) -> Any:
            again = [v.among(others) if isinstance(v, PassedOn) else v for v in rest]
            return _pack(kind, [tensor, *again])

        if isinstance(output[0], torch.Tensor):
            return output[0], rebuild
    raise UnsupportedModel(
        f"block {name!r} returns {type(output).__name__} with {len(tensors)} tensors; a block must "
        "hand over exactly one tensor (switch off outputs such as attentions or a cache; where "
        "only the first block makes more of them, name the blocks after it)"
    )


def check_unwrapped(model: nn.Module, names: Sequence[str]) -> None:
    """Raise `UnsupportedModel` where something checkpoints the blocks already."""
    check_own_checkpointing(model)
    for position, name in enumerate(names, 1):
        check_unplanned(model.get_submodule(name), f"the {ordinal(position)} block, {name!r}")
