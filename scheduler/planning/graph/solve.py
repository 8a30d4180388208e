"""Graphs: choose a solver, replay what it finds, and wrap it or say why there is nothing."""

from __future__ import annotations

import time

from scheduler.common.errors import (
    BUG,
    InfeasibleGraph,
    NoPlanFound,
    SchedulerError,
    UnsuitableMethod,
)
from scheduler.common.text import format_both, format_exact
from scheduler.costs.readers import Costs
from scheduler.planning.budget import Budget
from scheduler.planning.certify import check_claims
from scheduler.planning.search import Search, Watch
from scheduler.plans.graphplan import GraphPlan, keep_all_steps, problem_of
from scheduler.plans.graphtext import operation_text
from solvers.graph.lowering import lower
from solvers.graph.problem import ComputeGraph
from solvers.graph.replay import LayerAction, LayerBackward, LayerForward
from solvers.graph.solution import (
    Graph,
    GraphInfeasible,
    GraphSolution,
    PlanClass,
    Steps,
    least_time,
    replay_steps,
)
from solvers.schedule import IllegalPlan
from solvers.solution import Unsuitable

__all__ = ["below_floor", "certified_graph", "keep_all_solution", "node_names"]
__all__ += ["solve_graph", "solve_problem"]


def solve_graph(
    costs: Costs, size: Budget, search: Search, watch: Watch | None = None
) -> GraphPlan:
    """The plan of a graph within a budget.

    Raises
    ------
    InfeasibleGraph
        It is proven that no plan fits: of all plans, or of a class of plans.
    NoPlanFound
        The method came to its end, or its time was up, or it was interrupted, without a plan.
    UnsuitableMethod
        The method does not accept the graph.
    """
    graph = problem_of(costs)
    start = time.perf_counter()
    solution = solve_problem(graph, size, search, watch or Watch())
    return certified_graph(
        costs,
        graph,
        solution,
        method=search.method,
        budget_bytes=size.asked,
        reserved_bytes=size.reserved,
        seconds=time.perf_counter() - start,
    )


def solve_problem(
    graph: Graph, size: Budget, search: Search, watch: Watch, start: Steps | None = None
) -> GraphSolution:
    """The solver's answer, or its refusal in words; `start` is a plan known to fit.

    Raises
    ------
    InfeasibleGraph, NoPlanFound, UnsuitableMethod
        As `solve_graph`.
    """
    from solvers.graph import solve as solver

    try:
        return solver.solve(
            graph,
            size.available,
            method=search.method,
            optimal_in=search.optimal_in,
            time_limit=search.time_limit,
            threads=search.threads,
            report=watch.report,
            start=start,
            interrupted=watch.interrupted,
        )
    except GraphInfeasible as error:
        raise _refusal(graph, error, size, search, interrupted=watch.is_interrupted) from None
    except Unsuitable as error:
        raise UnsuitableMethod(str(error)) from None


def certified_graph(
    costs: Costs,
    graph: Graph,
    solution: GraphSolution,
    *,
    method: str,
    budget_bytes: int | None,
    reserved_bytes: int = 0,
    seconds: float | None = None,
) -> GraphPlan:
    """The plan of `solution`, replayed and held to its budget.

    Parameters
    ----------
    costs, graph
        The same problem, as it was given and in integers.
    solution
        What the solver says.
    method
        The solver's name.
    budget_bytes
        As it was asked for, `reserved_bytes` included; None: there is none to hold it to.
    reserved_bytes
        What was set aside.
    seconds
        How long solving took.

    Raises
    ------
    RuntimeError
        The solution is illegal, over its budget, or not what the solver says: a bug.
    """
    try:
        done = replay_steps(graph, solution.steps)
    except IllegalPlan as error:
        raise RuntimeError(f"method {method!r} made an illegal plan ({error}): {BUG}") from error
    check_claims(solution, done, method, budget_bytes, reserved_bytes)
    everything = replay_steps(graph, keep_all_steps(graph))
    ticks = costs.ticks_per_unit
    return GraphPlan(
        layers=node_names(graph),
        steps=solution.steps,
        plan_class=solution.bound_class.value,
        budget_bytes=budget_bytes,
        peak_bytes=done.peak_bytes,
        time=done.time / ticks,
        keep_all_peak_bytes=everything.peak_bytes,
        keep_all_time=everything.time / ticks,
        time_unit=costs.time_unit,
        method=method,
        status=solution.status.value,
        lower_bound_time=solution.lower_bound_time / ticks,
        costs_sha256=costs.sha256,
        reserved_bytes=reserved_bytes,
        solve_seconds=seconds,
        note=solution.note,
        _costs=costs,
    )


