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
from typing import TYPE_CHECKING, TypeAlias

from scheduler.pytorch.compile.choice import JointOperation, StepChoice, StepGraph, play
from scheduler.pytorch.compile.every import MOST_FREE, every
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
        self._known: dict[object, Rows] = {}
        self._keys = [part.key for part in parts.parts]

    @classmethod
    def of(cls, graph: StepGraph) -> Layered | None:
        """None: the step does not come apart, or not into small parts."""
        parts = Parts(graph, MOST_FREE)
        if len(parts.parts) == 1 or any(len(p.step.free) > MOST_FREE for p in parts.parts):
            return None
        return cls(parts, play(graph, graph.free).peak_bytes)

    def choice(self, budget: int) -> StepChoice | None:
        """The quickest within `budget` bytes of those that keep all cuts; None: there is none."""
        at = budget = min(budget, self.most)
        while (layers := self._quickest).cost(at) is not None:
            kept = [*self._parts.cuts, *self._parts.shared]
            for part, rows, way in zip(self._parts.parts, self._kept, layers.ways(at), strict=True):
                index = int(rows[_INDEX, way])
                kept += [part.early[i] for k, i in enumerate(part.step.free) if index >> k & 1]
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
    def _kept(self) -> list[Rows]:
        """Of each part, the choices worth it where all cuts are kept."""
        return [self._choices(k, _KEPT, _KEPT) for k in range(len(self._parts.parts))]

    @cached_property
    def _quickest(self) -> Layers:
        ways = []
        for part, rows in zip(self._parts.parts, self._kept, strict=True):
            forward = rows[_FORWARD] + part.beside_forward
            backward = rows[_BACKWARD] + part.beside_backward
            ways.append(
                [
                    Way(held, max(peaks) + self._parts.shared_bytes, again)
                    for again, held, *peaks in zip(
                        *rows[: _HELD + 1].tolist(),
                        forward.tolist(),
                        backward.tolist(),
                        strict=True,
                    )
                ]
            )
        return Layers(ways, self.most, self._unit)

    @cached_property
    def _bound(self) -> Layers:
        ways: list[list[Way]] = []
        last = len(self._parts.parts) - 1
        for k, part in enumerate(self._parts.parts):
            ways.append([])
            for below in (_KEPT, _DROPPED) if part.below else (_KEPT,):
                for above in (_KEPT, _DROPPED) if k < last else (_KEPT,):
                    rows = self._choices(k, below, above)[: _BACKWARD + 1].tolist()
                    ways[-1] += [
                        Way(held, backward + part.beside_backward, again, below, above)
                        for again, held, backward in zip(*rows, strict=True)
                    ]
        return Layers(ways, self.most, self._unit, down=True)

    def _choices(self, k: int, below: int, above: int) -> Rows:
        """The choices of part k that no other beats, all peaks without what is beside."""
        import numpy as np

        key = self._keys[k], below, above
        if key not in self._known:
            step, unseen = _with(self._parts.parts[k], below, above)
            costs = every(step, unseen)
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
    return replace(step, early=tuple(early), late=late, sizes=tuple(sizes)), above


def _front(rows: Rows) -> Rows:
    """The columns that no other equals or beats in all rows but the last."""
    import numpy as np

    rows = rows[:, np.lexsort(rows[::-1])]
    best = []
    while rows.shape[1]:
        best.append(rows[:, 0])
        rows = rows[:, (rows[:_INDEX] < rows[:_INDEX, :1]).any(axis=0)]
    return np.stack(best, axis=1)
