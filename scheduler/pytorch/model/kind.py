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
    "this is the plan of a compute graph, whose nodes torch cannot run; profile the model, solve "
    "its costs, and apply that plan"
)


def check_kind(plan: Plan, wanted: str) -> None:
    """Raise `InvalidPlan` where a plan is not of the kind that an adapter runs."""
    if plan.kind != wanted:
        raise InvalidPlan(_REFUSED.get((wanted, plan.kind), _OF_A_GRAPH))
