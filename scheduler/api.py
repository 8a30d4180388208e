"""The way in: take costs, choose an engine, and let it solve, sweep or compare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import TypeAlias

from scheduler.common.errors import InfeasibleBudget, InvalidCosts
from scheduler.costs.bylength import check_lengths
from scheduler.costs.readers import as_any_costs
from scheduler.planning import engine as engines
from scheduler.planning.comparison import Comparison, MethodRow
from scheduler.planning.engine import read_request
from scheduler.planning.engines import engine_for
from scheduler.planning.frontier import Frontier
from scheduler.planning.request import Watch, read_budget
from scheduler.plans.lengths import PlansByLength
from scheduler.plans.plan import Plan
from solvers.replay import Replay
from solvers.schedule import IllegalPlan

__all__ = ["Comparison", "Frontier", "GraphComparison", "GraphFrontier", "GraphPlan", "MethodRow"]
__all__ += ["Plan", "PlansByLength", "compare", "frontier", "solve", "solve_by_length"]

# Their names when graphs had classes of their own.
GraphComparison: TypeAlias = Comparison
GraphFrontier: TypeAlias = Frontier
GraphPlan: TypeAlias = Plan


def solve(
    layer_costs: object,
    budget_gb: object = None,
    *,
    budget: object = None,
    method: str = "optimal",
    reserved: object = 0,
    reserved_gb: object = None,
    input_bytes: int | None = None,
    time_unit: str | None = None,
    columns: Iterable[str] | None = None,
    max_points: int | None = None,
    memory_limit: object = None,
    time_limit: float | None = None,
    optimal_in: str | None = None,
    threads: int | None = None,
    watch: Watch | None = None,
) -> Plan:
    """The plan of a method that loses the least time within a memory budget.

    Layers in a chain are solved exactly among persistent plans. A graph (costs with ``edges``, or
    a compute graph) gives a plan that is proven in the class that it names.

    Parameters
    ----------
    layer_costs
        A `CostGraph`, a list of `LayerCost` or of mappings, a mapping of columns, a pandas
        DataFrame, a networkx DiGraph, a `ComputeCosts`, rows with `columns`, or the path of a cost
        file, of a compute graph's file or of a list of layers (CSV or JSON). Never changed.
    budget_gb
        A number of GB, 10⁹ bytes each.
    budget
        Instead of `budget_gb`: bytes, or text such as ``"40GB"`` (10⁹) or ``"40GiB"`` (2³⁰). A
        number of bytes that is out of all proportion to the costs is refused: see
        `scheduler.common.units.check_unit`.
    method
        "optimal", or a baseline: see `solvers.chain.methods.METHODS`. For graphs "optimal" is
        "auto"; the others are in `solvers.graph.methods.METHODS`.
    reserved
        Bytes, or text, that come off the budget before solving: weights, optimizer state, margin.
    reserved_gb
        Instead of `reserved`: a number of GB.
    input_bytes, time_unit
        Size of the chain's input and unit of its times, before what the costs say.
    columns
        Of rows, tuples or an array of two dimensions: the fields of a `LayerCost` that their values
        are, in their order.
    max_points
        At most about so many points a set of method "optimal" (16 or more). A plan made from
        thinned sets is valid, and carries the gap to a certified bound.
    memory_limit
        Bytes, or text, that these sets and their tables may take before they are thinned; default
        1 GiB.
    time_limit
        Seconds, after which the best plan so far is returned with its gap. Default: until it is
        proven. Ctrl-C ends the search in the same way.
    optimal_in
        For graphs: the class of plans to prove it in. "forward": only forward operations run
        again, only in the backward part; "staged": anything, at most once before each first run;
        "any": all plans, for small graphs. Default: forward where there is a backward part, else
        staged.
    threads
        For graphs: threads of the solvers; default 1.
    watch
        Who is told of progress, and may end the search.

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
        No plan of the method fits; carries the smallest budget that does, and what sets it. For
        graphs an `InfeasibleGraph`, with the floor of its class of plans.
    NoPlanFound
        The search of a graph ended, mostly by its time limit, without a plan or a proof.
    UnknownMethod, UnsuitableMethod
        There is no such method, or it or another argument does not apply to these costs.
    """
    costs = as_any_costs(layer_costs, input_bytes=input_bytes, time_unit=time_unit, columns=columns)
    engine, problem = engine_for(costs)
    size = read_budget(budget_gb, budget, reserved, reserved_gb, problem)
    request = read_request(
        engine,
        method,
        len(costs),
        watch,
        max_points=max_points,
        memory_limit=memory_limit,
        time_limit=time_limit,
        optimal_in=optimal_in,
        threads=threads,
    )
    return engines.solve(engine, costs, problem, size, request)


def solve_by_length(
    costs_by_length: Mapping[int, object],
    budget_gb: object = None,
    *,
    budget: object = None,
    reserved: object = 0,
    reserved_gb: object = None,
    batch: int | None = None,
    method: str = "optimal",
    time_limit: float | None = None,
    watch: Watch | None = None,
) -> PlansByLength:
    """A plan for each length of sequences, each losing the least time within one budget.

    Parameters
    ----------
    costs_by_length
        By length in tokens, increasing: the costs of a step whose sequences are so long, in any
        form that `solve` takes; such as `scheduler.pytorch.profile_by_length` gives, or
        ``{n: costs_from_shape(model, 1, n) for n in (1024, 2048)}``.
    batch
        Sequences in the batch that the costs are of; default: what the profile says, or 1.
    budget_gb, budget, reserved, reserved_gb, method, time_limit, watch
        As for `solve`.

    Returns
    -------
    PlansByLength
        A mapping from lengths to plans, which `scheduler.pytorch.apply` takes.

    Raises
    ------
    InvalidCosts
        There are no lengths, or they do not increase; the costs are not those of one model, or a
        plan would need more at a shorter length.
    InfeasibleBudget, NoPlanFound, ...
        As for `solve`, of the shortest length that has no plan; says which is the longest that has.
    """
    lengths = check_lengths(costs_by_length)
    plans: dict[int, Plan] = {}
    for length in lengths:
        try:
            plans[length] = solve(
                costs_by_length[length],
                budget_gb,
                budget=budget,
                reserved=reserved,
                reserved_gb=reserved_gb,
                method=method,
                time_limit=time_limit,
                watch=watch,
            )
        except InfeasibleBudget as error:
            set_by = f"{error.set_by} at length {length}"
            lowered = "none of the lengths fits"
            if plans:
                lowered = f"the longest of the lengths that fits is {max(plans)}"
            raise error.reserving(error.reserved_for, set_by=set_by, lowered_by=lowered) from None
    for before, length in pairwise(lengths):
        _check_grows(length, plans[length], before, plans[before])
    longest = plans[lengths[-1]]
    times = {length: _time_at(plan, longest) for length, plan in plans.items()}
    batch = getattr(costs_by_length, "batch", 1) if batch is None else batch
    return PlansByLength(plans, batch, times, longest.own_costs().name)


def _check_grows(length: int, plan: Plan, shorter: int, at: Plan) -> None:
    """Raise `InvalidCosts` where a plan needs more at the length before its own."""
    if plan.layers != at.layers:
        raise InvalidCosts(
            f"the costs of length {length} have other layers than those of length {shorter}; "
            "plans by length are of one model"
        )
    found = _replayed_at(at, plan)
    if found is not None and found.peak_bytes > plan.peak_bytes:
        raise InvalidCosts(
            f"the plan of length {length} needs {found.peak_bytes} bytes at length {shorter}, more "
            f"than the {plan.peak_bytes} at its own, so that nobody knows what it needs between "
            "the two; give costs of one model, which grow with the length"
        )


def _replayed_at(at: Plan, plan: Plan) -> Replay | None:
    """A plan on the costs of another; None where these have not all its options."""
    try:
        return at.problem().replay(plan.schedule)
    except IllegalPlan:
        return None


def _time_at(at: Plan, longest: Plan) -> float:
    """Time of the longest's plan on the costs of another; without its options, by its overhead."""
    found = _replayed_at(at, longest)
    if found is None:
        return at.keep_all_time * (1 + longest.overhead)
    return found.time / at.own_costs().ticks_per_unit


