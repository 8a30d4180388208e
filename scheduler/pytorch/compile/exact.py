"""The quickest choice of what a compiled step keeps, exactly, by constraint programming.

Time in the model: slot ``t * W + i`` is the recomputation of early operation i for the backward
operation t, which itself has the last slot of its W; so the order is torch's own. A buffer made
again is an interval from there to its last use. Memory in the backward is a cumulative resource,
memory in the forward is linear in what is kept. Every choice is in the model with its true peak, so
a proof holds in the class of `scheduler.pytorch.compile.choice`, whose `play` judges the answer.
"""

from __future__ import annotations

import math
from typing import Any

from ortools.sat.python import cp_model

from scheduler.pytorch.compile.choice import StepChoice, StepGraph, play

__all__ = ["quickest", "smallest"]

# CP-SAT multiplies sizes by lengths of intervals and adds the products up in 64 bits.
_MOST = 2**61
_MOST_TIME = 2**46


def quickest(
    graph: StepGraph, budget: int, start: StepChoice | None, effort: float
) -> tuple[StepChoice | None, bool, int]:
    """The choice of least time within `budget` bytes, whether that is proven, and a lower bound.

    Parameters
    ----------
    graph
        The step.
    budget
        Bytes.
    start
        A choice that fits, to begin with.
    effort
        CP-SAT's deterministic seconds: the same answer on every machine.

    Returns
    -------
    tuple
        None and True: no choice fits. None and False: none was found. Last, the femtoseconds that
        every choice that fits runs again.
    """
    model = _Model(graph, budget)
    model.cp.minimize(model.time)
    found, proven, bound = model.solve(start, effort)
    # Times are rounded up to whole steps, and each operation by less than one.
    least = max(0, bound - len(model.again) * (model.step > 1)) * model.step
    if found is not None and found.peak_bytes > budget:
        return start, False, 0  # rounding of sizes, on graphs beyond 64 bits
    if model.rounded:
        proven, least = False, 0
    if found is None or (start is not None and start.again_time < found.again_time):
        return start, proven and start is None, least
    return found, proven, least


def smallest(graph: StepGraph, start: StepChoice, effort: float) -> tuple[StepChoice, bool]:
    """The choice of least peak, and whether that is proven; `start` is any choice."""
    model = _Model(graph, start.peak_bytes)
    model.cp.minimize(model.peak)
    found, proven, _ = model.solve(start, effort)
    if found is None or found.peak_bytes > start.peak_bytes:
        return start, False
    return found, proven and not model.rounded


