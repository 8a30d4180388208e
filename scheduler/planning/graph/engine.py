"""The engine of graphs: searches that tell how far they are, and sweeps over budgets."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scheduler.common.errors import (
    InfeasibleGraph,
    InvalidBudget,
    NoPlanFound,
    SchedulerError,
    UnknownMethod,
    UnsuitableMethod,
)
from scheduler.common.text import did_you_mean, shown
from scheduler.costs.readers import Costs
from scheduler.planning.comparison import Comparison
from scheduler.planning.engine import Run, budget_of, read_request, solution_of
from scheduler.planning.frontier import Frontier
from scheduler.planning.graph.compare import compare_graph, keep_all
from scheduler.planning.graph.refusal import below_floor, refusal
from scheduler.planning.request import Budget, Request, Watch, read_count
from scheduler.planning.sweep import Sweep, Swept, lowered
from scheduler.plans.plan import Plan
from solvers.chain.methods import METHODS as OF_CHAINS
from solvers.graph.lowering import lower
from solvers.graph.methods import METHODS
from solvers.graph.problem import Graph
from solvers.methods import Method
from solvers.solution import Infeasible

POINTS = 8
"""Budgets of a sweep where the caller says nothing."""

MOST_POINTS = 1_000
"""Budgets of a sweep at most: each is solved on its own."""

POINT_SECONDS = 30.0
"""What each of them is given where the caller says nothing."""

_REPORT_SECONDS = 10.0
"""The same, and for each method, for a report."""


class _GraphEngine:
    """See `scheduler.planning.engine.Engine`."""

    methods: Mapping[str, Method] = METHODS
    foreign = (
        "{} limits the sets of the solver of chains, and this is a graph; give a time_limit instead"
    )
    listens = True
    sweeps = True

    def method(self, name: object) -> Method:
        if name == "optimal":
            return METHODS["auto"]
        if isinstance(name, str) and name in METHODS:
            return METHODS[name]
        names = ", ".join(METHODS)
        if isinstance(name, str) and name in OF_CHAINS:
            raise UnsuitableMethod(
                f"method {name!r} is for chains, and this is a graph (its methods are {names})"
            )
        raise UnknownMethod(
            f"there is no method {shown(name)}{did_you_mean(name, METHODS)} "
            f"(the methods for graphs are {names})"
        )

    def refusal(
        self, problem: Graph, error: Infeasible, size: Budget, request: Request
    ) -> SchedulerError:
        return refusal(problem, error, size, request)

    def frontier(self, costs: Costs, problem: Any, request: Request, points: object) -> Frontier:
        count = _read_points(points)
        if request.limits.time_limit is None:
            limits = replace(request.limits, time_limit=POINT_SECONDS)
            request = replace(request, limits=limits)
        everything = keep_all(problem)
        found: list[Swept] = []
        failed: list[tuple[int, str]] = []
        for budget in _budgets(problem, everything.peak_bytes, count):
            if request.is_interrupted:
                break
            begin = time.perf_counter()
            start = found[-1].solution.schedule if found else None
            how = replace(request, limits=replace(request.limits, start=start))
            try:
                solution = solution_of(self, problem, Budget(budget), how)
            except (InfeasibleGraph, NoPlanFound) as error:
                failed.append((budget, str(error)))
                continue
            seconds = time.perf_counter() - begin
            found.append(Swept(budget, solution, request.method.name, seconds))
        interrupted = request.is_interrupted
        found.append(Swept(everything.peak_bytes, everything, "keep-all", None))
        trades = Sweep(
            problem,
            lowered(found),
            failed=failed,
            interrupted=interrupted,
            below=lambda size: below_floor(problem, size, request.method.name),
        )
        return Frontier(costs, problem, trades)

    def compare(
        self,
        costs: Costs,
        problem: Any,
        size: Budget,
        request: Request,
        against: str | Iterable[str],
    ) -> Comparison:
        if against:
            raise UnsuitableMethod(
                "settings of frameworks are compared on a chain of layers, and these costs are a "
                "graph; leave out against"
            )
        return compare_graph(self, costs, problem, size, request)

    def around(
        self,
        plan: Plan,
        costs: Costs,
        run: Run,
        watch: Watch,
        points: object,
        limits: Mapping[str, Any],
    ) -> tuple[Frontier, Comparison]:
        problem: Any = plan.problem(costs)
        if limits["time_limit"] is None:
            limits = {**limits, "time_limit": _REPORT_SECONDS}
        request = read_request(self, "auto", len(costs), watch, **limits)
        return (
            run("the frontier", lambda: self.frontier(costs, problem, request, points)),
            run(
                "all methods",
                lambda: self.compare(costs, problem, budget_of(plan), request, ()),
            ),
        )


GRAPH = _GraphEngine()


def _read_points(points: object) -> int:
    if points is None:
        return POINTS
    count = read_count("points", points, 1)
    if count > MOST_POINTS:
        raise InvalidBudget(
            f"points must be at most {MOST_POINTS:,} for a graph, each a budget to solve for, got "
            f"{shown(count)}; give fewer"
        )
    return count


def _budgets(graph: Graph, most: int, points: int) -> Sequence[int]:
    """Budgets from the floor up, evenly spread, without `most` itself, which needs no search."""
    floor, _ = lower(graph).floor
    spread = [floor + (most - floor) * i // max(points - 1, 1) for i in range(points - 1)]
    return [budget for budget in dict.fromkeys(spread) if budget < most]
