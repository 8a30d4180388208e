"""Choices for a step of many layers, for all budgets at once, with a bound for each.

What a part can cost is tried out (`every`), once for all equal parts, and put together by
`solvers.selection.layers`. The choices keep all cuts. The bound is that of all choices: a cut that
is dropped is made again with all it takes before its part's own backward begins, so a part then

    - that lies below it: has that much alive from its own backward's beginning on, which holds no
      bytes in the forward, and costs its time (not what it needs while it is made again);
    - that lies above it: finds its input free of charge.

Both only leave something out of what such a choice takes. So do shared tables, which the bound has
for nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

from scheduler.pytorch.compile.choice import JointOperation, StepChoice, StepGraph, play
from scheduler.pytorch.compile.every import MOST_FREE, every, narrowed
from scheduler.pytorch.compile.parts import Part, Parts
from solvers.selection.layers import Layers, Way

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Rows: TypeAlias = NDArray[np.int64]

_GRID = 1 << 17  # budgets that are told apart
_KEPT, _DROPPED = 0, 1  # states of a cut
_AGAIN, _HELD, _BACKWARD, _FORWARD, _INDEX = range(5)  # rows of a part's choices


class Layered:
    """A step whose parts have all been tried out.

    Parameters
    ----------
    parts
        None of more than `MOST_FREE` free operations.
    most
        The largest budget of interest, in bytes.
    """

    def __init__(self, parts: Parts, most: int) -> None:
        self._parts, self.most = parts, most
        self._unit = math.gcd(*parts.graph.sizes) or 1
        while most // self._unit > _GRID:
            self._unit *= 2
        keys: dict[object, int] = {}
        self._like = [keys.setdefault(part.key, k) for k, part in enumerate(parts.parts)]
        self._steps = {
            (k, *cuts): _with(parts.parts[k], *cuts)
            for k in keys.values()
            for cuts in self._cuts(k)
        }
        self._known: dict[tuple[int, int, int], Rows] = {}

    @classmethod
    def of(cls, graph: StepGraph) -> Layered | None:
        """None: the step does not come apart, or not into small parts."""
        parts = Parts(graph, MOST_FREE - 2)
        layered = cls(parts, play(graph, graph.free).peak_bytes)
        free = max(len(step.free) for step, _ in layered._steps.values())
        return layered if len(parts.parts) > 1 and free <= MOST_FREE else None

    def choice(self, budget: int) -> StepChoice | None:
        """The quickest within `budget` bytes of those that keep all cuts; None: there is none."""
        at = budget = min(budget, self.most)
        while (layers := self._quickest).cost(at) is not None:
            kept = [*self._parts.cuts, *self._parts.shared]
            for k, (part, way) in enumerate(zip(self._parts.parts, layers.ways(at), strict=True)):
                index = int(self._choices(k, _KEPT, _KEPT)[_INDEX, way])
                free = self._steps[self._like[k], _KEPT, _KEPT][0].free
                kept += [part.early[i] for bit, i in enumerate(free) if index >> bit & 1]
            choice = play(self._parts.graph, kept)
            if choice.peak_bytes <= budget:
                return choice
            at -= choice.peak_bytes - budget
        return None

    def least_time(self, budget: int) -> int | None:
        """Femtoseconds that every choice within `budget` bytes runs again; None: there is none."""
        return self._bound.cost(min(budget, self.most))

    def smallest(self) -> StepChoice | None:
        """The choice of least peak of those that keep all cuts."""
        return self.choice(next(iter(self._quickest.budgets()), -1))

    def least_peak(self) -> int:
        """Bytes that every choice takes at least."""
        return next(iter(self._bound.budgets()), self.most)

    @cached_property
    def _quickest(self) -> Layers:
        import numpy as np

        ways = []
        for k, part in enumerate(self._parts.parts):
            rows = self._choices(k, _KEPT, _KEPT)
            forward = rows[_FORWARD] + part.beside_forward
            backward = rows[_BACKWARD] + part.beside_backward - part.shared_backward
            peaks = (np.maximum(forward, backward) + self._parts.shared_bytes).tolist()
            again, held = rows[: _HELD + 1].tolist()
            ways.append([Way(*way) for way in zip(held, peaks, again, strict=True)])
        return Layers(ways, self.most, self._unit)

    @cached_property
    def _bound(self) -> Layers:
        ways: list[list[Way]] = []
        for k, part in enumerate(self._parts.parts):
            ways.append([])
            for below, above in self._cuts(k):
                rows = self._choices(k, below, above)[: _BACKWARD + 1].tolist()
                ways[-1] += [
                    Way(held, backward + part.beside_backward, again, below, above)
                    for again, held, backward in zip(*rows, strict=True)
                ]
        return Layers(ways, self.most, self._unit, down=True)

    def _cuts(self, k: int) -> list[tuple[int, int]]:
        """States of the cuts below and above part k."""
        part = self._parts.parts[k]
        below = (_KEPT, _DROPPED) if part.below else (_KEPT,)
        above = (_KEPT, _DROPPED) if part.above >= 0 else (_KEPT,)
        return list(product(below, above))

    def _choices(self, k: int, below: int, above: int) -> Rows:
        """The choices of part k that no other beats, all peaks without what is beside."""
        import numpy as np

        key = self._like[k], below, above
        if key not in self._known:
            costs = every(*self._steps[key])
            rows = np.stack(
                [
                    costs.again_time,
                    costs.held_bytes,
                    costs.backward_bytes,
                    costs.forward_bytes,
                    np.arange(len(costs.again_time)),
                ]
            )
            self._known[key] = _front(rows)
        return self._known[key]


def _with(part: Part, below: int, above: int) -> tuple[StepGraph, int]:
    """A part's step with cuts dropped, and how many late operations stand for what is above."""
    step = part.step
    early, late, sizes = list(step.early), step.late, list(step.sizes)
    if below == _DROPPED:
        for buffer in early[0].makes:
            sizes[buffer] = 0
    if above == _DROPPED:
        cut = early[part.above]
        early[part.above] = replace(cut, fixed="again")
        late = (JointOperation("above", 1, cut.makes, ()), *late)
    return narrowed(replace(step, early=tuple(early), late=late, sizes=tuple(sizes))), above


def _front(rows: Rows) -> Rows:
    """The columns that no other equals or beats in all rows but the last."""
    import numpy as np

    rows = rows[:, np.lexsort(rows[::-1])]
    best = []
    while rows.shape[1]:
        best.append(rows[:, 0])
        rows = rows[:, (rows[:_INDEX] < rows[:_INDEX, :1]).any(axis=0)]
    return np.stack(best, axis=1)
