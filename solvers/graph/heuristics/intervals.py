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

from ortools.sat.python import cp_model

from solvers.graph.heuristics.retention import RetentionModel
from solvers.graph.problem import ComputeGraph
from solvers.graph.schedule import Nodes
from solvers.graph.search import Search
from solvers.solution import PlanClass

LARGEST = 1500
"""Nodes beyond which the model, which grows with their square, is not built."""

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
    """The quickest schedule in the given order found within `budget` bytes, or None.

    First one thread searches for a proof, with three fifths of the time. What it leaves open goes
    to all threads and to neighbourhood search: to make the peak small, until something fits, and
    from there the time.

    Parameters
    ----------
    most_intervals
        How often a node may be computed, C above; 1 or more.
    time_limit
        Seconds for everything; None: run until the optimum with C intervals is proven. A search
        that runs to its proof returns the same schedule each time for the same arguments; one that
        the limit cuts short depends on the machine.
    workers
        Threads for what the first search leaves open; 1 or more.
    hint
        A legal schedule to start from, within the budget or not; by default every node once. If
        it fits, the result is no slower.
    forward_only
        Compute only forward nodes again, and only in the stages of backward nodes.

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
    if graph.replay(Nodes(plain)).peak_bytes <= budget:
        return plain
    start = plain if hint is None else tuple(hint)
    peak = graph.replay(Nodes(start)).peak_bytes
    best = _trimmed(graph, start, budget) if peak <= budget else None
    if len(graph) > LARGEST or graph.floor[0] > budget:
        return best
    for thorough, fit in ((True, False), (False, True), (False, False)):
        if fit and best is not None:
            continue
        model = RetentionModel(graph, budget, most_intervals, forward_only, fit)
        model.hint(start if best is None else best)
        found, finished = search.run(model, thorough)
        if found is not None and graph.replay(Nodes(found)).peak_bytes <= budget:
            found = _trimmed(graph, found, budget)
            if best is None or _time(graph, found) < _time(graph, best):
                best = found
        if (finished and not fit) or (fit and best is None):
            break
    return best


def offer_intervals(search: Search, seconds: float | None) -> None:
    """Offer a search of a compute graph what retention intervals find in `seconds`."""
    graph = search.operations.graph
    assert isinstance(graph, ComputeGraph)
    search.stage = "retention intervals"
    schedule = solve_intervals(
        graph,
        search.budget,
        time_limit=seconds,
        workers=search.limits.threads,
        forward_only=search.plan_class is PlanClass.FORWARD,
        interrupted=lambda: search.over,
    )
    if schedule is not None:
        search.offer_schedule(Nodes(schedule))


def _time(graph: ComputeGraph, schedule: Sequence[int]) -> int:
    return sum(graph.nodes[v].time for v in schedule)


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
        if not _fits(graph, tuple(kept[s] for s in sorted(kept)), budget):
            kept[step] = v
    return tuple(kept[s] for s in sorted(kept))


def _fits(graph: ComputeGraph, schedule: tuple[int, ...], budget: int) -> bool:
    # Every node is still computed before its first use, so no removal makes a schedule illegal.
    return graph.replay(Nodes(schedule)).peak_bytes <= budget


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
        self.workers, self.seed = workers, seed
        self.interrupted = interrupted or (lambda: False)

    def run(self, model: RetentionModel, thorough: bool) -> tuple[tuple[int, ...] | None, bool]:
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
