"""Python files that apply a plan with torch alone, or where a framework calls for it.

transformers and torchtitan have a setting of their own too: the nearest stands beside the plan.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler.common.errors import InfeasibleBudget, InvalidPlan
from scheduler.common.text import format_bytes
from scheduler.export.exported import Exported, Source
from scheduler.export.python import literal, plan_literals, policy_literals, python_file
from scheduler.plans.settings import (
    Cut,
    Outcome,
    best,
    blocks_of,
    checkpointed,
    cut_settings,
    every,
    every_last,
)


def to_torch(source: Source) -> Exported:
    """`apply_plan(model)`, nested checkpoints included."""
    return _file("torch", "torch: apply_plan(model), before training.", source)


def to_accelerate(source: Source) -> Exported:
    """`prepare_with_plan`, in place of ``accelerator.prepare``."""
    return _file("accelerate", "accelerate: prepare_with_plan(accelerator, model, ...).", source)


def to_lightning(source: Source) -> Exported:
    """A callback that applies the plan when fitting begins."""
    return _file("lightning", "Lightning: ApplyPlan is a callback for its Trainer.", source)


def to_fsdp(source: Source) -> Exported:
    """`shard_with_plan`, in place of the calls of ``fully_shard``."""
    for layer, option in source.plan.schedule.options().items():
        raise InvalidPlan(
            f"the plan keeps {source.plan.layers[layer]!r} with option {option!r}, and fully_shard "
            "gathers a block's parameters by operations of its own among those that the option "
            "counts; solve costs without options"
        )
    return _file("fsdp", "FSDP2: shard_with_plan(model, mesh=...).", source)


def to_transformers(source: Source) -> Exported:
    """A callback that applies the plan, a flag for each layer, and the nearest every_n_layers."""
    outcome, notes = _nearest(source, "transformers: every_n_layers", "every_n_layers", every)
    inside = set(checkpointed(source.plan.items))
    flags = literal({name: str(i in inside) for i, name in enumerate(source.plan.layers)})
    extra = f"# Is the layer inside a checkpoint?\nIS_CHECKPOINTED = {flags}\n"
    if outcome is not None:
        kwargs = f'{{"every_n_layers": {outcome.setting.number}}}'
        extra += (
            "# Not the plan: the nearest that TrainingArguments can say (transformers 5.24).\n"
            "NEAREST = {\n"
            '    "activation_checkpointing": True,\n'
            f'    "activation_checkpointing_kwargs": {kwargs},\n'
            "}\n"
        )
    what = "transformers: ApplyPlan is a callback for its Trainer."
    return _file("transformers", what, source, notes, extra, outcome)


def to_torchtitan(source: Source) -> Exported:
    """A policy object whose ``apply(model)`` is called in place of apply_ac.

    torchtitan calls its blocks ``layers.0``, ``layers.1``, ...: a plan's blocks, which may have
    other names, are taken in their order.
    """
    source.policies("torchtitan")  # what is missing is said with the plan's own names
    outcome, notes = _nearest(source, "torchtitan: selective", "selective_ac_option", every_last)
    extra = ""
    if outcome is not None:
        option = outcome.setting.number
        extra = (
            "# Not the plan: the nearest that torchtitan's configuration can say.\n"
            f'NEAREST = {{"mode": "selective", "selective_ac_option": "{option}"}}\n'
        )
    what = "torchtitan: PlanPolicy().apply(model) in place of apply_ac."
    return _file("torchtitan", what, _renamed(source), notes, extra, outcome)


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


def _nearest(
    source: Source, text: str, flag: str, cut: Cut
) -> tuple[Outcome | None, tuple[str, ...]]:
    """The best one-block-in-n setting, and what it loses; None where none fits or without costs."""
    if source.costs is None:
        return None, (f"Without the plan's costs the nearest {flag} is not known.",)
    blocks = blocks_of(source.chain)
    settings = cut_settings(text, cut, blocks, len(blocks))
    try:
        outcome = best(source.chain, settings, source.room, family=flag)
    except InfeasibleBudget as error:
        return None, (
            f"No {flag} fits the {format_bytes(source.room)} of the plan: it counts "
            f"{source.stack()}, and the least that it can reach is "
            f"{format_bytes(error.smallest_budget_bytes)}, set by {error.set_by}.",
        )
    return outcome, (
        f"The nearest that {flag} can express is {outcome.setting.number} (it counts "
        f"{source.stack()}): {source.loss(outcome)}.",
    )


def _file(
    target: str,
    what: str,
    source: Source,
    notes: tuple[str, ...] = (),
    extra: str = "",
    outcome: Outcome | None = None,
) -> Exported:
    """A file with `apply_plan`, and what the target's own `standalone` module has around it.

    `what` says what is called in it, `extra` are further literals.
    """
    own = [] if target == "torch" else [target]
    data = f"{plan_literals(source)}{policy_literals(source, target)}{extra}"
    modules = ["state", "caches", "apply", "plan", "segment", "kept", *own]
    text = python_file(f"The plan below for {what}", source, data, modules, notes)
    return Exported(target, text, notes, outcome)
