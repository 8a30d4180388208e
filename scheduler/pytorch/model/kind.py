"""What kind of model a plan is for: each adapter runs plans of one kind."""

from __future__ import annotations

from typing import Literal

from scheduler.common.errors import InvalidPlan
from scheduler.plans.plan import Plan

Kind = Literal["chain", "compute graph", "layer graph"]

_REFUSED: dict[tuple[Kind, Kind], str] = {
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


def check_kind(plan: Plan, wanted: Kind) -> None:
    """Raise `InvalidPlan` where a plan is not of the kind that an adapter runs."""
    found = kind_of(plan)
    if found != wanted:
        raise InvalidPlan(_REFUSED.get((wanted, found), _OF_A_GRAPH))


def kind_of(plan: Plan) -> Kind:
    """The kind of problem that a plan solves."""
    if hasattr(plan, "items"):
        return "chain"
    nodes = any(isinstance(step, int) for step in getattr(plan, "steps", ()))
    return "compute graph" if nodes else "layer graph"
