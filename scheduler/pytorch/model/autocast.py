"""Autocast around a step: on in the forward, off in the backward, its cache out of the way.

Autocast keeps the weights that it has cast until its outermost context ends. In a checkpointed
segment that would hold what the plan drops, so segments cast without the cache: a weight that is
used once a step is cast no more often.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from scheduler.pytorch.model.replace import replaced

_OFF = nullcontext()


def without_cast_cache(device: str) -> Any:
    """A context in which autocast, if it is on, does not keep the weights it casts."""
    if not torch.is_autocast_cache_enabled() or not _is_on(device):
        return _OFF
    return _cache_switched_off()


@contextmanager
def _cache_switched_off() -> Iterator[None]:
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(True)


class Ambient:
    """The autocast that is on where this is made; `dtype` is None where it is off."""

    def __init__(self, device: torch.device) -> None:
        self.device = device.type
        self.dtype = torch.get_autocast_dtype(self.device) if _is_on(self.device) else None
        self._cache = torch.is_autocast_cache_enabled()

    @property
    def keeps_casts(self) -> bool:
        """Whether it casts a weight once for all its uses."""
        return self.dtype is not None and self._cache

    def around(self, function: Callable[..., Any], *, cache: bool = False) -> Callable[..., Any]:
        """The function, run under it; with `cache` where it keeps casts to its end."""
        if self.dtype is None:
            return function
        cache = cache and self._cache

        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                with torch.autocast(self.device, self.dtype, cache_enabled=cache):
                    return function(*args, **kwargs)
            finally:
                torch.clear_autocast_cache()  # the outermost context clears it: not this one

        return run

    def inside(self, model: nn.Module, *, cache: bool) -> AbstractContextManager[None]:
        """Let a model's forward run under it."""
        if self.dtype is None:
            return _OFF
        return replaced(model, self.around(model.forward, cache=cache))

    def cached_bytes(self, blocks: Sequence[nn.Module], *, all_of_first: bool) -> int:
        """At most this much its cache holds of kept blocks to its end that autograd does not save.

        Biases; and what multiplies an input without gradient, which only the first block has.
        """
        if self.dtype is None or not self._cache:
            return 0
        held = {
            id(parameter): parameter.numel() * self.dtype.itemsize
            for i, block in enumerate(blocks)
            for parameter in block.parameters()
            if parameter.requires_grad and parameter.dtype == torch.float32
            if parameter.dim() < 2 or (all_of_first and i == 0)
        }
        return sum(held.values())


@contextmanager
def lifted(device: torch.device) -> Iterator[Ambient]:
    """Inside, autocast is off, as it should be around a backward; gives what was on."""
    ambient = Ambient(device)
    with _OFF if ambient.dtype is None else torch.autocast(ambient.device, enabled=False):
        yield ambient


def _is_on(device: str) -> bool:
    try:
        return bool(torch.is_autocast_enabled(device))
    except RuntimeError:  # a device that has no autocast
        return False
