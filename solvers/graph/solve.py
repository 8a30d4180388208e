"""The way in to the graph solvers: methods by name, and the choice among them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from solvers.graph.lowering import Operations, lower
from solvers.graph.methods import METHODS, WORK, find_best
from solvers.graph.problem import ComputeGraph, LayerGraph
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

__all__ = ["default_class", "is_training", "solve"]


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
    if method == "blocks" and not isinstance(graph, LayerGraph):
        raise Unsuitable(f"method {method!r} takes layers with edges, not compute graphs")
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
        search.run(WORK[method])
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

    def search(
        self,
        plan_class: PlanClass,
        operations: Operations | None = None,
        seconds: float | None = None,
    ) -> Search:
        """A search of these operations, by default the graph's; `seconds`: not all that is left."""
        left = seconds
        if left is None and self.time_limit is not None:
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
    from solvers.graph.exact.exhaustive import solve_any

    search = asked.search(PlanClass.STAGED)
    _begin(search, None)
    if search.time == search.least:
        return search.solution()
    return solve_any(asked.graph, asked.budget, interrupted=lambda: search.over)


def _in_free_order(asked: _Asked, start: Steps | None) -> GraphSolution:
    """Graphs without a backward part: the order matters more than what is run again.

    First an order of small peak; where that is not enough, the better of what can be done in it
    and in the given one. Both claim what they prove for their own order only.
    """
    from solvers.graph.heuristics.order import original_schedule, reorder, reordered

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
    left = search.remaining()
    inner = asked.search(
        PlanClass.STAGED,
        lower(reordered(asked.graph, order)),
        None if left is None else left / 2,
    )
    _begin(inner, None)
    inner.run(find_best)
    if not search.over:
        search.run(find_best)
    if inner.time is None or (search.time is not None and search.time <= inner.time):
        return search.solution()
    result = inner.solution()
    steps = [step for step in result.steps if isinstance(step, int)]  # those of a compute graph
    return replace(result, steps=original_schedule(order, steps))
