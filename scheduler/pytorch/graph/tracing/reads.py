"""See below the operations of a model which tensors they read, so that none is overlooked.

What a recording does not see, it would make a constant, and the gradient through it would be lost
without a word. Each operation that torch executes is therefore checked: it may read what the
recorded call was given, what this call made, parameters and buffers, and constants, but nothing
that another call made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from scheduler.common.errors import UnsupportedModel
from scheduler.pytorch.observe.dispatch import OperationMode, is_random, tensors_of

Storage = int
"""Where a storage lies: equal for tensors that share one."""


def storage_of(tensor: torch.Tensor) -> Storage | None:
    """Where a tensor lies; None for one without a storage of its own."""
    with torch._C.DisableTorchFunction():  # nobody is to record this
        try:
            return int(tensor.untyped_storage()._cdata)
        except NotImplementedError:  # sparse, or inside a transform such as vmap
            return None


def _reference(tensor: torch.Tensor) -> StorageWeakRef:
    with torch._C.DisableTorchFunction():
        return StorageWeakRef(tensor.untyped_storage())


class Draws(OperationMode):
    """Sees whether a random number is drawn."""

    seen = False

    def _operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.seen |= is_random(func)
        return func(*args, **kwargs)


class ReadGuard(OperationMode):
    """Checks what is read, one recorded call at a time.

    Attributes
    ----------
    drew
        Has the latest call drawn random numbers?
    shaped
        Has it made a tensor whose shape depends on values?
    """

    def __init__(self, own: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.drew = False
        self.shaped = False
        self._own = {storage_of(tensor) for tensor in own}  # parameters and buffers
        self._may_own = False
        self._latest: dict[Storage, StorageWeakRef] = {}
        self._made: dict[Storage, StorageWeakRef] = {}
        self._given: set[Storage | None] = set()
        self._fresh: dict[Storage, StorageWeakRef] = {}
        self._said = "the model's code"

    @contextmanager
    def call(self, given: Iterable[torch.Tensor], said: str, own: bool = False) -> Iterator[None]:
        """Watch one call that is given these tensors, and parameters and buffers if `own`."""
        before = self._given, self._fresh, self._said, self._may_own
        self._given, self._fresh = {storage_of(t) for t in given}, {}
        self._said, self._may_own = said, own
        self.drew = self.shaped = False
        try:
            yield
        finally:
            self._latest = self._fresh
            self._given, self._fresh, self._said, self._may_own = before

    def record(self, results: Iterable[torch.Tensor] = ()) -> None:
        """What the latest call made, and `results`, must be handed over to be read."""
        self._made |= self._latest
        for tensor in results:
            if (where := storage_of(tensor)) is not None:
                self._made[where] = _reference(tensor)

    def is_made(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in what a recorded call made."""
        where = storage_of(tensor)
        return where is not None and self._live(where)

    def _live(self, where: Storage) -> bool:
        found = self._made.get(where)
        return found is not None and not found.expired()

    def _operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for tensor in tensors_of((args, kwargs)):
            where = storage_of(tensor)
            if where is None or where in self._given or where in self._fresh:
                continue
            if self._live(where) or (where in self._own and not self._may_own):
                raise UnsupportedModel(
                    f"{self._said} reads a tensor that it is not given as an argument "
                    f"({func}), so that a plan could not keep it or make it again; hand it over "
                    "as an argument, or name a block that contains both in leaves"
                )
        result = func(*args, **kwargs)
        self.drew |= is_random(func)
        self.shaped |= torch.Tag.dynamic_output_shape in func.tags
        for tensor in tensors_of(result):
            where = storage_of(tensor)
            if where is not None and where not in self._given:
                self._fresh[where] = _reference(tensor)
        return result
