"""Every method on one graph and one budget, side by side."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from scheduler.common.errors import InfeasibleGraph, NoPlanFound, SchedulerError, UnsuitableMethod
from scheduler.common.jsontext import finite
from scheduler.common.text import format_bytes
from scheduler.costs.readers import Costs
from scheduler.planning.budget import Budget
from scheduler.planning.comparison import Comparison, MethodRow
from scheduler.planning.graph.solve import certified_graph, keep_all_solution, solve_graph
from scheduler.planning.search import Search, Watch
from scheduler.plans.graphplan import GraphPlan, problem_of
from scheduler.report.tables import WIDTH, fitted, format_percent, wrapped
from solvers.graph.problem import ComputeGraph
from solvers.graph.solution import Graph, PlanClass

__all__ = ["COMPARE_SECONDS", "GraphComparison", "GraphRow", "compare_graph"]

COMPARE_SECONDS = 30.0
"""What each method is given where the caller says nothing."""

_METHODS = (
    ("greedy", None),
    ("rounding", None),
    ("blocks", None),
    ("intervals", None),
    ("staged", PlanClass.FORWARD),
    ("staged", PlanClass.STAGED),
)


@dataclass(frozen=True, slots=True)
class GraphRow(MethodRow):
    """What one method does on the graph.

    Attributes
    ----------
    plan_class
        The class of plans that its bound holds for.
    lower_bound_time, gap
        No plan of the class takes less; how far the time is above that at most.
    status
        "optimal" in the class, or "feasible"; None where there is no plan.
    seconds
        How long it took.
    """

    plan_class: str | None = None
    lower_bound_time: float | None = None
    gap: float | None = None
    status: str | None = None
    seconds: float | None = None

    @property
    def label(self) -> str:
        """The method, and the class where it has one of several."""
        return f"{self.method} ({self.plan_class})" if self.method == "staged" else self.method


@dataclass(frozen=True, repr=False)
class GraphComparison(Comparison):
    """One row a method, made by `compare` of a graph; read like a `Comparison`.

    Attributes
    ----------
    rows
        "keep-all" first.
    size
        Of the graph: "73 nodes, 149 edges".
    time_limit
        Seconds that each method was given.
    """

    rows: tuple[GraphRow, ...]
    size: str = field(kw_only=True)
    time_limit: float = field(kw_only=True)

    @property
    def optimal(self) -> GraphRow:
        """The fastest plan that fits, proven ones first; the last row where none does."""
        fitting = [row for row in self.rows if row.fits and row.time is not None]
        return min(
            fitting,
            key=lambda row: (row.time, row.status != "optimal", row.gap),
            default=self.rows[-1],
        )

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        return {**asdict(self), "rows": [finite(_record(row)) for row in self.rows]}

    def table(self) -> list[list[object]]:
        """The rows as plain values under a header of their field names."""
        names = list(_record(self.rows[0]))
        return [list(names), *([getattr(row, name) for name in names] for row in self.rows)]

    def __repr__(self) -> str:
        fit = sum(row.fits for row in self.rows)
        return f"<GraphComparison: {fit} of {len(self.rows)} methods fit {self._budget()}>"

    def text(self, width: int = WIDTH) -> str:
        """The table and what is to be said of it, in lines of at most `width` characters."""
        header = ("method", "peak", "fits", "time", "overhead", "gap", "proven", "solved in")
        title = (
            f"{self.name or 'graph'}: {self.size}, keep-all peak "
            f"{format_bytes(self.keep_all_peak_bytes)}, {self._time(self.keep_all_time)} a step;",
            f"budget {self._budget()}, at most {self.time_limit:g} s a method",
        )
        rows = [self._graph_cells(row) for row in self.rows]
        lines = [*(wrapped(line, width) for line in title), "", *fitted(header, rows, width)]
        notes = [
            "Gap: how far a plan is above the proven bound of its class at most; proven: the class "
            "in which no plan is faster."
        ]
        notes += [f"{row.label}: {row.note}." for row in self.rows if row.note]
        said = [*notes, "", self.conclusion()]
        return "\n".join([*lines, "", *(wrapped(words, width) for words in said)])

    def conclusion(self) -> str:
        """What the best plan loses, in a sentence."""
        best = self.optimal
        if not best.fits or best.overhead is None or best.gap is None:
            sentence = self.set_by or "no method found a plan within this budget"
            return f"{sentence[0].upper()}{sentence[1:]}."
        if best.method == "keep-all":
            return "Nothing needs to be recomputed within this budget."
        lost = f"The best plan, of {best.label}, loses {format_percent(best.overhead)}"
        if best.status == "optimal":
            return f"{lost}: optimal in class {best.plan_class}."
        gap = format_percent(best.gap)
        return f"{lost}; not proven optimal, but within {gap} of it in class {best.plan_class}."

    def _graph_cells(self, row: GraphRow) -> tuple[str, ...]:
        seconds = "–" if row.seconds is None else f"{row.seconds:.1f} s"
        if row.peak_bytes is None or row.time is None or row.overhead is None or row.gap is None:
            return (row.label, "–", "no", "–", "–", "–", "–", seconds)
        return (
            row.label,
            format_bytes(row.peak_bytes),
            "yes" if row.fits else "no",
            self._time(row.time),
            format_percent(row.overhead),
            format_percent(row.gap),
            row.plan_class or "–" if row.status == "optimal" else "–",
            seconds,
        )


def compare_graph(costs: Costs, size: Budget, search: Search, watch: Watch) -> GraphComparison:
    """Each method for graphs within the same budget and time limit.

    An interrupted comparison has the rows so far; those after it say so.
    """
    limit = COMPARE_SECONDS if search.time_limit is None else search.time_limit
    graph = problem_of(costs)
    everything = certified_graph(
        costs, graph, keep_all_solution(graph), method="keep-all", budget_bytes=None
    )
    rows, proofs = [_row(everything, size)], []
    for method, plan_class in _METHODS:
        wanted = plan_class.value if plan_class else None
        if plan_class is PlanClass.FORWARD and _has_no_backward(graph):
            note = "no node is marked as backward, so this class recomputes nothing"
            rows.append(GraphRow(method, plan_class=wanted, note=note))
            continue
        if watch.is_interrupted:
            rows.append(GraphRow(method, plan_class=wanted, note="not tried: interrupted"))
            continue
        begin = time.perf_counter()
        how = replace(search, method=method, optimal_in=plan_class, time_limit=limit)
        try:
            rows.append(_row(solve_graph(costs, size, how, watch), size))
        except (InfeasibleGraph, NoPlanFound, UnsuitableMethod) as error:
            if isinstance(error, InfeasibleGraph):
                proofs.append(str(error))
            seconds = time.perf_counter() - begin
            rows.append(
                GraphRow(method, plan_class=wanted, seconds=seconds, note=_note(error, limit))
            )
    return GraphComparison(
        rows=tuple(rows),
        name=costs.name,
        layers=len(costs),
        size=costs.size,
        budget_bytes=size.asked,
        reserved_bytes=size.reserved,
        keep_all_peak_bytes=everything.peak_bytes,
        keep_all_time=everything.time,
        time_unit=costs.time_unit,
        time_limit=limit,
        set_by=proofs[-1] if proofs else "",
    )


def _row(plan: GraphPlan, size: Budget) -> GraphRow:
    return GraphRow(
        plan.method,
        plan_class=plan.plan_class,
        peak_bytes=plan.peak_bytes,
        fits=plan.peak_bytes <= size.available,
        time=plan.time,
        overhead=plan.overhead,
        lower_bound_time=plan.lower_bound_time,
        gap=plan.gap,
        status=plan.status,
        seconds=plan.solve_seconds,
    )


def _record(row: GraphRow) -> dict[str, object]:
    """The row without what only chains have."""
    of_chains = ("optimal_time_at_peak", "optimal_overhead_at_peak")
    return {key: value for key, value in asdict(row).items() if key not in of_chains}


def _note(error: SchedulerError, limit: float) -> str:
    if isinstance(error, InfeasibleGraph):
        # Below the floor no method can do anything, and the conclusion says so once.
        return "" if error.is_below_floor else f"no plan of class {error.plan_class!r} fits"
    if isinstance(error, NoPlanFound):
        return f"found no plan in {limit:g} s" if error.out_of_time else "ended without a plan"
    return str(error)


def _has_no_backward(graph: Graph) -> bool:
    return isinstance(graph, ComputeGraph) and not any(node.backward for node in graph.nodes)
