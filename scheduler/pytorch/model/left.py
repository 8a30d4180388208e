"""What a forward leaves where its module has it, for code outside of the module to read."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

import torch

from scheduler.export.standalone.state import Snapshot
from scheduler.pytorch.model.call import Packing
from scheduler.pytorch.observe.dispatch import tensors_of


class Left:
    """What lies in `cell`, a dict under a `key` or one of the last of a list, and may be read.

    An auxiliary loss on a gate, for instance. The tensors are not held.
    """

    def __init__(self, cell: Any, key: Any) -> None:
        self._cell, self._key = cell, key
        self.packing = Packing(cell[key], None)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors there now."""
        return tensors_of(self._cell[self._key])

    def put(self, made: Sequence[torch.Tensor]) -> None:
        """Put others there, as a forward does."""
        value = self.packing.pack(None, (), made)
        if isinstance(self._cell, dict):
            self._cell[self._key] = value
        else:
            self._cell.append(value)


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
        return
    cell = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    for key, item in cell.items():
        if item is not saved.get(key):
            yield Left(cell, key)
