"""torchtitan: a policy object that applies the plan, and the nearest setting of its own flag."""

from __future__ import annotations

from dataclasses import replace

from scheduler.common.errors import InvalidPlan
from scheduler.export.exported import Exported, Source
from scheduler.export.targets.torch import torch_file
from scheduler.export.targets.transformers import nearest_frequency

__all__ = ["to_torchtitan"]


def to_torchtitan(source: Source) -> Exported:
    """A policy object whose ``apply(model)`` is called in place of apply_ac.

    torchtitan calls its blocks ``layers.0``, ``layers.1``, ...: a plan's blocks, which may have
    other names, are taken in their order.

    Raises
    ------
    InvalidPlan
        The plan has several stacks, or does not say what its options keep.
    """
    source.policies("torchtitan")  # what is missing is said with the plan's own names
    outcome, notes = nearest_frequency(
        source, "torchtitan: selective", "selective_ac_option", start=-1
    )
    extra = ""
    if outcome is not None:
        option = outcome.setting.number
        extra = (
            "# Not the plan: the nearest that torchtitan's configuration can say.\n"
            f'NEAREST = {{"mode": "selective", "selective_ac_option": "{option}"}}\n'
        )
    title = "The plan below for torchtitan: PlanPolicy().apply(model) in place of apply_ac."
    text = torch_file("torchtitan", title, _renamed(source), notes=notes, extra=extra)
    return Exported("torchtitan", text, notes, outcome)


def _renamed(source: Source) -> Source:
    """The plan with torchtitan's names for its blocks: the numbered ones of one stack."""
    stacks: dict[str, list[str]] = {}
    for name in source.plan.layers:
        stack, _, number = name.rpartition(".")
        if number.isdigit():
            stacks.setdefault(stack, []).append(name)
    if len(stacks) != 1:
        raise InvalidPlan(
            f"torchtitan has one stack of blocks, 'layers', and this plan has {len(stacks)}; "
            "export it to torch"
        )
    (blocks,) = stacks.values()
    names = {name: f"layers.{i}" for i, name in enumerate(blocks)}
    layers = tuple(names.get(name, name) for name in source.plan.layers)
    policies = {names.get(name, name): keeps for name, keeps in source.plan.policies.items()}
    plan = replace(source.plan, layers=layers, policies=policies, _costs=None)
    return Source(plan, source.costs)