def frontier(
    layer_costs: object,
    *,
    input_bytes: int | None = None,
    time_unit: str | None = None,
    columns: Iterable[str] | None = None,
    max_points: int | None = None,
    memory_limit: object = None,
    points: int | None = None,
    method: str = "optimal",
    time_limit: float | None = None,
    optimal_in: str | None = None,
    threads: int | None = None,
    watch: Watch | None = None,
) -> Frontier:
    """Every optimal pair of peak bytes and time, and the plan for any budget without solving again.

    Of a graph: a sweep over budgets, each point with its gap.

    Parameters
    ----------
    layer_costs, input_bytes, time_unit, columns, max_points, memory_limit
        As for `solve`.
    points
        For graphs: budgets to solve for, evenly spread between the floor and the peak of keeping
        everything; default 8.
    time_limit
        For graphs: seconds for each of them; default 30.
    method, optimal_in, threads, watch
        For graphs: as for `solve`.

    Raises
    ------
    InvalidCosts, InvalidBudget, UnknownMethod, UnsuitableMethod
        As for `solve`.
    """
    costs = as_any_costs(layer_costs, input_bytes=input_bytes, time_unit=time_unit, columns=columns)
    engine, problem = engine_for(costs)
    request = read_request(
        engine,
        method,
        len(costs),
        watch,
        max_points=max_points,
        memory_limit=memory_limit,
        time_limit=time_limit,
        optimal_in=optimal_in,
        threads=threads,
    )
    return engine.frontier(costs, problem, request, points)


