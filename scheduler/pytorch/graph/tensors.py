"""The tensors of a step that a plan moves: outputs of layers, and gradients."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from scheduler.common.errors import UnsupportedModel

Key = int | str
"""A layer by its index, the model's input tensor k as -1 - k, or a parameter by its name."""


class Table:
    """The live copies of the layers' outputs, and the model's inputs; `names` for messages."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._names = names
        self._values: dict[Key, torch.Tensor] = {}
        self._versions: dict[Key, int] = {}

    def put(self, key: Key, tensor: torch.Tensor) -> None:
        """Hold a tensor; it replaces an earlier copy."""
        self._values[key] = tensor
        self._versions[key] = tensor._version

    def drop(self, key: Key) -> None:
        """Let go of a copy."""
        del self._values[key]

    def clear(self) -> None:
        """Let go of everything."""
        self._values.clear()

    def get(self, key: Key) -> torch.Tensor:
        """The live copy.

        Raises
        ------
        UnsupportedModel
            There is none, or it was changed in place since it was made.
        """
        tensor = self._values.get(key)
        if tensor is None:
            raise UnsupportedModel(
                f"{self._said(key)} is read after the plan has let it go: its readers save more "
                "than when the model was traced; trace it again"
            )
        if tensor._version != self._versions[key]:
            raise UnsupportedModel(
                f"{self._said(key)} was changed in place before its last use; use an operation "
                "that makes a new tensor"
            )
        return tensor

    def _said(self, key: Key) -> str:
        if isinstance(key, int) and 0 <= key < len(self._names):
            return f"the output of {self._names[key]!r}"
        return "an input of the model"

    def holds(self, storage: Any) -> bool:
        """Whether a live copy lies in this storage."""
        return any(value.untyped_storage() is storage for value in self._values.values())


class Gradients:
    """The gradients that are live, by key."""

    def __init__(self) -> None:
        self._of: dict[Key, torch.Tensor] = {}
        self._foreign: list[weakref.ref[Any]] = []  # storages that others may hold

    def items(self) -> list[tuple[Key, torch.Tensor]]:
        """The live gradients with their keys."""
        return list(self._of.items())

    def receive(self, key: Key, gradient: torch.Tensor) -> None:
        """Take a gradient that autograd handed over; it is never changed in place."""
        self._of[key] = gradient
        self._foreign.append(weakref.ref(gradient.untyped_storage()))

    def take(self, key: Key) -> torch.Tensor | None:
        """A gradient, which is let go of."""
        return self._of.pop(key, None)

    def add(self, key: Key, new: torch.Tensor, table: Table) -> None:
        """Add to a gradient, in place where nobody else can see it.

        A view of something larger (of the gradient of a concatenation) is copied first, or it
        would keep all of it alive.
        """
        old = self._of.pop(key, None)
        if old is None:
            larger = new.untyped_storage().nbytes() > new.numel() * new.element_size()
            self._of[key] = new.clone() if larger else new
        elif self._owned(old, table):
            self._of[key] = old.add_(new)
        else:
            self._of[key] = old + new

    def _owned(self, tensor: torch.Tensor, table: Table) -> bool:
        storage = tensor.untyped_storage()
        others: list[Any] = [reference() for reference in self._foreign]
        others += [gradient.untyped_storage() for gradient in self._of.values()]
        return (
            all(storage is not other for other in others)
            and not table.holds(storage)
            and _dense(tensor)
        )


def _dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor has one element in each place: an expanded one has not."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
