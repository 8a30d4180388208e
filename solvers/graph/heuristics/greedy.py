"""Schedules by eviction: run the operations in order, free what is cheapest to do without.

No proof, but quick at any size: the first upper bound of every search, and what is left for graphs
too large to prove anything about.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from solvers.graph.lowering import Operations, Run
from solvers.solution import PlanClass

__all__ = ["Keenness", "by_distance", "evicting"]

_MOST_RUNS = 20
"""Runs per operation, about, beyond which eviction has got into a circle and is given up."""

_MOST_CLOSURE = 100
"""Operations beyond which making a value again is taken to be out of the question."""

Keenness = Callable[[int, int, float], float]
"""How much stage t wants to go on holding value v, which takes so long to make again.

It grows with that time. The least wanted is freed first.
"""


def evicting(
    operations: Operations,
    budget: int,
    plan_class: PlanClass,
    keenness: Keenness,
    stop: Callable[[], bool] = lambda: False,
) -> list[Run] | None:
    """Runs within `budget`, or None where eviction comes to an end.

    Parameters
    ----------
    operations, budget
        The problem.
    plan_class
        `FORWARD` or `STAGED`.
    keenness
        Which values to free when memory is short.
    stop
        Asked before each operation; True gives it up.
    """
    try:
        return _Evictor(operations, budget, plan_class, keenness, stop).runs()
    except _Stuck:
        return None


class _Stuck(Exception):
    """Memory is short and nothing can be freed, or it takes too long."""


@dataclass
class _Evictor:
    operations: Operations
    budget: int
    plan_class: PlanClass
    keenness: Keenness
    stop: Callable[[], bool]
    live: dict[int, int] = field(default_factory=dict)  # value -> bytes
    held: int = 0
    done: list[Run] = field(default_factory=list)

    def runs(self) -> list[Run]:
        operations = self.operations
        dies: list[list[int]] = [[] for _ in operations.times]  # values by their last first read
        for index, value in enumerate(operations.values):
            dies[value.uses[-1] if value.uses else value.maker].append(index)
        for stage in range(len(operations)):
            if self.stop() or len(self.done) > _MOST_RUNS * (stage + 100):
                raise _Stuck
            again, keeping = self._needed(stage)
            pending: dict[int, int] = {}  # value -> reads of it still to come in this stage
            for operation in (*again, stage):
                for read in operations.reads[operation]:
                    pending[read] = pending.get(read, 0) + 1
            for operation in (*again, stage):
                self._run(stage, operation, operation in keeping, pending)
            for dead in dies[stage]:
                # Nothing still to run for the first time reads it; a recomputation that does
                # makes it again.
                self._free(dead)
        return self.done

    def _may_run_again(self, stage: int, operation: int) -> bool:
        operations = self.operations
        if not operations.repeatable[operation]:
            return False
        if self.plan_class is PlanClass.FORWARD:
            return operations.backward[stage] and not operations.backward[operation]
        return True

    def _needed(self, stage: int) -> tuple[list[int], set[int]]:
        """What has to run again before `stage`, and which of it has to keep."""
        operations = self.operations
        missing = [v for v in operations.reads[stage] if v not in self.live]
        again: set[int] = set()
        keeping: set[int] = set()
        while missing:
            value = operations.values[missing.pop()]
            if not self._may_run_again(stage, value.maker):
                raise _Stuck
            if value.optional:
                keeping.add(value.maker)
            if value.maker not in again:
                again.add(value.maker)
                missing += [v for v in operations.reads[value.maker] if v not in self.live]
        return sorted(again), keeping

    def _run(self, stage: int, operation: int, keep: bool, pending: dict[int, int]) -> None:
        operations = self.operations
        saved, output = operations.saved[operation], operations.outputs[operation]
        first = operation == stage
        if output is not None and output in self.live:
            self._free(output)  # the run makes a fresh copy
        makes = [output] if output is not None else []
        if saved is not None and (keep or (first and saved not in self.live)):
            makes.append(saved)
        size = sum(operations.values[v].bytes for v in makes)
        size += operations.keep_extra[operation] if saved in makes else operations.extra[operation]
        top = operations.resident[stage] + size
        try:
            self._evict(stage, self.budget - top, pending)
        except _Stuck:
            if not first or saved not in makes or not operations.repeatable[operation]:
                raise
            makes.remove(saved)  # a first run may leave its saved set to a later one
            size = sum(operations.values[v].bytes for v in makes) + operations.extra[operation]
            self._evict(stage, self.budget - operations.resident[stage] - size, pending)
        for value in operations.reads[operation]:
            pending[value] -= 1
        for value in makes:
            self.live[value] = operations.values[value].bytes
            self.held += self.live[value]
        self.done.append(Run(operation, saved in makes))
        for value in operations.reads[operation]:
            if not pending[value] and not self._wanted(value, stage):
                self._free(value)
        if output is not None and not pending.get(output) and not self._wanted(output, stage):
            self._free(output)

    def _wanted(self, value: int, stage: int) -> bool:
        return self.operations.values[value].uses[-1:] > (stage,)

    def _evict(self, stage: int, room: int, pending: dict[int, int]) -> None:
        if self.held <= room:
            return
        times = self.operations.times
        values = self.operations.values
        # By the time of the maker alone; what else is missing is looked at when it matters.
        heap = [
            (self.keenness(stage, v, times[values[v].maker]), v, False)
            for v in self.live
            if not pending.get(v) and self._replaceable(stage, v)
        ]
        heapq.heapify(heap)
        while heap:
            _, value, exact = heapq.heappop(heap)
            if not exact:
                score = self.keenness(stage, value, self._time_again(value))
                heapq.heappush(heap, (score, value, True))
                continue
            self._free(value)
            if self.held <= room:
                return
        raise _Stuck

    def _time_again(self, value: int) -> float:
        """Time to make a value again from what is live now."""
        operations = self.operations
        again = {operations.values[value].maker}
        todo = list(again)
        while todo:
            for read in operations.reads[todo.pop()]:
                maker = operations.values[read].maker
                if read not in self.live and maker not in again:
                    again.add(maker)
                    todo.append(maker)
            if len(again) > _MOST_CLOSURE:
                return math.inf
        return float(sum(operations.times[i] for i in again))

    def _replaceable(self, stage: int, value: int) -> bool:
        """Whether the value can be made again where it is read next."""
        record = self.operations.values[value]
        use = bisect.bisect_right(record.uses, stage)
        return use == len(record.uses) or self._may_run_again(record.uses[use], record.maker)

    def _free(self, value: int) -> None:
        if value in self.live:
            self.held -= self.live.pop(value)


def by_distance(operations: Operations, power: float = 1.0) -> Keenness:
    """Wants what is costly to make again, small, and read soon: time / (bytes · distance^power)."""

    def keenness(stage: int, value: int, time: float) -> float:
        record = operations.values[value]
        use = bisect.bisect_right(record.uses, stage)
        if use == len(record.uses):
            return -1.0
        return float((time + 1) / ((record.bytes + 1) * (record.uses[use] - stage) ** power))

    return keenness
