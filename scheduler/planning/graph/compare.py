"""Every method on one graph and one budget, side by side."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from scheduler.common.errors import InfeasibleGraph, NoPlanFound, SchedulerError, UnsuitableMethod
from scheduler.costs.readers import Costs
from scheduler.planning.certify import certified
from scheduler.planning.comparison import COLUMNS, Comparison, MethodRow, View, row_of
from scheduler.planning.engine import Engine, solve
from scheduler.planning.request import Budget, Request
from scheduler.plans.plan import Plan
from scheduler.report.tables import format_percent
from solvers.solution import PlanClass, Solution

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

_FIELDS = (
    "method",
    "peak_bytes",
    "fits",
    "time",
    "overhead",
    "note",
    "plan_class",
    "lower_bound_time",
    "gap",
    "status",
    "seconds",
)
_COLUMNS = (*COLUMNS, ("gap", "gap"), ("proven", "proven_in"), ("solved in", "seconds"))
_NOTE = (
    "Gap: how far a plan is above the proven bound of its class at most; proven: the class in "
    "which no plan is faster, of forward and staged in the order in which its operations first run."
)


def keep_all(graph: Any) -> Solution[Any]:
    """The plan that runs everything once: no plan of any class is faster."""
    return Solution.of(graph, graph.keep_all(), plan_class=PlanClass.ANY)


def compare_graph(
    engine: Engine, costs: Costs, graph: Any, size: Budget, request: Request
) -> Comparison:
    """Each method for graphs within the same budget and time limit.

    An interrupted comparison has the rows so far; those after it say so.
    """
    limits = request.limits
    limit = COMPARE_SECONDS if limits.time_limit is None else limits.time_limit
    everything = certified(costs, graph, keep_all(graph), method="keep-all")
    rows, proofs = [_row(everything, size)], []
    for name, plan_class in _METHODS:
        wanted = plan_class.value if plan_class else None
        if plan_class is PlanClass.FORWARD and not graph.is_training:
            note = "no node is marked as backward, so this class recomputes nothing"
            rows.append(MethodRow(name, plan_class=wanted, note=note))
            continue
        if request.is_interrupted:
            rows.append(MethodRow(name, plan_class=wanted, note="not tried: interrupted"))
            continue
        begin = time.perf_counter()
        how = replace(limits, optimal_in=plan_class, time_limit=limit)
        try:
            plan = solve(engine, costs, graph, size, Request(engine.methods[name], how))
            rows.append(_row(plan, size))
        except (InfeasibleGraph, NoPlanFound, UnsuitableMethod) as error:
            if isinstance(error, InfeasibleGraph):
                proofs.append(str(error))
            seconds = time.perf_counter() - begin
            note = _note(error, limit)
            rows.append(MethodRow(name, plan_class=wanted, seconds=seconds, note=note))
    best = min(
        (row for row in rows if row.fits and row.time is not None),
        key=lambda row: (row.time, row.status != "optimal", row.gap),
        default=rows[-1],
    )
    set_by = proofs[-1] if proofs else ""
    return Comparison(
        rows=tuple(rows),
        name=costs.name,
        layers=len(costs),
        budget_bytes=size.asked,
        reserved_bytes=size.reserved,
        keep_all_peak_bytes=everything.peak_bytes,
        keep_all_time=everything.time,
        time_unit=costs.time_unit,
        set_by=set_by,
        optimal=best,
        size=costs.size,
        view=View(_FIELDS, _COLUMNS, (_NOTE,), _conclusion(best, set_by)),
        time_limit=limit,
    )


def _conclusion(best: MethodRow, set_by: str) -> str:
    """What the best plan loses, in a sentence."""
    if not best.fits or best.overhead is None or best.gap is None:
        sentence = set_by or "no method found a plan within this budget"
        return f"{sentence[0].upper()}{sentence[1:]}."
    if best.method == "keep-all":
        return "Nothing needs to be recomputed within this budget."
    lost = f"The best plan, of {best.label}, loses {format_percent(best.overhead)}"
    if best.status == "optimal":
        order = " in the given order" if best.plan_class == PlanClass.STAGED.value else ""
        return f"{lost}: optimal in class {best.plan_class}{order}."
    gap = format_percent(best.gap)
    return f"{lost}; not proven optimal, but within {gap} of it in class {best.plan_class}."


def _row(plan: Plan, size: Budget) -> MethodRow:
    return row_of(
        plan,
        size.available,
        plan_class=plan.plan_class,
        lower_bound_time=plan.lower_bound_time,
        gap=plan.gap,
        status=plan.status,
        seconds=plan.solve_seconds,
    )


def _note(error: SchedulerError, limit: float) -> str:
    if isinstance(error, InfeasibleGraph):
        # Below the floor no method can do anything, and the conclusion says so once.
        if error.is_below_floor:
            return ""
        return f"no plan of class {error.plan_class!r} fits{error.order}"
    if isinstance(error, NoPlanFound):
        return f"found no plan in {limit:g} s" if error.out_of_time else "ended without a plan"
    return str(error)
