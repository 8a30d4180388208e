"""What model a plan is for: each adapter runs plans of one kind, by the names of modules."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from scheduler.common.errors import InvalidPlan
from scheduler.plans.plan import Plan

_OF_A_GRAPH = (
    "this is the plan of a compute graph, whose nodes torch cannot run; profile the model, solve "
    "its costs, and apply that plan"
)


def check_kind(plan: Plan, *wanted: str) -> None:
    """Raise `InvalidPlan` where a plan is of no kind that an adapter runs."""
    if plan.kind not in wanted:
        raise InvalidPlan(_OF_A_GRAPH)


def within(plan: Plan, model: nn.Module) -> Plan:
    """The plan by the names that its blocks have in a model that wraps theirs, as PEFT does."""
    modules = dict(model.named_modules())
    if plan.kind != "chain" or any(name in modules for name in plan.layers):
        return plan
    blocks = [name for name in plan.layers if "." in name]  # the ends have none
    first = f".{blocks[0]}" if blocks else "."
    around = [name.removesuffix(first) for name in modules if name.endswith(first)]
    found = [f"{name}." for name in around if all(f"{name}.{b}" in modules for b in blocks)]
    if len(found) != 1:
        return plan
    called = {name: found[0] + name for name in blocks}
    return replace(
        plan,
        layers=tuple(called.get(name, name) for name in plan.layers),
        policies={called.get(name, name): keeps for name, keeps in plan.policies.items()},
        tiles={called.get(name, name): count for name, count in plan.tiles.items()},
        tiled={called.get(name, name): parts for name, parts in plan.tiled.items()},
        _costs=None,
    )
