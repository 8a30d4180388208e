"""Every method on one chain and one budget: what each makes of it, and what the optimum would."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from scheduler.costs.costgraph import CostGraph
from scheduler.planning.budget import Budget
from scheduler.planning.certify import certified
from scheduler.planning.chain.against import describe, hand_made, read_settings
from scheduler.planning.comparison import Comparison, MethodRow
from scheduler.plans.plan import Plan, excess
from scheduler.plans.settings import Setting, outcome_of
from scheduler.plans.text import peak_text
from scheduler.report.tables import format_percent
from solvers.chain import frontier as nested
from solvers.chain import methods as registry
from solvers.problem import Chain
from solvers.replay import replay
from solvers.solution import Infeasible, Solution, Status, Unsuitable

__all__ = ["Optima", "compare_chain"]

_Optimum = Callable[[int], Solution | None]

Optima = Callable[[Sequence[int]], Mapping[int, Solution]]
"""The optimal solutions of some budgets, the first one among them; others may be left out."""

_WHOLE_FRONTIER = 120
"""Chains up to this long are compared by one frontier; longer ones are solved at each peak."""


def compare_chain(
    costs: CostGraph,
    size: Budget,
    max_points: int | None = None,
    memory_limit: int = nested.MEMORY_LIMIT,
    against: object = (),
    optima: Optima | None = None,
) -> Comparison:
    """All methods for chains but "brute", which finds what "optimal" finds.

    And the policies that people choose by hand where the costs have them as options, and the
    settings of `against`, as `read_settings` reads them. `optima` stands in for solving, and what
    it leaves out is not known.
    """
    chain = costs.to_chain()
    asked = read_settings(against, chain)
    settings = list({setting.text: setting for setting in (*hand_made(chain), *asked)}.values())
    plans: dict[str, Plan] = {}
    notes: dict[str, str] = {}
    names = [name for name in registry.METHODS if name not in ("brute", "optimal")]
    for name in names:
        try:
            plans[name] = _best_effort(costs, chain, registry.get(name).solve, name, size)
        except Unsuitable as error:
            notes[name] = f"{error}."
    for setting in settings:
        plans[setting.text] = _as_set(costs, chain, setting)
    notes |= {setting.text: describe(setting, chain) for setting in asked}
    peaks = sorted({plan.peak_bytes for plan in plans.values()})
    optimum: _Optimum = (
        _optimum(chain, max_points, memory_limit)
        if optima is None
        else optima([size.available, *peaks]).get
    )
    best = _best_effort(costs, chain, lambda _, bytes_: _known(optimum, bytes_), "optimal", size)
    at_peaks = {peak: optimum(peak) for peak in peaks}
    names += [setting.text for setting in settings]
    rows = [
        _row(
            plans[name],
            size,
            at_peaks[plans[name].peak_bytes],
            costs.ticks_per_unit,
            notes.get(name, ""),
        )
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


def _known(optimum: _Optimum, budget: int) -> Solution:
    solution = optimum(budget)
    assert solution is not None  # of the budget itself
    return solution


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


def _as_set(costs: CostGraph, chain: Chain, setting: Setting) -> Plan:
    """The plan that does what a setting does, whatever the budget."""
    done = outcome_of(chain, setting)
    solution = Solution(done.items, done.peak_bytes, done.ticks, lower_bound_time=0)
    return certified(costs, chain, solution, method=setting.text, budget_bytes=None)


def _row(plan: Plan, size: Budget, best: Solution | None, ticks: int, note: str) -> MethodRow:
    if best is not None and best.status is not Status.OPTIMAL:
        gap = format_percent(excess(best.time, best.lower_bound_time))
        note = " ".join([note, f"the optimum at its peak is known within {gap}."]).strip()
    time_at_peak = None if best is None else best.time / ticks
    return MethodRow(
        method=plan.method,
        peak_bytes=plan.peak_bytes,
        fits=plan.peak_bytes <= size.available,
        time=plan.time,
        overhead=plan.overhead,
        optimal_time_at_peak=time_at_peak,
        optimal_overhead_at_peak=(
            None if time_at_peak is None else excess(time_at_peak, plan.keep_all_time)
        ),
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