class _Model:
    """Variables of a step.

    Attributes
    ----------
    again, keep
        By free or forced early operation: does it run again, is it kept.
    when
        The backward operation for which it runs again; `len(late)` if it does not.
    """

    def __init__(self, graph: StepGraph, budget: int) -> None:
        self.graph = graph
        self.cp = cp_model.CpModel()
        self.width = len(graph.early) + 1
        self.horizon = len(graph.late) * self.width
        unit = math.gcd(*graph.sizes, graph.held, graph.held_backward) or 1
        most = _MOST // (self.horizon + 1)
        self.rounded = sum(graph.sizes) // unit > most
        if self.rounded:
            unit = -(-sum(graph.sizes) // (most - len(graph.sizes)))
        self.sizes = [-(-size // unit) for size in graph.sizes]
        held = -(-graph.held // unit)
        held_backward = -(-graph.held_backward // unit)
        self.most = budget // unit
        self.peak = self.cp.new_int_var(0, self.most, "peak")
        self.holds: dict[int, Any] = {}
        self.first: dict[int, int] = {}  # backward operation that reads an early operation first
        self.last: dict[int, int] = {}  # slot of the last certain use of a buffer
        self._certain_uses()
        self._choices()
        self._forward(held)
        self._backward(held + held_backward)
        total = sum(op.time for op in graph.early)
        self.step = max(1, -(-total // _MOST_TIME))
        self.time = sum(
            -(-graph.early[i].time // self.step) * self.again[i]
            for i in self.again
            if graph.early[i].forward
        )

    def _certain_uses(self) -> None:
        for t, op in enumerate(self.graph.late):
            for buffer in (*op.makes, *op.reads):
                self.last[buffer] = self._slot(t)
                if buffer in self.graph.maker:
                    self.first.setdefault(self.graph.maker[buffer], t)
        for buffer in self.graph.gradients:
            self.last[buffer] = self.horizon - 1

    def _slot(self, t: int) -> int:
        return t * self.width + self.width - 1

    def _choices(self) -> None:
        graph, cp = self.graph, self.cp
        never = len(graph.late)
        self.again: dict[int, Any] = {}
        self.keep: dict[int, Any] = {}
        self.when: dict[int, Any] = {}
        self.readers: dict[int, list[int]] = {}  # early operations, of a buffer
        for i, op in enumerate(graph.early):
            for buffer in op.reads:
                self.readers.setdefault(buffer, []).append(i)
        for i in reversed(range(len(graph.early))):
            op = graph.early[i]
            again = cp.new_bool_var(f"again {i}")
            keep = cp.new_bool_var(f"keep {i}")
            when = cp.new_int_var(0, never, f"when {i}")
            self.again[i], self.keep[i], self.when[i] = again, keep, when
            if op.fixed == "keep":
                cp.add(again == 0)
            if op.fixed == "again":
                cp.add(keep == 0)
            users = sorted({j for b in op.makes for j in self.readers.get(b, ())})
            certain = i in self.first
            if certain:
                cp.add_bool_or([again, keep])
            for j in users:
                cp.add_bool_or([again, keep]).only_enforce_if(self.again[j])
            cp.add_at_most_one([again, keep])
            if not certain and not users:
                cp.add(again + keep == 0)
            elif not certain:
                cp.add(again + keep <= sum(self.again[j] for j in users))
            needs = [self.when[j] for j in users] + ([self.first[i]] if certain else [])
            earliest = cp.new_int_var(0, never, f"needed {i}")
            cp.add_min_equality(earliest, needs or [never])
            cp.add(when == earliest).only_enforce_if(again)
            cp.add(when == never).only_enforce_if(~again)

    def _forward(self, held: int) -> None:
        """One constraint for each forward operation: what is there anyway, and what is kept."""
        graph = self.graph
        order = [i for i, op in enumerate(graph.early) if op.forward]
        made = {b: at for at, i in enumerate(order) for b in graph.early[i].makes}
        until = dict(made)
        for at, i in enumerate(order):
            for buffer in graph.early[i].reads:
                until[buffer] = at
        for buffer in graph.outputs:
            until[buffer] = len(order) - 1
        for at in range(len(order)):
            there = held
            kept = []
            for buffer, start in made.items():
                if start > at:
                    continue
                if until[buffer] >= at:
                    there += self.sizes[buffer]
                elif self._read_later(buffer):
                    kept.append(self.sizes[buffer] * self._held(buffer))
            self.cp.add(there + sum(kept) <= self.peak)

    def _read_later(self, buffer: int) -> bool:
        return buffer in self.last or bool(self.readers.get(buffer))

    def _backward(self, held: int) -> None:
        graph, cp = self.graph, self.cp
        intervals: list[Any] = []
        demands: list[int] = []
        made = {buffer: self._slot(t) for t, op in enumerate(graph.late) for buffer in op.makes}
        for buffer, size in enumerate(self.sizes):
            if not size:
                continue
            if buffer in made:
                length = self.last[buffer] + 1 - made[buffer]
                intervals.append(cp.new_fixed_size_interval_var(made[buffer], length, ""))
                demands.append(size)
            elif buffer in graph.maker:
                for interval in self._lifetimes(buffer):
                    intervals.append(interval)
                    demands.append(size)
        if graph.outputs_held:
            held += sum(self.sizes[b] for b in graph.outputs)
        room = cp.new_int_var(0, self.most, "room")
        cp.add(room + held <= self.peak)
        cp.add_cumulative(intervals, demands, room)
        self._shares(room)

    def _held(self, buffer: int) -> Any:
        """Whether the buffer lives from the forward to the backward: kept, and read there."""
        i = self.graph.maker[buffer]
        if buffer in self.last or sum(map(self._read_later, self.graph.early[i].makes)) == 1:
            return self.keep[i]
        if buffer not in self.holds:
            holds = self.holds[buffer] = self.cp.new_bool_var(f"hold {buffer}")
            for j in self.readers[buffer]:
                self.cp.add_bool_or([holds, ~self.keep[i], ~self.again[j]])
        return self.holds[buffer]

    def _lifetimes(self, buffer: int) -> list[Any]:
        """The buffer as kept, from the start, and as made again."""
        graph, cp = self.graph, self.cp
        i = graph.maker[buffer]
        again, when = self.again[i], self.when[i]
        end = cp.new_int_var(self.last.get(buffer, 0), self.horizon, f"end {buffer}")
        for j in self.readers.get(buffer, ()):
            cp.add(end >= self.when[j] * self.width + j).only_enforce_if(self.again[j])
        lifetimes: list[Any] = []
        kept_size = cp.new_int_var(0, self.horizon + 1, "")
        outlives = graph.outputs_held and buffer in graph.outputs
        if self._read_later(buffer) and not outlives:  # the caller's outputs cost nothing to keep
            held = self._held(buffer)
            lifetimes.append(cp.new_optional_interval_var(0, kept_size, end + 1, held, ""))
        start = cp.new_int_var(0, self.horizon + self.width, "")
        cp.add(start == when * self.width + i)
        size = cp.new_int_var(0, self.horizon + 1, "")
        cp.add(end >= start).only_enforce_if(again)
        lifetimes.append(cp.new_optional_interval_var(start, size, end + 1, again, ""))
        return lifetimes

    def _shares(self, room: Any) -> None:
        """What each backward operation certainly holds: implied, and strong in the relaxation."""
        graph = self.graph
        made = {b: t for t, op in enumerate(graph.late) for b in op.makes}
        ends = {b: slot // self.width for b, slot in self.last.items()}
        for t in range(len(graph.late)):
            sure = sum(self.sizes[b] for b, s in made.items() if s <= t <= ends[b])
            terms = []
            for buffer, end in ends.items():
                i = graph.maker.get(buffer)
                if i is None or end < t or (graph.outputs_held and buffer in graph.outputs):
                    continue
                if self.first.get(i, t + 1) <= t:  # kept, or run again by now
                    sure += self.sizes[buffer]
                else:
                    terms.append(self.sizes[buffer] * self.keep[i])
            self.cp.add(sure + sum(terms) <= room)

    def solve(self, start: StepChoice | None, effort: float) -> tuple[StepChoice | None, bool, int]:
        """The best choice found, whether the search came to its end, and the objective's bound."""
        if start is not None:
            again, kept = set(start.again), set(start.kept)
            for i, op in enumerate(self.graph.early):
                if op.forward:
                    self.cp.add_hint(self.again[i], i in again)
                    self.cp.add_hint(self.keep[i], i in kept)
        solver = cp_model.CpSolver()
        solver.parameters.max_deterministic_time = effort
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        status = solver.solve(self.cp)
        proven = status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None, proven, 0
        bound = math.ceil(solver.best_objective_bound - 1e-6)
        kept_now = [i for i in self.keep if solver.boolean_value(self.keep[i])]
        return play(self.graph, kept_now), proven, bound
