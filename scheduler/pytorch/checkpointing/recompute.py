"""Let a recomputation repeat its forward: the same random numbers, each batch counted once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from scheduler.pytorch.model.rng import GENERATORS, Generator


class Recomputation:
    """A context for each repetition of a forward; made when that begins.

    A batch norm's running statistics count each batch once.

    Parameters
    ----------
    norms
        The batch norms that run again.
    counting
        Let them count, and take it back: where each operation is told by which call of it this is,
        none may be missing.
    generators
        Those to be replayed. Inside a checkpoint torch replays its own.
    """

    def __init__(
        self,
        norms: list[_BatchNorm],
        *,
        counting: bool = False,
        generators: Sequence[Generator] = GENERATORS,
    ) -> None:
        self._norms = norms
        self._counting = counting
        # Those to be put back: all, until the forward has shown which of them it draws from.
        self._before = [(generator, generator.state()) for generator in generators]
        self._now: list[Any] = []
        self._statistics: list[tuple[float | None, Any]] = []
        self._counted: list[int] = []

    def forward(self) -> _Forward:
        """A context for the forward itself."""
        return _Forward(self)

    def forward_is_over(self) -> None:
        """Forget the generators that have not moved."""
        self._before = [each for each in self._before if each[0].moved_from(each[1])]

    def __enter__(self) -> None:
        self._now = [generator.state() for generator, _ in self._before]
        for generator, state in self._before:
            generator.put(state)
        self._statistics = [(norm.momentum, norm.num_batches_tracked) for norm in self._norms]
        for norm in self._norms:
            # Not track_running_stats=False: autograd would save fewer tensors than before.
            norm.momentum = 0.0
            if not self._counting:
                norm.num_batches_tracked = None
        self._counted = [_version(count) for _, count in self._statistics]

    def __exit__(self, *error: object) -> None:
        for (generator, _), state in zip(self._before, self._now, strict=True):
            generator.put(state)
        for norm, (momentum, count) in zip(self._norms, self._statistics, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count
        for (_, count), version in zip(self._statistics, self._counted, strict=True):
            # torch stops early, and a norm may run twice: not all have counted once.
            if more := _version(count) - version:
                with torch.no_grad():
                    count.sub_(more)


def _version(count: torch.Tensor | None) -> int:
    return 0 if count is None else count._version


class _Forward:
    def __init__(self, recomputation: Recomputation) -> None:
        self._recomputation = recomputation

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self._recomputation.forward_is_over()
