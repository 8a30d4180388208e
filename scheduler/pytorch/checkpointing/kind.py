"""What kind of model a plan is for: each adapter runs plans of one kind."""

from __future__ import annotations

from scheduler.common.errors import InvalidPlan
from scheduler.plans.plan import Plan

_OF_A_GRAPH = (
    "this is the plan of a compute graph, whose nodes torch cannot run; profile the model, solve "
    "its costs, and apply that plan"
)


def check_plan(plan: object, call: str) -> None:
    """Raise `InvalidPlan` where something else is in a plan's place; `call`: what to write."""
    if not isinstance(plan, Plan):
        raise InvalidPlan(
            f"got {type(plan).__name__} in the place of the plan, which solve or Plan.load gives; "
            f"write {call}"
        )


def check_kind(plan: Plan, *wanted: str) -> None:
    """Raise `InvalidPlan` where a plan is of no kind that an adapter runs."""
    if plan.kind not in wanted:
        raise InvalidPlan(_OF_A_GRAPH)
