"""The way in: take costs, choose an engine, and let it solve, sweep or compare."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from scheduler.costs.readers import as_any_costs
from scheduler.planning import engine as engines
from scheduler.planning.comparison import Comparison, MethodRow
from scheduler.planning.engine import read_request
from scheduler.planning.engines import engine_for
from scheduler.planning.frontier import Frontier
from scheduler.planning.request import Watch, read_budget
from scheduler.plans.plan import Plan

__all__ = ["Comparison", "Frontier", "GraphComparison", "GraphFrontier", "GraphPlan", "MethodRow"]
__all__ += ["Plan", "compare", "frontier", "solve"]

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
