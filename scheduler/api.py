"""The way in: take costs, choose a solver, replay what it finds, and wrap it."""

from __future__ import annotations

import time
from collections.abc import Callable

from scheduler.certify import certified, infeasible
from scheduler.comparison import Comparison, MethodRow
from scheduler.costs import CostGraph
from scheduler.errors import UnsuitableMethod
from scheduler.limits import (
    Budget,
    check_unlimited,
    find_method,
    read_budget,
    read_memory_limit,
    read_points,
)
from scheduler.pareto import Frontier
from scheduler.plan import Plan, excess
from scheduler.readers import as_costs
from scheduler.report.plantext import peak_text
from scheduler.report.table import format_percent
from solvers import frontier as nested
from solvers import registry
from solvers.problem import Chain
from solvers.replay import replay
from solvers.solution import Infeasible, Solution, Status, Unsuitable

__all__ = ["Comparison", "Frontier", "MethodRow", "Plan", "compare", "frontier", "solve"]

_Optimum = Callable[[int], Solution]

_WHOLE_FRONTIER = 120
"""Chains up to this long are compared by one frontier; longer ones are solved at each peak."""


def solve(
    layer_costs: object,
    budget_gb: object = None,
    *,
    budget: object = None,
    method: str = "optimal",
    reserved: object = 0,
    input_bytes: int | None = None,
    time_unit: str | None = None,
    max_points: int | None = None,
    memory_limit: object = None,
) -> Plan:
    """The plan of a method that loses the least time within a memory budget.

    Parameters
    ----------
    layer_costs
        A `CostGraph`, a list of `LayerCost` or of mappings, a mapping of columns, a pandas
        DataFrame, a networkx DiGraph that is a path, or the path of a cost file. Never changed.
    budget_gb
        A number of GB, 10⁹ bytes each.
    budget
        Instead of `budget_gb`: bytes, or text such as ``"40GB"`` (10⁹) or ``"40GiB"`` (2³⁰).
    method
        "optimal", or a baseline: see `solvers.registry.METHODS`.
    reserved
        Bytes, or text, that come off the budget before solving: weights, optimizer state, margin.
    input_bytes, time_unit
        Size of the chain's input and unit of its times, before what the costs say.
    max_points
        At most about so many points a set of method "optimal" (16 or more). A plan made from
        thinned sets is valid, and carries the gap to a certified bound.
    memory_limit
        Bytes, or text, that these sets may take before they are thinned; default 1 GiB.

    Returns
    -------
    Plan
        Replayed against the budget.

    Raises
    ------
    InvalidCosts
        The costs have no meaning; the message names the layer and the field.
    InvalidBudget
        The budget, the reserve or a limit is missing or no size.
    InfeasibleBudget
        No plan of the method fits; carries the smallest budget that does, and what sets it.
    UnknownMethod, UnsuitableMethod
        There is no such method, or it does not accept these costs.
    """
    chosen = find_method(method)
    check_unlimited(chosen, max_points, memory_limit)
    size = read_budget(budget_gb, budget, reserved)
    points = read_points(max_points)
    costs = as_costs(layer_costs, input_bytes=input_bytes, time_unit=time_unit)
    chain = costs.to_chain()
    limit = read_memory_limit(memory_limit, len(chain))
    start = time.perf_counter()
    try:
        if chosen.name == "optimal":
            solution = registry.optimal(
                chain, size.available, max_points=points, memory_limit=limit
            )
        else:
            solution = chosen.solve(chain, size.available)
    except Infeasible as error:
        raise infeasible(
            chain,
            error,
            method=chosen.name,
            budget_bytes=size.asked,
            reserved_bytes=size.reserved,
        ) from None
    except Unsuitable as error:
        raise UnsuitableMethod(str(error)) from None
    return certified(
        costs,
        chain,
        solution,
        method=chosen.name,
        budget_bytes=size.asked,
        reserved_bytes=size.reserved,
        seconds=time.perf_counter() - start,
    )


def frontier(
    layer_costs: object,
    *,
    input_bytes: int | None = None,
    time_unit: str | None = None,
    max_points: int | None = None,
    memory_limit: object = None,
) -> Frontier:
    """Every optimal pair of peak bytes and time, and the plan for any budget without solving again.

    Parameters
    ----------
    layer_costs, input_bytes, time_unit, max_points, memory_limit
        As for `solve`.

    Raises
    ------
    InvalidCosts, InvalidBudget
        As for `solve`.
    """
    points = read_points(max_points)
    costs = as_costs(layer_costs, input_bytes=input_bytes, time_unit=time_unit)
    return Frontier(costs, points, read_memory_limit(memory_limit, len(costs)))


