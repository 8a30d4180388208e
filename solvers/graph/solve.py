"""The way in to the graph solvers: methods by name, and the choice among them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from solvers.graph.greedy import by_distance, evicting
from solvers.graph.lowering import Operations, lower
from solvers.graph.problem import ComputeGraph
from solvers.graph.search import Search
from solvers.graph.solution import (
    Graph,
    GraphInfeasible,
    GraphSolution,
    PlanClass,
    Report,
    Steps,
)
from solvers.solution import Unsuitable

__all__ = ["METHODS", "MOST_OPERATIONS", "GraphMethod", "is_training", "solve"]

MOST_OPERATIONS = 1500
"""Beyond so many operations nothing is proven: the program grows with their square."""


@dataclass(frozen=True, slots=True)
class GraphMethod:
    """One way to make a schedule; see `solvers.registry.Method`."""

    name: str
    accepts: str
    promises: str


_ANY = "Any graph."

METHODS = MappingProxyType(
    {
        method.name: method
        for method in (
            GraphMethod(
                "keep-all",
                _ANY,
                "Runs nothing again: no schedule is faster, and in this order none needs more.",
            ),
            GraphMethod(
                "greedy",
                _ANY,
                "Frees what is cheapest to do without whenever memory is short; no proof.",
            ),
            GraphMethod(
                "rounding",
                f"Graphs of at most {MOST_OPERATIONS:,} operations.",
                "The best schedule rounded from the relaxation of the staged program, with its "
                "bound.",
            ),
            GraphMethod(
                "intervals",
                "Compute graphs.",
                "The best schedule in which a node is retained at most twice, by constraint "
                "programming; no bound.",
            ),
            GraphMethod(
                "order",
                "Compute graphs.",
                "Runs nothing again, in an order of small peak; no proof where it does not fit.",
            ),
            GraphMethod(
                "staged",
                f"Graphs of at most {MOST_OPERATIONS:,} operations.",
                "The fastest schedule of its class, by the staged program, proven or with a "
                "certified gap.",
            ),
            GraphMethod(
                "exhaustive",
                "Graphs of a dozen operations or so.",
                "The fastest of all schedules, by searching all.",
            ),
            GraphMethod(
                "auto",
                _ANY,
                "The fastest schedule that the methods find together, with the best bound.",
            ),
        )
    }
)
"""Methods by name, baselines first."""


def default_class(graph: Graph) -> PlanClass:
    """The class that is solved in where none is asked for."""
    return PlanClass.FORWARD if is_training(graph) else PlanClass.STAGED


def is_training(graph: Graph) -> bool:
    """Whether the graph has a backward part."""
    return not isinstance(graph, ComputeGraph) or any(node.backward for node in graph.nodes)


def solve(
    graph: Graph,
    budget: int,
    *,
    method: str = "auto",
    optimal_in: PlanClass | None = None,
    time_limit: float | None = None,
    threads: int = 1,
    report: Report | None = None,
    start: Steps | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> GraphSolution:
    """The fastest schedule of a method within `budget` bytes.

    Parameters
    ----------
    graph, budget
        The problem.
    method
        One of `METHODS`.
    optimal_in
        The class to look in and to prove in. None: forward for graphs with a backward part,
        and staged, in an order of its own choice, for others.
    time_limit
        Seconds, after which the best schedule so far is returned with its gap.
    threads
        Of HiGHS and CP-SAT.
    report
        Is told of every improvement.
    start
        A known schedule.
    interrupted
        Asked now and then; True ends the search as a time limit does. So does Ctrl-C.

    Raises
    ------
    GraphInfeasible
        Nothing fits, or nothing was found; it says which.
    Unsuitable
        The method does not accept the graph.
    KeyError
        There is no such method.
    """
    if method not in METHODS:
        raise KeyError(method)
    operations = lower(graph)
    asked = _Asked(graph, operations, budget, time_limit, threads, report, interrupted)
    if method in ("intervals", "order") and not isinstance(graph, ComputeGraph):
        raise Unsuitable(f"method {method!r} takes compute graphs, not layers with edges")
    if method == "exhaustive" or (method == "auto" and optimal_in is PlanClass.ANY):
        return _any(asked)
    if optimal_in is PlanClass.ANY:
        raise Unsuitable(
            f"method {method!r} proves nothing in class 'any'; methods 'auto' and 'exhaustive' do"
        )
    floor, node = operations.floor
    if budget < floor:
        # The order in which backwards run sets which gradients are live beside a layer.
        within = PlanClass.ANY if isinstance(graph, ComputeGraph) else PlanClass.STAGED
        raise GraphInfeasible(floor, node, within)
    if method == "auto" and optimal_in is None and not is_training(graph):
        return _in_free_order(asked, start)
    search = asked.search(optimal_in or default_class(graph))
    _begin(search, start)
    if not search.proven and method != "keep-all":
        search.run(_WORK[method])
    return search.solution()


@dataclass(frozen=True, slots=True)
class _Asked:
    """What was asked, to begin as many searches as are needed within one time limit."""

    graph: Graph
    operations: Operations
    budget: int
    time_limit: float | None
    threads: int
    report: Report | None
    interrupted: Callable[[], bool] | None
    began: float = field(default_factory=time.monotonic)

    def search(self, plan_class: PlanClass, operations: Operations | None = None) -> Search:
        left = None
        if self.time_limit is not None:
            left = max(0.0, self.time_limit - (time.monotonic() - self.began))
        return Search(
            self.operations if operations is None else operations,
            self.budget,
            plan_class,
            time_limit=left,
            threads=self.threads,
            report=self.report,
            interrupted=self.interrupted,
        )


def _begin(search: Search, start: Steps | None) -> None:
    """Offer what is known beforehand: nothing run again, and the caller's schedule."""
    operations = search.operations
    search.offer(operations.everything())
    if start is not None and operations.follows(operations.runs(start), search.plan_class):
        search.offer_steps(start)


