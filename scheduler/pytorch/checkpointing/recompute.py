"""Let a recomputation repeat its forward: the same random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduler.pytorch.model.rng import GENERATORS, Generator


class Recomputation:
    """A context for each repetition of a forward; made when that begins.

    Inside a checkpoint torch replays its own generators: `generators` are the others.
    """

    def __init__(self, generators: Sequence[Generator] = GENERATORS) -> None:
        # Those to be put back: all, until the forward has shown which of them it draws from.
        self._before = [(generator, generator.state()) for generator in generators]
        self._now: list[Any] = []

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

    def __exit__(self, *error: object) -> None:
        for (generator, _), state in zip(self._before, self._now, strict=True):
            generator.put(state)


class _Forward:
    def __init__(self, recomputation: Recomputation) -> None:
        self._recomputation = recomputation

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self._recomputation.forward_is_over()