def compare(
    layer_costs: object,
    budget_gb: object = None,
    *,
    budget: object = None,
    reserved: object = 0,
    input_bytes: int | None = None,
    time_unit: str | None = None,
    max_points: int | None = None,
    memory_limit: object = None,
) -> Comparison:
    """What each method makes of the budget, and what the optimum makes of each method's peak.

    All methods but "brute", which finds what "optimal" finds. A method that has no plan within
    the budget shows its plan of the smallest peak.

    Parameters
    ----------
    layer_costs, budget_gb, budget, reserved, input_bytes, time_unit, max_points, memory_limit
        As for `solve`.

    Raises
    ------
    InvalidCosts, InvalidBudget
        As for `solve`. A budget that nothing fits is no error here.
    """
    size = read_budget(budget_gb, budget, reserved)
    points = read_points(max_points)
    costs = as_costs(layer_costs, input_bytes=input_bytes, time_unit=time_unit)
    chain = costs.to_chain()
    optimum = _optimum(chain, points, read_memory_limit(memory_limit, len(chain)))
    plans: dict[str, Plan] = {}
    notes: dict[str, str] = {}
    names = [name for name in registry.METHODS if name not in ("brute", "optimal")]
    for name in names:
        try:
            plans[name] = _best_effort(costs, chain, registry.get(name).solve, name, size)
        except Unsuitable as error:
            notes[name] = f"{error}."
    best = _best_effort(costs, chain, lambda _, bytes_: optimum(bytes_), "optimal", size)
    at_peaks = {peak: optimum(peak) for peak in sorted({p.peak_bytes for p in plans.values()})}
    rows = [
        _row(plans[name], size, at_peaks[plans[name].peak_bytes], costs.ticks_per_unit)
        if name in plans
        else MethodRow(name, note=notes[name])
        for name in names
    ]
    return Comparison(
        rows=(*rows, _optimal_row(best, size)),
        name=costs.name,
        layers=len(costs),
        budget_bytes=size.asked,
        reserved_bytes=size.reserved,
        keep_all_peak_bytes=best.keep_all_peak_bytes,
        keep_all_time=best.keep_all_time,
        time_unit=costs.time_unit,
        set_by=peak_text(replay(chain, best.items).peak_action, best.layers),
    )


def _optimum(chain: Chain, max_points: int | None, memory_limit: int) -> _Optimum:
    """The optimal solution of any budget of one chain."""
    if len(chain) <= _WHOLE_FRONTIER:
        whole = nested.Frontier(chain, max_points=max_points, memory_limit=memory_limit)
        if whole.exact:
            return whole.solution

    def solve_at(budget: int) -> Solution:
        return registry.optimal(chain, budget, max_points=max_points, memory_limit=memory_limit)

    return solve_at


def _best_effort(
    costs: CostGraph, chain: Chain, solver: registry.Solver, name: str, size: Budget
) -> Plan:
    """The method's plan within the budget, or else its plan of the smallest peak."""
    try:
        solution = solver(chain, size.available)
    except Infeasible as error:
        done = replay(chain, error.items)
        smallest = Solution(error.items, done.peak_bytes, done.time, lower_bound_time=0)
        return certified(costs, chain, smallest, method=name, budget_bytes=None)
    return certified(
        costs,
        chain,
        solution,
        method=name,
        budget_bytes=size.asked,
        reserved_bytes=size.reserved,
    )


def _row(plan: Plan, size: Budget, best: Solution, ticks: int) -> MethodRow:
    note = ""
    if best.status is not Status.OPTIMAL:
        gap = format_percent(excess(best.time, best.lower_bound_time))
        note = f"the optimum at its peak is known within {gap}."
    time_at_peak = best.time / ticks
    return MethodRow(
        method=plan.method,
        peak_bytes=plan.peak_bytes,
        fits=plan.peak_bytes <= size.available,
        time=plan.time,
        overhead=plan.overhead,
        optimal_time_at_peak=time_at_peak,
        optimal_overhead_at_peak=excess(time_at_peak, plan.keep_all_time),
        note=note,
    )


def _optimal_row(plan: Plan, size: Budget) -> MethodRow:
    fits = plan.peak_bytes <= size.available
    thinned = fits and plan.optimal_in is None
    return MethodRow(
        method="optimal",
        peak_bytes=plan.peak_bytes,
        fits=fits,
        time=plan.time,
        overhead=plan.overhead,
        optimal_time_at_peak=plan.time,
        optimal_overhead_at_peak=plan.overhead,
        note=f"proven within {format_percent(plan.gap)}." if thinned else "",
    )