def keep_all_solution(graph: Graph) -> GraphSolution:
    """The plan that runs everything once: no plan of any class is faster."""
    steps = keep_all_steps(graph)
    done = replay_steps(graph, steps)
    return GraphSolution(steps, done.peak_bytes, done.time, least_time(graph), PlanClass.ANY)


def node_names(graph: Graph) -> tuple[str, ...]:
    """Names of the nodes or layers of a graph."""
    parts = graph.nodes if isinstance(graph, ComputeGraph) else graph.layers
    return tuple(part.name for part in parts)


def below_floor(graph: Graph, size: Budget, method: str) -> InfeasibleGraph | None:
    """The error for a budget that is less than what one operation needs; None: it is not."""
    floor, operation = lower(graph).floor
    if size.available >= floor:
        return None
    return _below(graph, floor, operation, size, method, in_order=_has_layers(graph))


def _below(
    graph: Graph, floor: int, operation: int, size: Budget, method: str, *, in_order: bool
) -> InfeasibleGraph:
    # Which gradients are live beside a layer depends on the order of the backwards.
    plan_class = PlanClass.STAGED.value if in_order else None
    set_by = _setter(graph, operation)
    needs = floor + size.reserved
    return InfeasibleGraph(
        size.asked, needs, set_by, size.reserved, method, plan_class, in_order=in_order
    )


def _refusal(
    graph: Graph, error: GraphInfeasible, size: Budget, search: Search, *, interrupted: bool
) -> SchedulerError:
    floor, of_any = error.floor_bytes, _is_of_any(search)
    in_order = _has_layers(graph) and not of_any
    if search.method == "keep-all":
        return _without_room(graph, size)
    if size.available < floor:
        return _below(graph, floor, error.floor_node, size, search.method, in_order=in_order)
    set_by = _setter(graph, error.floor_node)
    floor += size.reserved
    if error.plan_class is not None:
        within = error.plan_class.value
        return InfeasibleGraph(
            size.asked, floor, set_by, size.reserved, search.method, within, in_order=in_order
        )
    which = "in this order of layers" if in_order else "of all plans"
    unknown = (
        f"whether there is one is not known: the floor {which} is {format_exact(floor)}, "
        f"set by {set_by}"
    )
    budget = f"a budget of {format_both(size.asked)}"
    if interrupted:
        return NoPlanFound(f"interrupted before a plan was found within {budget}; {unknown}")
    # Of all plans none is left out, so that only time ends that search without an answer.
    late = search.time_limit is not None and (error.out_of_time or of_any)
    return NoPlanFound(_not_found(graph, search, budget, unknown, late=late), out_of_time=late)


def _not_found(graph: Graph, search: Search, budget: str, unknown: str, *, late: bool) -> str:
    """Why there is no plan, where the search ended by itself or was out of time."""
    # Only a failing call needs it.
    from solvers.graph.methods import MOST_OPERATIONS

    limit = f" in the time limit of {search.time_limit:g} s" if late else ""
    advice = "give more time or a larger budget" if late else "try a larger budget"
    count = len(lower(graph))
    if search.method == "auto" and count > MOST_OPERATIONS:
        tried = "eviction and plans over blocks were" if _has_layers(graph) else "eviction was"
        return (
            f"no plan was found within {budget}{limit}: of {count:,} operations, more than the "
            f"{MOST_OPERATIONS:,} about which something can be proven, only {tried} tried; "
            f"{unknown}; {advice}"
        )
    if late:
        return f"no plan was found within {budget}{limit}; {unknown}; {advice}"
    other = "" if search.method == "auto" else "method 'auto' or "
    return (
        f"method {search.method!r} came to its end without a plan within {budget}; {unknown}; "
        f"more time would not help: try {other}a larger budget"
    )


def _without_room(graph: Graph, size: Budget) -> InfeasibleGraph:
    """The error of method "keep-all", whose one plan does not fit."""
    steps = keep_all_steps(graph)
    done = replay_steps(graph, steps)
    set_by = operation_text(steps[done.peak_step], node_names(graph))
    needs = done.peak_bytes + size.reserved
    return InfeasibleGraph(size.asked, needs, set_by, size.reserved, "keep-all")


def _is_of_any(search: Search) -> bool:
    return search.method == "exhaustive" or search.optimal_in is PlanClass.ANY


def _has_layers(graph: Graph) -> bool:
    return not isinstance(graph, ComputeGraph)


def _setter(graph: Graph, operation: int) -> str:
    """The operation of a graph in words: its forwards come first, then its backwards."""
    step: int | LayerAction = operation
    if not isinstance(graph, ComputeGraph):
        n = len(graph)
        forward = operation < n
        step = LayerForward(operation, True) if forward else LayerBackward(2 * n - 1 - operation)
    return operation_text(step, node_names(graph))
