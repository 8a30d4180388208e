"""Schedules by eviction: run the operations in order, free what is cheapest to do without.

No proof, but quick at any size: the first upper bound of every search, and what is left for graphs
too large to prove anything about.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from solvers.graph.lowering import Operations, Run
from solvers.graph.solution import PlanClass

__all__ = ["Keenness", "by_distance", "evicting"]

Keenness = Callable[[int, int], float]
"""How much stage t wants to hold value v to the end; the least wanted is freed first."""


def evicting(
    operations: Operations, budget: int, plan_class: PlanClass, keenness: Keenness
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
    """
    try:
        return _Evictor(operations, budget, plan_class, keenness).runs()
    except _Stuck:
        return None


class _Stuck(Exception):
    """Memory is short and nothing can be freed."""


@dataclass
class _Evictor:
    operations: Operations
    budget: int
    plan_class: PlanClass
    keenness: Keenness
    live: dict[int, int] = field(default_factory=dict)  # value -> bytes
    held: int = 0
    done: list[Run] = field(default_factory=list)

    def runs(self) -> list[Run]:
        operations = self.operations
        dies: list[list[int]] = [[] for _ in operations.times]  # values by their last first read
        for index, value in enumerate(operations.values):
            dies[value.uses[-1] if value.uses else value.maker].append(index)
        for stage in range(len(operations)):
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
        # A heap: mostly a few of many candidates have to go.
        heap = [
            (self.keenness(stage, v), v)
            for v in self.live
            if not pending.get(v) and self._replaceable(stage, v)
        ]
        heapq.heapify(heap)
        while heap:
            self._free(heapq.heappop(heap)[1])
            if self.held <= room:
                return
        raise _Stuck

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

    def keenness(stage: int, value: int) -> float:
        record = operations.values[value]
        use = bisect.bisect_right(record.uses, stage)
        if use == len(record.uses):
            return -1.0
        time = operations.times[record.maker] + 1
        return float(time / ((record.bytes + 1) * (record.uses[use] - stage) ** power))

    return keenness
