"""Schedules by repair: where too much is live, let go of what is cheap to make again there.

From a schedule of every operation once. A gap of a value lies between two steps that read it (or
make and read it); dropping it there takes its bytes off every step between, and costs one more run
of its maker just before the later step, until which that run's inputs have to stay. No proof; on
graphs without a backward part, where evicting has to make whole histories again, it finds plans.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from solvers.graph.lowering import Operations, Run
from solvers.solution import PlanClass

__all__ = ["repaired"]

_MOST_LIVE = 1_500_000
"""Steps that all values together may live: each takes some memory here."""


def repaired(
    operations: Operations,
    budget: int,
    plan_class: PlanClass,
    stop: Callable[[], bool],
    *,
    strict: bool,
) -> list[Run] | None:
    """Runs within `budget`, or None where no gap helps, or too much lives long; compute graphs.

    Parameters
    ----------
    operations, budget, plan_class
        The problem.
    stop
        Asked before each gap; True gives it up.
    strict
        Never put a step over the budget to relieve another; else what is over, summed over the
        steps, has to become less. Neither is better on all graphs.
    """
    spans = sum(value.uses[-1] - value.maker for value in operations.values if value.uses)
    if spans > _MOST_LIVE:
        return None
    repair = _Repair(operations, plan_class, strict)
    while True:
        worst = int(repair.memory.argmax())
        if repair.memory[worst] <= budget:
            return repair.runs()
        if stop() or not repair.drop_at(worst, budget):
            return None


@dataclass(frozen=True, slots=True)
class _Gap:
    """Value `value` goes after step `begin` and is made again before step `end`."""

    value: int
    begin: int
    end: int
    stays: tuple[tuple[int, int], ...]  # inputs that stay longer, and the step until which they did


class _Repair:
    def __init__(self, operations: Operations, plan_class: PlanClass, strict: bool) -> None:
        self.operations = operations
        self.strict = strict
        self.plan_class = plan_class
        n = len(operations)
        self.memory = np.zeros(n, np.int64)  # live while each step's first run is computed
        self.again: list[list[int]] = [[] for _ in range(n)]  # makers run before each step
        self.reads = [list(value.uses) for value in operations.values]
        self.live: list[list[list[int]]] = []  # stretches of steps, inclusive, of each value
        self.at: list[set[int]] = [set() for _ in range(n)]  # values with a stretch over a step
        for index, value in enumerate(operations.values):
            end = value.uses[-1] if value.uses else value.maker
            self.live.append([[value.maker, end]])
            self.memory[value.maker : end + 1] += value.bytes
            for step in range(value.maker, end + 1):
                self.at[step].add(index)

    def drop_at(self, step: int, budget: int) -> bool:
        """Open the gap over `step` that takes off the most for its time; False: there is none."""
        best: tuple[float, int] | None = None
        chosen: _Gap | None = None
        excess = int(self.memory[step]) - budget
        for value in self.at[step]:
            gap = self._gap(value, step)
            if gap is None:
                continue
            record = self.operations.values[value]
            freed = min(record.bytes, excess)
            worth = (self.operations.times[record.maker] + 1) / max(freed, 1), value
            if (best is None or worth < best) and freed > 0 and self._helps(gap, budget):
                best, chosen = worth, gap
        if chosen is None:
            return False
        self._open(chosen)
        return True

    def _gap(self, value: int, step: int) -> _Gap | None:
        record = self.operations.values[value]
        if record.maker in self.again[step] or record.maker == step:
            return None
        reads = self.reads[value]
        after = bisect.bisect_left(reads, step)
        if after == len(reads) or reads[after] == step:
            return None
        stretch = next(s for s in self.live[value] if s[0] <= step <= s[1])
        end = reads[after]
        if end > stretch[1] or not self._may_run_again(record.maker, end):
            return None
        begin = max(stretch[0], reads[after - 1] if after else stretch[0])
        stays = []
        for read in self.operations.reads[record.maker]:
            before = [s for s in self.live[read] if s[0] <= end]
            if before[-1][1] < end:
                stays.append((read, before[-1][1]))
        return _Gap(value, begin, end, tuple(stays))

    def _may_run_again(self, maker: int, stage: int) -> bool:
        operations = self.operations
        if not operations.repeatable[maker]:
            return False
        if self.plan_class is PlanClass.FORWARD:
            return operations.backward[stage] and not operations.backward[maker]
        return True

    def _helps(self, gap: _Gap, budget: int) -> bool:
        first = min([gap.begin, *(since for _, since in gap.stays)])
        before = self.memory[first : gap.end + 1] - budget
        after = before + self._change(gap, first)
        if self.strict and np.any((after > 0) & (after > before)):
            return False
        return int(np.maximum(after, 0).sum()) < int(np.maximum(before, 0).sum())

    def _change(self, gap: _Gap, first: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        change = np.zeros(gap.end + 1 - first, np.int64)
        values = self.operations.values
        change[gap.begin + 1 - first : gap.end - first] -= values[gap.value].bytes
        for read, since in gap.stays:
            change[since + 1 - first :] += values[read].bytes
        return change

    def _open(self, gap: _Gap) -> None:
        first = min([gap.begin, *(since for _, since in gap.stays)])
        self.memory[first : gap.end + 1] += self._change(gap, first)
        stretches = self.live[gap.value]
        index = next(k for k, s in enumerate(stretches) if s[0] <= gap.begin and s[1] >= gap.end)
        stretches[index : index + 1] = [
            [stretches[index][0], gap.begin],
            [gap.end, stretches[index][1]],
        ]
        for step in range(gap.begin + 1, gap.end):
            self.at[step].discard(gap.value)
        maker = self.operations.values[gap.value].maker
        bisect.insort(self.again[gap.end], maker)
        for read in self.operations.reads[maker]:
            bisect.insort(self.reads[read], gap.end)
        for read, since in gap.stays:
            stretch = next(s for s in self.live[read] if s[1] == since)
            stretch[1] = gap.end
            for step in range(since + 1, gap.end + 1):
                self.at[step].add(read)

    def runs(self) -> list[Run]:
        return [Run(i) for stage, again in enumerate(self.again) for i in (*again, stage)]
