"""What kind of model a plan is for: each adapter runs plans of one kind."""

from __future__ import annotations

from scheduler.common.errors import InvalidPlan
from scheduler.plans.plan import Plan

_REFUSED = {
    ("layer graph", "chain"): (
        "this is the plan of a chain, which scheduler.pytorch.apply(plan, model) applies; "
        "apply_graph takes a graph's"
    ),
    ("layer graph", "compute graph"): (
        "this is the plan of a compute graph, whose nodes torch cannot run; profile the model with "
        "profile_graph"
    ),
}
_OF_A_GRAPH = (
    "this is the plan of a graph, which has steps in place of items; apply it with "
    "apply_graph(plan.steps, trace(model, inputs), model)"
)


def check_plan(plan: object, call: str) -> None:
    """Raise `InvalidPlan` where something else is in a plan's place; `call`: what to write."""
    if not isinstance(plan, Plan):
        raise InvalidPlan(
            f"got {type(plan).__name__} in the place of the plan, which solve or Plan.load gives; "
            f"write {call}"
        )


def check_kind(plan: Plan, wanted: str) -> None:
    """Raise `InvalidPlan` where a plan is not of the kind that an adapter runs."""
    if plan.kind != wanted:
        raise InvalidPlan(_REFUSED.get((wanted, plan.kind), _OF_A_GRAPH))
