"""Every method on one chain and one budget: what each makes of it, and what the optimum would."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from scheduler.common.text import format_smallest, format_time
from scheduler.costs.costgraph import CostGraph
from scheduler.planning.certify import certified
from scheduler.planning.chain.against import describe, hand_made, read_settings, tiled_by_hand
from scheduler.planning.comparison import COLUMNS, Comparison, MethodRow, View, row_of
from scheduler.planning.request import Budget
from scheduler.plans.plan import Plan
from scheduler.plans.text import peak_text
from scheduler.report.tables import excess, format_percent
from solvers.chain.exact.frontier import Frontier
from solvers.chain.methods import METHODS
from solvers.chain.problem import Chain
from solvers.methods import Limits
from solvers.schedule import Items
from solvers.solution import Infeasible, Solution, Status, Unsuitable

_Solved = Solution[Items]
_Optimum = Callable[[int], _Solved | None]

Optima = Callable[[Sequence[int]], Mapping[int, _Solved]]
"""The optimal solutions of some budgets, the first one among them; others may be left out."""

_WHOLE_FRONTIER = 120
"""Chains up to this long are compared by one frontier; longer ones are solved at each peak."""


def compare_chain(
    costs: CostGraph,
    chain: Chain,
    size: Budget,
    limits: Limits | None = None,
    against: object = (),
    optima: Optima | None = None,
) -> Comparison:
    """All methods for chains but "brute", which finds what "optimal" finds.

    And the policies that people choose by hand where the costs have them as options, ALST's recipe
    where they have tiles, and the settings of `against`, as `read_settings` reads them. `optima`
    stands in for solving, and what it leaves out is not known.
    """
    limits = limits or Limits()
    asked = read_settings(against, chain)
    by_hand = (*hand_made(chain), *tiled_by_hand(costs, chain), *asked)
    settings = list({setting.text: setting for setting in by_hand}.values())
    plans: dict[str, Plan] = {}
    notes: dict[str, str] = {}
    names = [name for name in METHODS if name not in ("brute", "optimal")]
    for name in names:
        try:
            plans[name] = _best_effort(costs, chain, partial(_solved, name, limits), name, size)
        except Unsuitable as error:
            notes[name] = f"{error}."
    for setting in settings:
        solution = Solution.of(chain, Items(setting.items(chain)), 0)
        plans[setting.text] = certified(costs, chain, solution, method=setting.text)
    notes |= {setting.text: describe(setting, chain) for setting in asked}
    peaks = sorted({plan.peak_bytes for plan in plans.values()})
    optimum: _Optimum = (
        _optimum(chain, limits) if optima is None else optima([size.available, *peaks]).get
    )
    best = _best_effort(costs, chain, lambda _, bytes_: _known(optimum, bytes_), "optimal", size)
    at_peaks = {peak: optimum(peak) for peak in peaks}
    names += [setting.text for setting in settings]
    rows = [
        _row(plans[name], size, at_peaks[plans[name].peak_bytes], costs, notes.get(name, ""))
        if name in plans
        else MethodRow(name, note=notes[name])
        for name in names
    ]
    last = _optimal_row(best, size)
    set_by = peak_text(chain.replay(best.schedule).peak_action, best.layers)
    said = [_LAST_COLUMN]
    if any(not row.fits and row.peak_bytes is not None for row in (*rows, last)):
        said.append("A method that does not fit shows its plan of the smallest peak.")
    return Comparison(
        rows=(*rows, last),
        name=costs.name,
        layers=len(costs),
        budget_bytes=size.asked,
        reserved_bytes=size.reserved,
        keep_all_peak_bytes=best.keep_all_peak_bytes,
        keep_all_time=best.keep_all_time,
        time_unit=costs.time_unit,
        set_by=set_by,
        optimal=last,
        size=costs.size,
        view=View(_FIELDS, _COLUMNS, tuple(said), _conclusion(rows, best, size, set_by)),
    )


_FIELDS = (
    "method",
    "peak_bytes",
    "fits",
    "time",
    "overhead",
    "optimal_time_at_peak",
    "optimal_overhead_at_peak",
    "note",
)
_COLUMNS = (*COLUMNS, ("optimum at that peak", "optimal_overhead_at_peak"))
_LAST_COLUMN = "Last column: the overhead of the optimal plan within the peak of that row."


def _conclusion(rows: Sequence[MethodRow], best: Plan, size: Budget, set_by: str) -> str:
    """What the optimum saves, in a sentence."""
    if best.peak_bytes > size.available:
        smallest = format_smallest(size.smallest(best.peak_bytes), size.asked)
        return f"No plan fits: the smallest feasible budget is {smallest}, set by {set_by}."
    if best.overhead == 0:
        return "Nothing needs to be recomputed within this budget."
    lost = f"The optimum loses {format_percent(best.overhead)} to recomputation"
    times = {row.method: row.time for row in rows if row.fits and row.time is not None}
    if not times:
        return f"{lost}; no other method has a plan within this budget."
    reaching = [method for method, time in times.items() if time <= best.time]
    if reaching:
        lost = f"{lost}; {' and '.join(reaching)} reach{'es' * (len(reaching) == 1)} it too"
    slower = {method: time for method, time in times.items() if time > best.time}
    if not slower:
        return f"{lost}."
    nearest = min(slower, key=slower.__getitem__)
    which = "next best" if reaching else "best"
    return (
        f"{lost}; over the {which} baseline that fits, {nearest} "
        f"({format_percent(excess(slower[nearest], best.keep_all_time))}), "
        f"it saves {format_time(slower[nearest] - best.time, best.time_unit)} a step."
    )


def _solved(name: str, limits: Limits, chain: Chain, budget: int) -> _Solved:
    return METHODS[name].solve(chain, budget, limits)


def _known(optimum: _Optimum, budget: int) -> _Solved:
    solution = optimum(budget)
    assert solution is not None  # of the budget itself
    return solution


def _optimum(chain: Chain, limits: Limits) -> _Optimum:
    """The optimal solution of any budget of one chain."""
    if len(chain) <= _WHOLE_FRONTIER:
        whole = Frontier(chain, max_points=limits.max_points, memory_limit=limits.memory_limit)
        if whole.exact:
            return whole.solution
    return lambda budget: METHODS["optimal"].solve(chain, budget, limits)


def _best_effort(
    costs: CostGraph,
    chain: Chain,
    solver: Callable[[Chain, int], _Solved],
    name: str,
    size: Budget,
) -> Plan:
    """The method's plan within the budget, or else its plan of the smallest peak."""
    try:
        return certified(costs, chain, solver(chain, size.available), method=name, size=size)
    except Infeasible as error:
        return certified(costs, chain, Solution.of(chain, error.schedule, 0), method=name)


def _row(plan: Plan, size: Budget, best: _Solved | None, costs: CostGraph, note: str) -> MethodRow:
    if best is None:
        return row_of(plan, size.available, note=note)
    if best.status is not Status.OPTIMAL:
        gap = format_percent(excess(best.time, best.lower_bound_time))
        note = " ".join([note, f"the optimum at its peak is known within {gap}."]).strip()
    time = best.time / costs.ticks_per_unit
    return row_of(
        plan,
        size.available,
        optimal_time_at_peak=time,
        optimal_overhead_at_peak=excess(time, plan.keep_all_time),
        note=note,
    )


def _optimal_row(plan: Plan, size: Budget) -> MethodRow:
    thinned = plan.peak_bytes <= size.available and plan.optimal_in is None
    return row_of(
        plan,
        size.available,
        optimal_time_at_peak=plan.time,
        optimal_overhead_at_peak=plan.overhead,
        note=f"proven within {format_percent(plan.gap)}." if thinned else "",
    )
