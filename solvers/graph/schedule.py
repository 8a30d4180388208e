"""The schedules of graphs: what runs in which order, repeats included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from solvers.schedule import Backward, Compute, Forward

__all__ = ["Actions", "GraphSchedule", "LayerAction", "Nodes"]

LayerAction: TypeAlias = Forward | Backward


@dataclass(frozen=True, slots=True)
class Nodes:
    """The schedule of a compute graph: `steps` are its nodes in the order of computation."""

    steps: tuple[int, ...]

    def actions(self, length: int) -> Iterator[Compute]:
        """Every computation in order."""
        return map(Compute, self.steps)

    def counts(self, length: int) -> list[int]:
        """How often each node is computed."""
        runs = Counter(self.steps)
        return [runs[i] for i in range(length)]

    def options(self) -> dict[int, str]:
        """None, since options belong to chains."""
        return {}

    @property
    def order(self) -> tuple[object, ...]:
        """The nodes in the order of their first computation."""
        return tuple(dict.fromkeys(self.steps))

    def has_own_order(self, length: int) -> bool:
        """Whether nodes are first computed in another order than that of the graph."""
        return self.order != tuple(range(length))


@dataclass(frozen=True, slots=True)
class Actions:
    """The schedule of a layer graph: its forwards and backwards in order."""

    steps: tuple[LayerAction, ...]

    def actions(self, length: int) -> Iterator[LayerAction]:
        """Every action in order."""
        return iter(self.steps)

    def counts(self, length: int) -> list[int]:
        """How often each layer's forward runs."""
        runs = Counter(step.layer for step in self.steps if isinstance(step, Forward))
        return [runs[i] for i in range(length)]

    def options(self) -> dict[int, str]:
        """None, since options belong to chains."""
        return {}

    @property
    def order(self) -> tuple[object, ...]:
        """The operations in the order of their first run: (is it a backward, which layer)."""
        return tuple(dict.fromkeys((isinstance(step, Backward), step.layer) for step in self.steps))

    def has_own_order(self, length: int) -> bool:
        """Whether operations first run in another order than that of the graph."""
        forwards = [(False, i) for i in range(length)]
        return self.order != (*forwards, *((True, i) for i in reversed(range(length))))


GraphSchedule: TypeAlias = Nodes | Actions
