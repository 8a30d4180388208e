"""Count the bytes of every tensor that operations make, from the dispatcher.

Works on real and on fake tensors, forward and backward. A storage is counted once however many
tensors view it, from the operation that makes it until it is freed. What exists before (parameters,
buffers, the caller's tensors) is not counted. Scratch memory inside a kernel is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from scheduler.pytorch.observe.dispatch import OperationMode, tensors_of

Observer = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]
"""Takes an operation, its arguments and its result."""


class MemoryTracker(OperationMode):
    """A dispatch mode that knows the live bytes, in total and by the tag they were made under.

    `live_bytes` and `peak_bytes` are of everything made under the mode; the peak since
    `reset_peak`. The observer is called after each operation.
    """

    def __init__(self, observer: Observer | None = None) -> None:
        super().__init__()
        self.live_bytes = 0
        self.peak_bytes = 0
        self._observer = observer
        self._tag = ""
        self._live: dict[str, int] = {}
        self._peak: dict[str, int] = {}
        # Storages by identity; the weak reference tells when one is freed.
        self._known: dict[int, tuple[weakref.ref[Any], int, str]] = {}

    def _operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for tensor in tensors_of((args, kwargs)):
            self._remember(tensor, 0)  # not seen before: it is not ours
        result = func(*args, **kwargs)
        for tensor in tensors_of(result):
            self._remember(tensor, storage_bytes(tensor))
        if self._observer is not None:
            self._observer(func, args, kwargs, result)
        return result

    @contextmanager
    def tag(self, name: str) -> Iterator[None]:
        """Book what is made inside under `name`."""
        before, self._tag = self._tag, name
        try:
            yield
        finally:
            self._tag = before

    def live(self, tag: str) -> int:
        """Live bytes that were made under `tag`."""
        return self._live.get(tag, 0)

    def peak(self, tag: str) -> int:
        """Largest value of `live(tag)` since `reset_peak`."""
        return self._peak.get(tag, 0)

    def tag_of(self, tensor: torch.Tensor) -> str:
        """What a tensor that is counted was made under; of others ""."""
        known = self._known.get(id(storage := tensor.untyped_storage()))
        return known[2] if known is not None and known[0]() is storage and known[1] else ""

    def reset_peak(self) -> None:
        """Start measuring peaks from what is live now."""
        self.peak_bytes = self.live_bytes
        self._peak = dict(self._live)

    def count(self, tensor: torch.Tensor) -> None:
        """Count a tensor that was made outside, such as a model's input."""
        self.disown(tensor)
        # Or `_remember` would take it for one that it has seen.
        self._known.pop(id(tensor.untyped_storage()), None)
        self._remember(tensor, storage_bytes(tensor))

    def disown(self, tensor: torch.Tensor) -> int:
        """Stop counting a tensor; the bytes it was counted with."""
        storage = tensor.untyped_storage()
        known = self._known.get(id(storage))
        if known is None or known[0]() is not storage:
            return 0
        reference, size, tag = known
        self._known[id(storage)] = (reference, 0, tag)
        self._book(tag, -size)
        return size

    def own_again(self, storage: torch.UntypedStorage) -> tuple[int, str]:
        """Count a storage whose tensor was disowned; its bytes, and what it was made under."""
        known = self._known.get(id(storage))
        if known is None or known[0]() is not storage or known[1]:
            return 0, ""
        reference, _, tag = known
        size = int(storage.nbytes())
        self._known[id(storage)] = reference, size, tag
        self._book(tag, size)
        return size, tag

    def _remember(self, tensor: torch.Tensor, size: int) -> None:
        # torch keeps the Python object of a storage for as long as the storage lives, so that it
        # tells one from another; its id is given out again afterwards.
        storage = tensor.untyped_storage()
        key = id(storage)
        known = self._known.get(key)
        if known is not None and known[0]() is storage:
            return
        tag = self._tag

        def freed(reference: weakref.ref[Any]) -> None:
            entry = self._known.get(key)
            if entry is not None and entry[0] is reference:
                del self._known[key]
                self._book(entry[2], -entry[1])

        self._known[key] = (weakref.ref(storage, freed), size, tag)
        self._book(tag, size)

    def _book(self, tag: str, size: int) -> None:
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        self._live[tag] = self._live.get(tag, 0) + size
        self._peak[tag] = max(self._peak.get(tag, 0), self._live[tag])


def storage_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the whole storage behind a tensor: what it keeps alive.

    On CUDA in the blocks of 512 bytes that torch's allocator hands out.
    """
    size = int(tensor.untyped_storage().nbytes())
    return -(-size // 512) * 512 if tensor.device.type == "cuda" else size


def unique_bytes(value: Any) -> int:
    """Bytes of the distinct storages behind all tensors in a nested structure."""
    return sum({id(t.untyped_storage()): storage_bytes(t) for t in tensors_of(value)}.values())
