"""Retention intervals: schedules of a compute graph by constraint programming.

Each node has up to C intervals, from a computation of it to the last use of that copy; the first
is always there. Events lie on a fixed grid: stage t ends with the first computation of node t, and
before that has a slot for each of 0..t-1, in that order; the further intervals start in slots.
Formulation: Bartan et al., "Moccasin: efficient tensor rematerialization for neural networks",
2023. It restricts every node to C computations, so it proves no bound on schedules at large.

Added here, and what makes it quick on training graphs: when node t is computed first, whatever of
the earlier nodes with a use at t or later does not fit has to be computed again at some time. This
holds for every schedule in the given order and links the memory to the objective directly.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any

from ortools.sat.python import cp_model

from solvers.graph.problem import ComputeGraph
from solvers.graph.replay import replay_schedule

__all__ = ["LARGEST", "solve_intervals"]

LARGEST = 1500
"""Nodes beyond which the model, which grows with their square, is not built."""

# CP-SAT multiplies sizes by lengths of intervals and adds the products up in 64 bits.
_MOST_BYTES = 2**38
_MOST_TIME = 2**46
_POLL_SECONDS = 0.05
_SHARE = 0.6  # of the time, for the search on one thread


def solve_intervals(
    graph: ComputeGraph,
    budget: int,
    *,
    most_intervals: int = 2,
    time_limit: float | None,
    workers: int = 1,
    seed: int = 0,
    hint: Sequence[int] | None = None,
    forward_only: bool = False,
    interrupted: Callable[[], bool] | None = None,
) -> tuple[int, ...] | None:
    """Return the quickest schedule found within `budget` bytes, or None.

    First one thread searches for a proof, with three fifths of the time. What it leaves open goes
    to all threads and to neighbourhood search: to make the peak small, until something fits, and
    from there the time.

    Parameters
    ----------
    graph
        Computed for the first time in the order of its nodes.
    budget
        Bytes.
    most_intervals
        How often a node may be computed, C above; 1 or more.
    time_limit
        Seconds for everything; None: run until the optimum with C intervals is proven. A search
        that runs to its proof returns the same schedule each time for the same arguments; one that
        the limit cuts short depends on the machine.
    workers
        Threads for what the first search leaves open; 1 or more.
    seed
        Of CP-SAT.
    hint
        A legal schedule to start from, within the budget or not; by default every node once. If
        it fits, the result is no slower.
    forward_only
        Compute only forward nodes again, and only in the stages of backward nodes.
    interrupted
        Asked many times a second; once it says True the best schedule so far is returned.

    Raises
    ------
    ValueError
        `most_intervals` or `workers` is below 1.
    IllegalPlan
        `hint` is no legal schedule.
    """
    if most_intervals < 1 or workers < 1:
        raise ValueError(
            f"most_intervals and workers must be 1 or more, got {most_intervals} and {workers}"
        )
    search = _Search(time_limit, workers, seed, interrupted)
    plain = tuple(range(len(graph)))
    if replay_schedule(graph, plain).peak_bytes <= budget:
        return plain
    start = plain if hint is None else tuple(hint)
    peak = replay_schedule(graph, start).peak_bytes
    best = _trimmed(graph, start, budget) if peak <= budget else None
    if len(graph) > LARGEST or graph.floor[0] > budget:
        return best
    for thorough, fit in ((True, False), (False, True), (False, False)):
        if fit and best is not None:
            continue
        model = _Model(graph, budget, most_intervals, forward_only, fit)
        model.hint(start if best is None else best)
        found, finished = search.run(model, thorough)
        if found is not None and replay_schedule(graph, found).peak_bytes <= budget:
            found = _trimmed(graph, found, budget)
            if best is None or _time(graph, found) < _time(graph, best):
                best = found
        if (finished and not fit) or (fit and best is None):
            break
    return best


def _time(graph: ComputeGraph, schedule: Sequence[int]) -> int:
    return sum(graph.nodes[v].time for v in schedule)


def _event(stage: int, node: int) -> int:
    """Place on the timeline of `node` in `stage`; stage t has the nodes 0..t."""
    return stage * (stage + 1) // 2 + node


def _trimmed(graph: ComputeGraph, schedule: tuple[int, ...], budget: int) -> tuple[int, ...]:
    """Leave out computations, the longest first, that the rest of the schedule can do without."""
    seen: set[int] = set()
    again = []  # steps, counted from the end: these stay right while later steps go
    for step, v in enumerate(schedule):
        if v in seen:
            again.append(len(schedule) - step)
        seen.add(v)
    # A computation may be there only for another one, so ties go from the last to the first.
    again.sort(key=lambda back: (-graph.nodes[schedule[-back]].time, back))
    kept = dict(enumerate(schedule))
    for back in again:
        step = len(schedule) - back
        v = kept.pop(step)
        if not _fits(graph, [kept[s] for s in sorted(kept)], budget):
            kept[step] = v
    return tuple(kept[s] for s in sorted(kept))


def _fits(graph: ComputeGraph, schedule: list[int], budget: int) -> bool:
    # Every node is still computed before its first use, so no removal makes a schedule illegal.
    return replay_schedule(graph, schedule).peak_bytes <= budget


def _units(sizes: Sequence[int], most: int) -> int:
    """A divisor that keeps the sum of `sizes` below `most`; their common one if that will do."""
    exact = math.gcd(*sizes) or 1
    if sum(sizes) // exact < most:
        return exact
    return -(-sum(sizes) // (most - len(sizes)))


class _Search:
    """CP-SAT with a deadline, in a thread of its own so that it can be interrupted."""

    def __init__(
        self,
        time_limit: float | None,
        workers: int,
        seed: int,
        interrupted: Callable[[], bool] | None,
    ) -> None:
        self.deadline = math.inf if time_limit is None else time.monotonic() + time_limit
        self.workers = workers
        self.seed = seed
        self.interrupted = interrupted or (lambda: False)

    def run(self, model: _Model, thorough: bool) -> tuple[tuple[int, ...] | None, bool]:
        """Best schedule of `model` that is found in time, and whether the search came to its end.

        `thorough`: by one strategy, with a share of the time; else by all of them.
        """
        left = self.deadline - time.monotonic()
        if left <= 0 or self.interrupted():
            return None, False
        solver = cp_model.CpSolver()
        parameters = solver.parameters
        parameters.random_seed = self.seed
        # Otherwise Ctrl-C would end the search, and nobody would know that it was pressed.
        parameters.catch_sigint_signal = False
        if thorough:
            parameters.num_workers = 1
        else:
            # The strategies take turns in batches: the same answer however threads are scheduled.
            parameters.interleave_search = True
            parameters.num_workers = parameters.interleave_batch_size = self.workers
        if left < math.inf:
            parameters.max_time_in_seconds = left * (_SHARE if thorough else 1)
        status: list[cp_model.CpSolverStatus] = []
        thread = Thread(target=lambda: status.append(solver.solve(model.cp)), daemon=True)
        thread.start()
        try:
            while thread.is_alive() and not self.interrupted():
                thread.join(_POLL_SECONDS)
        finally:
            while thread.is_alive():  # a request before the search has begun is lost
                solver.stop_search()
                thread.join(_POLL_SECONDS)
        finished = status[0] in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
        if status[0] in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return model.schedule(solver), finished
        return None, finished


class _Model:
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