def compare(
    layer_costs: object,
    budget_gb: object = None,
    *,
    budget: object = None,
    reserved: object = 0,
    reserved_gb: object = None,
    input_bytes: int | None = None,
    time_unit: str | None = None,
    columns: Iterable[str] | None = None,
    max_points: int | None = None,
    memory_limit: object = None,
    time_limit: float | None = None,
    threads: int | None = None,
    watch: Watch | None = None,
    against: str | Iterable[str] = (),
) -> Comparison:
    """What each method makes of the budget, and what the optimum makes of each method's peak.

    All methods but "brute", which finds what "optimal" finds. A method that has no plan within
    the budget shows its plan of the smallest peak.

    Parameters
    ----------
    layer_costs, budget_gb, budget, reserved, reserved_gb, input_bytes, time_unit, columns,
    max_points, memory_limit
        As for `solve`.
    time_limit
        For graphs: seconds for each method; default 30.
    threads, watch
        For graphs: as for `solve`.
    against
        For chains: settings that frameworks have, such as ``"megatron: full block 12"`` or
        ``["every 4", "transformers: gradient_checkpointing"]``, a row each; the forms are in
        `scheduler.planning.chain.against.FORMS`.

    Raises
    ------
    SchedulerError
        A setting has no form that exists, or does not suit the costs.
    InvalidCosts, InvalidBudget
        As for `solve`. A budget that nothing fits is no error here.
    """
    costs = as_any_costs(layer_costs, input_bytes=input_bytes, time_unit=time_unit, columns=columns)
    engine, problem = engine_for(costs)
    size = read_budget(budget_gb, budget, reserved, reserved_gb, problem)
    request = read_request(
        engine,
        "optimal",
        len(costs),
        watch,
        max_points=max_points,
        memory_limit=memory_limit,
        time_limit=time_limit,
        threads=threads,
    )
    return engine.compare(costs, problem, size, request, against)