def _any(asked: _Asked) -> GraphSolution:
    """The optimum over all schedules: of a small graph, or where nothing need run again."""
    from solvers.graph.exhaustive import solve_any

    search = asked.search(PlanClass.STAGED)
    _begin(search, None)
    if search.time == search.least:
        return search.solution()
    return solve_any(asked.graph, asked.budget, interrupted=lambda: search.over)


def _in_free_order(asked: _Asked, start: Steps | None) -> GraphSolution:
    """Graphs without a backward part: the order matters more than what is run again."""
    from solvers.graph.order import reorder, reordered

    assert isinstance(asked.graph, ComputeGraph)
    search = asked.search(PlanClass.STAGED)
    _begin(search, start)
    if search.over:
        return search.solution()
    search.stage = "order"
    order = reorder(asked.graph, asked.budget, interrupted=lambda: search.over)
    search.offer_steps(order)
    if search.over:
        return search.solution()
    graph = reordered(asked.graph, order)
    inner = asked.search(PlanClass.STAGED, lower(graph))
    inner.run(_auto)
    result = inner.solution()
    steps = tuple(order[v] for v in result.steps)  # type: ignore[index]
    return replace(result, steps=steps)


def _greedy(search: Search) -> None:
    search.stage = "eviction"
    small = len(search.operations) <= MOST_OPERATIONS
    powers = (1.0, 0.5, 2.0, 0.0) if small else (1.0, 0.5)
    for power in powers:
        weight = by_distance(search.operations, power)
        # The first is quick on all but the largest graphs: some schedule, even out of time.
        stop = _never if small and power == powers[0] else (lambda: search.over)
        runs = evicting(search.operations, search.budget, search.plan_class, weight, stop)
        if runs is not None:
            search.offer(runs)
        if search.over:
            return


def _never() -> bool:
    return False


def _intervals(search: Search) -> None:
    from solvers.graph.intervals import solve_intervals

    graph = search.operations.graph
    assert isinstance(graph, ComputeGraph)
    search.stage = "retention intervals"
    schedule = solve_intervals(
        graph,
        search.budget,
        time_limit=search.remaining(),
        workers=search.threads,
        forward_only=search.plan_class is PlanClass.FORWARD,
        interrupted=lambda: search.over,
    )
    if schedule is not None:
        search.offer_steps(schedule)


def _order(search: Search) -> None:
    from solvers.graph.order import reorder

    graph = search.operations.graph
    assert isinstance(graph, ComputeGraph)
    search.stage = "order"
    search.offer_steps(reorder(graph, search.budget, interrupted=lambda: search.over))


def _rounding(search: Search) -> None:
    _check_size(search, "rounding")
    from solvers.graph.staged import relax

    relax(search)


def _staged(search: Search) -> None:
    _check_size(search, "staged")
    _prove(search)


def _auto(search: Search) -> None:
    if len(search.operations) > MOST_OPERATIONS:
        _greedy(search)
        search.note = (
            f"{len(search.operations):,} operations are more than the {MOST_OPERATIONS:,} about "
            "which something can be proven: this is the best of several evictions"
        )
        return
    _prove(search)


def _prove(search: Search) -> None:
    from solvers.graph.staged import prove

    _greedy(search)
    if not search.over:
        prove(search)


def _check_size(search: Search, method: str) -> None:
    n = len(search.operations)
    if n > MOST_OPERATIONS:
        raise Unsuitable(
            f"method {method!r} takes at most {MOST_OPERATIONS:,} operations, these are {n:,}; "
            "method 'auto' then evicts, without a proof"
        )


_WORK: dict[str, Callable[[Search], None]] = {
    "greedy": _greedy,
    "rounding": _rounding,
    "intervals": _intervals,
    "order": _order,
    "staged": _staged,
    "auto": _auto,
}
