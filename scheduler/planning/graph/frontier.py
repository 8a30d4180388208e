"""What memory costs in time on a graph: a sweep over budgets."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from scheduler.common.checks import plain
from scheduler.common.errors import InfeasibleGraph, InvalidBudget, NoPlanFound
from scheduler.common.jsontext import finite
from scheduler.common.text import format_both, format_bytes, format_exact, format_time, shown
from scheduler.costs.readers import Costs
from scheduler.planning.budget import Budget, read_budget
from scheduler.planning.frontier import Frontier
from scheduler.planning.graph.solve import (
    below_floor,
    certified_graph,
    keep_all_solution,
    solve_problem,
)
from scheduler.planning.search import Search, Watch
from scheduler.plans.file.steps import first_runs
from scheduler.plans.graphplan import GraphPlan, problem_of
from scheduler.report.tables import WIDTH, fitted, format_percent, spread, wrapped
from solvers.graph.lowering import lower
from solvers.graph.solution import Graph, GraphSolution, PlanClass, least_time

__all__ = ["ROW_FIELDS", "GraphFrontier", "read_sweep"]

POINTS = 8
"""Budgets of a sweep where the caller says nothing."""

MOST_POINTS = 1_000
"""Budgets of a sweep at most: each is solved on its own."""

POINT_SECONDS = 30.0
"""What each of them is given where the caller says nothing."""

ROW_FIELDS = ("peak_bytes", "time", "overhead", "lower_bound_time", "gap", "class", "proven")

_WIDTH = {each: width for width, each in enumerate(PlanClass)}


class _Swept(NamedTuple):
    budget: int
    solution: GraphSolution
    method: str
    seconds: float | None


def read_sweep(points: object) -> int:
    """How many budgets to solve for; None: `POINTS`.

    Raises
    ------
    InvalidBudget
        It is not a whole number from 1 to `MOST_POINTS`.
    """
    value = plain(points)
    if value is None:
        return POINTS
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidBudget(f"points must be a whole number of at least 1, got {shown(value)}")
    if value > MOST_POINTS:
        raise InvalidBudget(
            f"points must be at most {MOST_POINTS:,} for a graph, each a budget to solve for, got "
            f"{shown(value)}; give fewer"
        )
    return value


class GraphFrontier(Frontier):
    """Pairs of peak bytes and time of a graph, peak ascending; made by `frontier`.

    It is read like a `Frontier`, but it is a sweep, so `exact` is false: between two points there
    may be others.

    Budgets are evenly spread from the floor, which every plan needs, to the peak of the plan that
    recomputes nothing. They are solved in ascending order: a plan for one fits the next, and its
    search starts there. Afterwards bounds go down: a time that no plan within a budget can beat,
    none within a smaller one can.

    Attributes
    ----------
    costs
        What was solved.
    points
        Pairs (peak bytes, time in `time_unit`), each reached by a plan; the time falls.
    gaps
        For each point how far its time is above the proven bound of its class at most.
    plans
        The plan of each point, with its class, bound and the budget that it was solved for.
    failed
        Pairs (budget in bytes, sentence) of the budgets without a plan, and why.
    interrupted
        Did the sweep end early? It went from the tightest budget up.
    keep_all_peak_bytes, keep_all_time
        Of the plan that recomputes nothing, which is the last point.
    time_unit
        Unit of every time.
    """

    def __init__(self, costs: Costs, points: int, search: Search, watch: Watch) -> None:
        self.costs = costs
        self.time_unit = costs.time_unit
        self.method = search.method
        self._graph = graph = problem_of(costs)
        everything = keep_all_solution(graph)
        self.keep_all_peak_bytes = everything.peak_bytes
        self.keep_all_time = everything.time / costs.ticks_per_unit
        self.exact = False
        self.failed: list[tuple[int, str]] = []
        if search.time_limit is None:
            search = replace(search, time_limit=POINT_SECONDS)
        swept = self._sweep(_budgets(graph, everything.peak_bytes, points), search, watch)
        self.interrupted = watch.is_interrupted
        swept.append(_Swept(everything.peak_bytes, everything, "keep-all", None))
        self._swept = _lowered(swept)
        plans: list[GraphPlan] = []
        for each in self._swept:
            plan = self._certified(each, each.budget)
            if not plans or plan.time < plans[-1].time:
                plans.append(plan)
        self.plans = tuple(plans)
        self.points = tuple((plan.peak_bytes, plan.time) for plan in plans)
        self.gaps = tuple(plan.gap for plan in plans)

    @property
    def points_are(self) -> str:
        """What the points are, as the legend of a picture says it."""
        return "plans of a sweep"

    @property
    def bounds(self) -> Sequence[tuple[int, float]]:
        """Pairs (budget in bytes, time that no plan of its class within it beats), ascending."""
        return [
            (plan.budget_bytes or plan.peak_bytes, plan.lower_bound_time) for plan in self.plans
        ]

    def _sweep(self, budgets: Sequence[int], search: Search, watch: Watch) -> list[_Swept]:
        swept: list[_Swept] = []
        for budget in budgets:
            if watch.is_interrupted:
                break
            begin = time.perf_counter()
            start = swept[-1].solution.steps if swept else None
            try:
                found = solve_problem(self._graph, Budget(budget, 0), search, watch, start)
            except (InfeasibleGraph, NoPlanFound) as error:
                self.failed.append((budget, str(error)))
                continue
            swept.append(_Swept(budget, found, search.method, time.perf_counter() - begin))
        return swept

    def plan(
        self, budget: object = None, *, budget_gb: object = None, reserved: object = 0
    ) -> GraphPlan:
        """The fastest plan of the sweep within a budget, without solving again.

        Its bound is that of the next larger budget of the sweep; solving for this very budget may
        find a faster plan, and proves more.

        Parameters
        ----------
        budget
            Bytes, or text such as ``"40GB"`` or ``"40GiB"``.
        budget_gb
            A number of GB, 10⁹ bytes each, instead.
        reserved
            Bytes, or text, that come off the budget first.

        Raises
        ------
        InvalidBudget
            The budget is missing, given twice, or no size.
        InfeasibleGraph
            The budget is below the floor of all plans.
        NoPlanFound
            The sweep has no plan within the budget.
        """
        size = read_budget(budget_gb, budget, reserved)
        fitting = [each for each in self._swept if each.solution.peak_bytes <= size.available]
        if not fitting:
            below = below_floor(self._graph, size, self.method)
            smallest = min(each.solution.peak_bytes for each in self._swept) + size.reserved
            raise below or NoPlanFound(
                f"the sweep has no plan within a budget of {format_both(size.asked)}: its smallest "
                f"needs {format_exact(smallest)}; solve for this budget"
            )
        best = min(fitting, key=lambda each: (each.solution.time, each.solution.peak_bytes))
        above = [each.solution for each in self._swept if each.budget >= size.available]
        bound = _bound(best.solution, above, least_time(self._graph))
        solution = replace(best.solution, lower_bound_time=bound)
        return self._certified(best._replace(solution=solution), size.asked, size.reserved)

    def _certified(self, swept: _Swept, budget: int, reserved: int = 0) -> GraphPlan:
        return certified_graph(
            self.costs,
            self._graph,
            swept.solution,
            method=swept.method,
            budget_bytes=budget,
            reserved_bytes=reserved,
            seconds=swept.seconds,
        )

    def to_dict(self, points: Sequence[tuple[int, float]] | None = None) -> dict[str, Any]:
        """The sweep, or some `points` of it, as JSON values."""
        wanted = set(self.points if points is None else points)
        return {
            **super().to_dict(),
            "points": [
                finite(dict(zip(ROW_FIELDS, row, strict=True)))
                for row, point in zip(self.rows(), self.points, strict=True)
                if point in wanted
            ],
            "failed": [{"budget_bytes": budget, "why": why} for budget, why in self.failed],
            "interrupted": self.interrupted,
        }

    def rows(self) -> list[tuple[object, ...]]:
        """For each point peak, time, overhead, lower bound, gap, class, and whether proven."""
        return [
            (
                plan.peak_bytes,
                plan.time,
                plan.overhead,
                plan.lower_bound_time,
                plan.gap,
                plan.plan_class,
                plan.status == "optimal",
            )
            for plan in self.plans
        ]

    def __repr__(self) -> str:
        count = "1 point" if len(self) == 1 else f"{len(self)} points"
        proven = sum(plan.status == "optimal" for plan in self.plans)
        least, most = format_bytes(self.points[0][0]), format_bytes(self.points[-1][0])
        return f"<GraphFrontier: {count}, {proven} of them proven, {least} to {most}>"

    def table(self, most: int, width: int = WIDTH) -> str:
        """A table of at most `most` points, evenly chosen, and what failed.

        Its lines have at most `width` characters.
        """
        header = ("peak", "of keep-all", "time", "overhead", "gap", "optimal in class")
        rows = [
            (
                format_bytes(plan.peak_bytes),
                format_percent(
                    plan.peak_bytes / self.keep_all_peak_bytes if self.keep_all_peak_bytes else 1
                ),
                format_time(plan.time, self.time_unit),
                format_percent(plan.overhead),
                format_percent(plan.gap),
                plan.optimal_in or "not proven",
            )
            for plan in spread(self.plans, most)
        ]
        title = (
            f"{self.costs.name or 'graph'}: {self.costs.size}; keep-all needs "
            f"{format_bytes(self.keep_all_peak_bytes)} and "
            f"{format_time(self.keep_all_time, self.time_unit)} a step"
        )
        notes = [f"{why[0].upper()}{why[1:]}." for _, why in self.failed]
        if self.interrupted:
            notes.append("Interrupted: larger budgets were not tried.")
        return "\n".join(
            [
                wrapped(title, width),
                *fitted(header, rows, width, left=0),
                *(wrapped(note, width) for note in notes),
            ]
        )


def _budgets(graph: Graph, most: int, points: int) -> list[int]:
    """Budgets from the floor up, evenly spread, without `most` itself, which needs no search."""
    floor, _ = lower(graph).floor
    spread = [floor + (most - floor) * i // max(points - 1, 1) for i in range(points - 1)]
    return [budget for budget in dict.fromkeys(spread) if budget < most]


def _lowered(swept: Sequence[_Swept]) -> list[_Swept]:
    """Budgets ascending, each with the best bound of those not below it."""
    solutions: list[GraphSolution] = []
    for each in reversed(swept):
        bound = _bound(each.solution, solutions, each.solution.lower_bound_time)
        solutions.append(replace(each.solution, lower_bound_time=bound))
    return [
        each._replace(solution=solution)
        for each, solution in zip(swept, reversed(solutions), strict=True)
    ]


def _bound(solution: GraphSolution, others: Sequence[GraphSolution], least: int) -> int:
    """The best bound for the class of `solution` among those of `others`, `least` at least.

    A bound holds for a narrower class too; and classes other than "any" are those of one order.
    """
    bounds = [
        other.lower_bound_time
        for other in others
        if other.bound_class is PlanClass.ANY
        or (
            _WIDTH[other.bound_class] >= _WIDTH[solution.bound_class]
            and first_runs(other.steps) == first_runs(solution.steps)
        )
    ]
    return max([least, *bounds])
