"""Why a graph has no plan within a budget, in words and with the way out."""

from __future__ import annotations

from typing import Any

from scheduler.common.errors import InfeasibleGraph, NoPlanFound, SchedulerError
from scheduler.common.text import format_both, format_smallest
from scheduler.planning.request import Budget, Request
from scheduler.plans.text import peak_text
from solvers.graph.lowering import lower
from solvers.graph.problem import Graph
from solvers.schedule import Action
from solvers.solution import Infeasible, PlanClass


def below_floor(graph: Graph, size: Budget, method: str) -> InfeasibleGraph | None:
    """The error for a budget that is less than what one operation needs; None: it is not."""
    operations = lower(graph)
    floor, operation = operations.floor
    if size.available >= floor:
        return None
    set_by = operations.action(operation)
    return _below(graph, floor, set_by, size, method, in_order=_has_order(graph))


def refusal(graph: Graph, error: Infeasible, size: Budget, request: Request) -> SchedulerError:
    """The error for a budget within which a method has found no plan."""
    method = request.method.name
    of_any = method == "exhaustive" or request.limits.optimal_in is PlanClass.ANY
    in_order = _has_order(graph) and not of_any
    if method == "keep-all":
        return _without_room(graph, size)
    if size.available < error.needs_bytes:
        return _below(graph, error.needs_bytes, error.set_by, size, method, in_order=in_order)
    set_by = peak_text(error.set_by, graph.names)
    floor = size.smallest(error.needs_bytes)
    if error.plan_class is not None:
        within = error.plan_class.value
        return InfeasibleGraph(
            size.asked, floor, set_by, size.reserved, method, within, in_order=in_order
        )
    which = "in this order of layers" if in_order else "of all plans"
    unknown = (
        f"whether there is one is not known: the floor {which} is {format_smallest(floor)}, "
        f"set by {set_by}"
    )
    budget = f"a budget of {format_both(size.asked)}"
    if request.is_interrupted:
        return NoPlanFound(f"interrupted before a plan was found within {budget}; {unknown}")
    # Of all plans none is left out, so that only time ends that search without an answer.
    late = request.limits.time_limit is not None and (error.out_of_time or of_any)
    return NoPlanFound(_not_found(graph, request, budget, unknown, late=late), out_of_time=late)


def _below(
    graph: Graph, floor: int, set_by: Action, size: Budget, method: str, *, in_order: bool
) -> InfeasibleGraph:
    # Which gradients are live beside a layer depends on the order of the backwards.
    plan_class = PlanClass.STAGED.value if in_order else None
    words, needs = peak_text(set_by, graph.names), size.smallest(floor)
    return InfeasibleGraph(
        size.asked, needs, words, size.reserved, method, plan_class, in_order=in_order
    )


def _not_found(graph: Graph, request: Request, budget: str, unknown: str, *, late: bool) -> str:
    """Why there is no plan, where the search ended by itself or was out of time."""
    # Only a failing call needs it.
    from solvers.graph.work import MOST_OPERATIONS

    method = request.method.name
    limit = f" in the time limit of {request.limits.time_limit:g} s" if late else ""
    advice = "give more time or a larger budget" if late else "try a larger budget"
    count = len(lower(graph))
    if method == "auto" and count > MOST_OPERATIONS:
        tried = "eviction and plans over blocks were" if _has_order(graph) else "eviction was"
        return (
            f"no plan was found within {budget}{limit}: of {count:,} operations, more than the "
            f"{MOST_OPERATIONS:,} about which something can be proven, only {tried} tried; "
            f"{unknown}; {advice}"
        )
    if late:
        return f"no plan was found within {budget}{limit}; {unknown}; {advice}"
    other = "" if method == "auto" else "method 'auto' or "
    return (
        f"method {method!r} came to its end without a plan within {budget}; {unknown}; "
        f"more time would not help: try {other}a larger budget"
    )


def _without_room(graph: Graph, size: Budget) -> InfeasibleGraph:
    """The error of method "keep-all", whose one plan does not fit."""
    problem: Any = graph
    error = Infeasible.of(problem, problem.keep_all())
    set_by = peak_text(error.set_by, graph.names)
    needs = size.smallest(error.needs_bytes)
    return InfeasibleGraph(size.asked, needs, set_by, size.reserved, "keep-all")


def _has_order(graph: Graph) -> bool:
    """Whether the floor depends on the order, as it does where gradients are live."""
    return graph.floor_class is not PlanClass.ANY
