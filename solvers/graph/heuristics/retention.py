"""The constraint program of `solvers.graph.heuristics.intervals`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ortools.sat.python import cp_model

from solvers.graph.problem import ComputeGraph

# CP-SAT multiplies sizes by lengths of intervals and adds the products up in 64 bits.
_MOST_BYTES = 2**38
_MOST_TIME = 2**46


def _event(stage: int, node: int) -> int:
    """Place on the timeline of `node` in `stage`; stage t has the nodes 0..t."""
    return stage * (stage + 1) // 2 + node


def _units(sizes: Sequence[int], most: int) -> int:
    """A divisor that keeps the sum of `sizes` below `most`; their common one if that will do."""
    exact = math.gcd(*sizes) or 1
    if sum(sizes) // exact < most:
        return exact
    return -(-sum(sizes) // (most - len(sizes)))


class RetentionModel:
    """The intervals of every node as CP-SAT variables.

    Attributes
    ----------
    starts, ends, active
        For each node one entry for each interval: the event of its computation, the event of its
        last use, and whether it is there. Of the first, start and activity are constants.
    sizes
        As `starts`: the length of each further interval; None for the first.
    serves
        ``(v, l, u)`` to one literal for each interval of u: it serves computation l of v.
    """

    def __init__(
        self,
        graph: ComputeGraph,
        budget: int,
        most_intervals: int,
        forward_only: bool,
        fit: bool,
    ) -> None:
        """Minimise the time within the budget; `fit`: instead what the peak has beyond it."""
        self.graph = graph
        self.cp = cp_model.CpModel()
        self.starts: list[list[Any]] = []
        self.ends: list[list[Any]] = []
        self.active: list[list[Any]] = []
        self.sizes: list[list[Any]] = []
        self.serves: dict[tuple[int, int, int], list[Any]] = {}
        unit = _units([node.bytes for node in graph.nodes], _MOST_BYTES)
        self.bytes = [-(-node.bytes // unit) for node in graph.nodes]
        self.budget = budget // unit
        self.excess: Any = 0
        if fit:
            self.excess = self.cp.new_int_var(0, sum(self.bytes), "")
        self._add_intervals(most_intervals, forward_only)
        self._add_memory()
        self._add_uses()
        self._add_covers()
        self.cp.minimize(self.excess if fit else self._added_time())

    def _add_intervals(self, most: int, forward_only: bool) -> None:
        graph, cp = self.graph, self.cp
        n = len(graph)
        repeats = [
            bool(graph.consumers[i]) and most > 1 and not (forward_only and graph.nodes[i].backward)
            for i in range(n)
        ]
        last_stage = [-1] * n  # where node i can be of use
        for i in reversed(range(n)):
            for c in graph.consumers[i]:
                last_stage[i] = max(last_stage[i], c, last_stage[c] if repeats[c] else -1)
        for i in range(n):
            uses = [_event(last_stage[c] if repeats[c] else c, c) for c in graph.consumers[i]]
            last = max([_event(i, i), *uses])
            stages = [
                t
                for t in range(i + 1, last_stage[i] + 1)
                if graph.nodes[t].backward or not forward_only
            ]
            starts: list[Any] = [_event(i, i)]
            ends: list[Any] = [cp.new_int_var(_event(i, i), last, "") if uses else _event(i, i)]
            active: list[Any] = [1]
            sizes: list[Any] = [None]
            slots = cp_model.Domain.from_values([_event(t, i) for t in stages])
            for k in range(1, most if repeats[i] and stages else 1):
                starts.append(cp.new_int_var_from_domain(slots, ""))
                ends.append(cp.new_int_var(_event(i + 1, i), last, ""))
                active.append(cp.new_bool_var(""))
                sizes.append(cp.new_int_var(1, last + 1, ""))
                cp.add(starts[k] > ends[k - 1]).only_enforce_if(active[k])
                if k > 1:
                    cp.add_implication(active[k], active[k - 1])
            self.starts.append(starts)
            self.ends.append(ends)
            self.active.append(active)
            self.sizes.append(sizes)

    def _add_memory(self) -> None:
        cp = self.cp
        intervals, demands = [], []
        for i, size in enumerate(self.bytes):
            if size == 0:
                continue
            start, end = self.starts[i][0], self.ends[i][0] + 1
            intervals.append(cp.new_interval_var(start, end - start, end, ""))
            for k in range(1, len(self.starts[i])):
                intervals.append(
                    cp.new_optional_interval_var(
                        self.starts[i][k],
                        self.sizes[i][k],
                        self.ends[i][k] + 1,
                        self.active[i][k],
                        "",
                    )
                )
            demands += [size] * len(self.starts[i])
        cp.add_cumulative(intervals, demands, self.budget + self.excess)

    def _add_uses(self) -> None:
        cp, starts, ends, active = self.cp, self.starts, self.ends, self.active
        for v, inputs in enumerate(self.graph.inputs):
            for u in inputs:
                for use in range(len(starts[v])):
                    literals = [cp.new_bool_var("") for _ in starts[u]]
                    self.serves[v, use, u] = literals
                    for k, serve in enumerate(literals):
                        cp.add(ends[u][k] >= starts[v][use]).only_enforce_if(serve)
                        if k:
                            cp.add_implication(serve, active[u][k])
                            cp.add(starts[u][k] < starts[v][use]).only_enforce_if(serve)
                    cp.add_bool_or(*literals, *([~active[v][use]] if use else []))

    def _add_covers(self) -> None:
        graph, cp = self.graph, self.cp
        for t in range(len(graph)):
            wanted = [u for u in range(t) if graph.consumers[u] and graph.consumers[u][-1] >= t]
            beyond = self.bytes[t] + sum(self.bytes[u] for u in wanted) - self.budget
            away = [u for u in wanted if u not in graph.inputs[t] and len(self.active[u]) > 1]
            if beyond > 0:
                again = sum(min(beyond, self.bytes[u]) * self.active[u][1] for u in away)
                cp.add(again + self.excess >= beyond)

    def _added_time(self) -> Any:
        times = [node.time for node in self.graph.nodes]
        unit = _units(times, _MOST_TIME)
        return sum(
            -(-times[i] // unit) * literal
            for i, literals in enumerate(self.active)
            for literal in literals[1:]
        )

    def hint(self, schedule: Sequence[int]) -> None:
        """Start the search from `schedule`, as far as the grid has places for it."""
        stages = _stages(schedule)
        count = [0] * len(self.graph)
        used: dict[tuple[int, int], int] = {}  # computation -> event of its last use
        values: dict[int, int] = {}  # index of a variable -> its value
        variables: dict[int, Any] = {}

        def set_to(variable: Any, value: int) -> None:
            if not isinstance(variable, int) and variable is not None:
                variables[variable.index] = variable
                values[variable.index] = value

        for stage, v in zip(stages, schedule, strict=True):
            use, event = count[v], _event(stage, v)
            count[v] += 1
            used[v, use] = event
            for u in self.graph.inputs[v]:
                used[u, count[u] - 1] = event
                for k, literal in enumerate(self.serves.get((v, use, u), [])):
                    set_to(literal, int(k == count[u] - 1))
            if use < len(self.starts[v]):
                set_to(self.starts[v][use], event)
        for (v, use), event in used.items():
            if use < len(self.starts[v]):
                set_to(self.ends[v][use], event)
                set_to(self.active[v][use], 1)
                start = values.get(self.starts[v][use].index) if use else None
                if start is not None:
                    set_to(self.sizes[v][use], event + 1 - start)
        for v, literals in enumerate(self.active):
            for literal in literals[max(1, count[v]) :]:
                set_to(literal, 0)
        for (_, use, _u), literals in self.serves.items():
            for literal in literals if use else []:
                if literal.index not in values:
                    set_to(literal, 0)
        for index, value in values.items():
            self.cp.add_hint(variables[index], value)

    def schedule(self, solver: cp_model.CpSolver) -> tuple[int, ...]:
        """Computations in the order of their events."""
        events = [
            (solver.value(self.starts[i][k]), i)
            for i, literals in enumerate(self.active)
            for k, literal in enumerate(literals)
            if k == 0 or solver.boolean_value(literal)
        ]
        return tuple(i for _, i in sorted(events))


def _stages(schedule: Sequence[int]) -> list[int]:
    """For each step the node that is computed next for the first time, itself included."""
    seen: set[int] = set()
    first = []
    for v in schedule:
        first.append(v not in seen)
        seen.add(v)
    stages, stage = [], max(schedule)
    for new, v in zip(reversed(first), reversed(schedule), strict=True):
        stage = v if new else stage
        stages.append(stage)
    return stages[::-1]
