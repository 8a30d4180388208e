"""The schedules of graphs: what runs in which order, repeats included."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from solvers.schedule import Backward, Compute, Forward, Schedule

LayerAction: TypeAlias = Forward | Backward


@dataclass(frozen=True, slots=True)
class Nodes(Schedule):
    """The schedule of a compute graph: `steps` are its nodes in the order of computation."""

    steps: tuple[int, ...]

    def actions(self, length: int) -> Iterator[Compute]:
        """Every computation in order."""
        return map(Compute, self.steps)

    @property
    def order(self) -> tuple[object, ...]:
        """The nodes in the order of their first computation."""
        return tuple(dict.fromkeys(self.steps))

    def has_own_order(self, length: int) -> bool:
        """Whether nodes are first computed in another order than that of the graph."""
        return self.order != tuple(range(length))


@dataclass(frozen=True, slots=True)
class Actions(Schedule):
    """The schedule of a layer graph: its forwards and backwards in order."""

    steps: tuple[LayerAction, ...]

    def actions(self, length: int) -> Iterator[LayerAction]:
        """Every action in order."""
        return iter(self.steps)

    @property
    def order(self) -> tuple[object, ...]:
        """The operations in the order of their first run: (is it a backward, which layer)."""
        return tuple(dict.fromkeys((isinstance(step, Backward), step.layer) for step in self.steps))

    def turned_at_once(self, length: int) -> list[Actions]:
        """The same with nothing between the last layer's forward and its backward, in two ways.

        None where nothing is: what runs there runs after both, or before.
        """
        last = length - 1
        places = [i for i, step in enumerate(self.steps) if step.layer == last]
        if len(places) != 2 or places[1] == places[0] + 1:
            return []
        begin, turn = places
        before, both = self.steps[:begin], (self.steps[begin], self.steps[turn])
        between, after = self.steps[begin + 1 : turn], self.steps[turn + 1 :]
        return [
            Actions((*before, *both, *between, *after)),
            Actions((*before, *between, *both, *after)),
        ]

    def has_own_order(self, length: int) -> bool:
        """Whether operations first run in another order than that of the graph."""
        forwards = [(False, i) for i in range(length)]
        return self.order != (*forwards, *((True, i) for i in reversed(range(length))))


GraphSchedule: TypeAlias = Nodes | Actions
