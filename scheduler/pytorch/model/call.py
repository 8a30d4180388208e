"""The calls of blocks: which argument is the activation, which is not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from scheduler.common.errors import UnsupportedModel
from scheduler.common.text import ordinal
from scheduler.export.standalone.state import Snapshot
from scheduler.pytorch.model.replace import check_unplanned
from scheduler.pytorch.model.settings import check_own_checkpointing
from scheduler.pytorch.observe.dispatch import tensors_of


def before(block: str) -> str:
    """Name of the layer that a model runs between a block and the one before it."""
    return f"before {block}"


class NoChain(UnsupportedModel):
    """The model's blocks do not follow each other as those of a chain."""


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
        """Put `PassedOn` in the place of tensors that are arguments, after the first tensor."""
        if isinstance(output, torch.Tensor):
            return output
        others = self.others
        places = {id(leaf): i for i, leaf in enumerate(others) if isinstance(leaf, torch.Tensor)}
        leaves, form = tree_flatten(output)
        first = next((i for i, v in enumerate(leaves) if isinstance(v, torch.Tensor)), 0) + 1
        rest = [PassedOn(places[id(v)]) if id(v) in places else v for v in leaves[first:]]
        return tree_unflatten([*leaves[:first], *rest], form)

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

    `place` among the call's `others`.
    """

    def __init__(self, place: int) -> None:
        self.place = place


@dataclass(frozen=True)
class Extra:
    """In a block's output: the form of a tensor beside the activation that the block makes."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    nbytes: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Extra:
        """The form of a tensor."""
        return cls(tensor.shape, tensor.dtype, tensor.device, tensor.numel() * tensor.itemsize)

    def stand_in(self) -> torch.Tensor:
        """A tensor of this form that takes the memory of one number."""
        return torch.zeros((), dtype=self.dtype, device=self.device).expand(self.shape)


class Packing:
    """How a block packs its output: the activation, what it passes on, and what it makes beside.

    `extras` are the last, in their order.
    """

    def __init__(self, output: Any, activation: torch.Tensor | None) -> None:
        leaves, self._form = tree_flatten(output)
        self._leaves = [
            v if not isinstance(v, torch.Tensor) else _AGAIN if v is activation else Extra.of(v)
            for v in leaves
        ]
        self.extras = [leaf for leaf in self._leaves if isinstance(leaf, Extra)]

    def pack(
        self,
        activation: torch.Tensor | None,
        others: Sequence[Any],
        extras: Sequence[torch.Tensor],
    ) -> Any:
        """An output with this activation and these extras, for a call with these `others`."""
        left = iter(extras)
        leaves = []
        for leaf in self._leaves:
            if leaf is _AGAIN:
                leaf = activation
            elif isinstance(leaf, PassedOn):
                leaf = others[leaf.place]
            elif isinstance(leaf, Extra):
                leaf = next(left)
            leaves.append(leaf)
        return tree_unflatten(leaves, self._form)


_AGAIN = object()
"""In a packing: the activation."""


class Left:
    """What lies in `cell`, a dict under a `key` or one of the last of a list, and may be read.

    An auxiliary loss on a gate, for instance. The tensors are not held.
    """

    def __init__(self, cell: Any, key: Any) -> None:
        self._cell, self._key = cell, key
        self.packing = Packing(cell[key], None)
        self.is_last = not isinstance(cell, dict)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors there now."""
        try:
            return tensors_of(self._cell[self._key])
        except LookupError:  # not each forward leaves it
            return []

    def put(self, made: Sequence[torch.Tensor]) -> None:
        """Put others there, as a forward does."""
        value = self.packing.pack(None, (), made)
        if self.is_last:
            self._cell.append(value)
        else:
            self._cell[self._key] = value


def left_since(before: Snapshot, activation: torch.Tensor) -> list[Left]:
    """What lies where none of its tensors lay before; what is known as the activation left out."""
    known = {id(tensor) for tensor, _, _ in before.tensors}
    return [
        left
        for kind, value, saved in before.cells
        if not kind.same(value, saved)
        for left in _in_cell(value, saved)
        if (tensors := left.tensors)
        and not any(id(tensor) in known for tensor in tensors)
        and all(t.untyped_storage() is not activation.untyped_storage() for t in tensors)
    ]


def _in_cell(value: Any, saved: Any) -> Iterator[Left]:
    if isinstance(value, (list, deque)):
        old = {id(item) for item in saved}
        new = len(list(takewhile(lambda item: id(item) not in old, reversed(value))))
        yield from (Left(value, place) for place in range(-new, 0))
    elif isinstance(saved, dict):
        cell = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        yield from (Left(cell, key) for key, item in cell.items() if item is not saved.get(key))


def activation_of(name: str, output: Any) -> torch.Tensor:
    """The activation that a block hands over: its output, or the first tensor in that.

    Raises `UnsupportedModel` where there is none.
    """
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, (tuple, list)) and output and isinstance(output[0], torch.Tensor):
        return output[0]
    for leaf in tree_leaves(output):
        if isinstance(leaf, torch.Tensor):
            return leaf
    raise UnsupportedModel(
        f"block {name!r} returns {type(output).__name__} without a tensor; a block must hand over "
        "the activation that the next one reads"
    )


def extras_of(output: Any) -> list[torch.Tensor]:
    """The tensors in a marked output beside the activation."""
    first, *rest = tensors_of(output)
    return [tensor for tensor in rest if tensor is not first]


def check_unwrapped(model: nn.Module, names: Sequence[str]) -> None:
    """Raise `UnsupportedModel` where something checkpoints the blocks already."""
    check_own_checkpointing(model)
    check_unplanned(model, repr(type(model).__name__))
    for position, name in enumerate(names, 1):
        check_unplanned(model.get_submodule(name), f"the {ordinal(position)} block, {name!r}")
