"""jax: the plan as nested jax.checkpoint, its options as policies, and what flax and MaxText can.

jax has no early stop: a recomputed segment runs to its end. Where a layer's recompute_time is less
than its forward_time, jax takes that much longer than the plan says.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler.common.errors import InfeasibleBudget
from scheduler.common.text import format_bytes, format_time
from scheduler.export.exported import Exported, Source
from scheduler.export.python import literal, plan_literals, python_file, quoted
from scheduler.plans.settings import (
    Outcome,
    Setting,
    best,
    blocks_of,
    checkpointed,
    cut_settings,
    every,
    option_settings,
    outcome_of,
    singles,
)
from solvers.chain.problem import Chain
from solvers.schedule import Checkpoint

MAXTEXT = (
    "minimal_with_context",
    "minimal",
    "save_dot_with_context_except_mlp",
    "save_dot_except_mlpwi",
    "save_dot_except_mlp",
    "save_qkv_proj",
    "qkv_proj_offloaded",
    "minimal_offloaded",
    "save_out_proj",
    "full",
)
"""Values of MaxText's remat_policy but "custom", from the fastest to the smallest."""

TENSORS = (
    "context",
    "mlpwi",
    "mlpwi_0",
    "mlpwi_1",
    "mlpwo",
    "moe_mlpwi_0",
    "moe_mlpwi_1",
    "moe_mlpwo",
    "query_proj",
    "key_proj",
    "value_proj",
    "kv_proj",
    "qkv_proj",
    "out_proj",
    "query_wa_proj",
    "kv_wa_proj",
    "mla_q",
    "mla_kv",
    "attention_out",
)
"""Tensors that MaxText's "custom" policy can save by name."""


def to_jax(source: Source) -> Exported:
    """`apply_plan` for a list of functions, `flax_block`, and the nearest remat_policy."""
    notes: tuple[str, ...] = ("Without the plan's costs it is not known what flax and MaxText do.",)
    outcome, extra = None, ""
    if source.costs is not None:
        outcome, text = _maxtext(source)
        notes = (*_flax(source), text, *_early_stop(source))
    if outcome is not None:
        lines = ", ".join(f'"{key}": "{value}"' for key, value in remat_policy(outcome).items())
        extra = (
            "# Not the plan: the nearest that MaxText's configuration says.\n"
            f"MAXTEXT = {{{lines}}}\n"
        )
    layers = source.plan.layers
    options = {layers[i]: quoted(option) for i, option in source.plan.schedule.options().items()}
    inside = literal(quoted(layers[i]) for i in checkpointed(source.plan.items))
    data = (
        f"{plan_literals(source)}"
        f"# Layers kept in a cheaper way: which.\nOPTIONS = {literal(options)}\n"
        "# Layers that some checkpoint holds.\n"
        f"RECOMPUTED = {'set()' if inside == '[]' else f'{{{inside[1:-1]}}}'}\n{extra}"
    )
    title = "The plan below for jax: apply_plan(blocks), flax_block(Block, name)."
    return Exported("jax", python_file(title, source, data, ["jax"], notes), notes, outcome)


def remat_policy(outcome: Outcome) -> dict[str, str]:
    """MaxText's words for a setting."""
    option = outcome.setting.option
    if option is None:
        return {"remat_policy": "full"}
    if option in MAXTEXT:
        return {"remat_policy": option}
    return {"remat_policy": "custom", **dict.fromkeys(option.split("+"), "device")}


def _maxtext(source: Source) -> tuple[Outcome | None, str]:
    blocks = blocks_of(source.chain)
    settings = [
        *cut_settings("maxtext: full", every, blocks, 1),
        *(
            setting
            for setting in option_settings("maxtext:", source.chain)
            if setting.option in MAXTEXT
            or all(part in TENSORS for part in (setting.option or "").split("+"))
        ),
    ]
    try:
        outcome = best(source.chain, settings, source.room, family="remat_policy")
    except InfeasibleBudget as error:
        return None, (
            f"No remat_policy of MaxText fits the {format_bytes(source.room)} of the plan: the "
            f"least is {format_bytes(error.smallest_budget_bytes)}."
        )
    name = remat_policy(outcome)["remat_policy"]
    return outcome, (
        f"MaxText treats all {source.stack()}, alike; the nearest remat_policy is {name!r}: "
        f"{source.loss(outcome)}."
    )


def _flax(source: Source) -> tuple[str, ...]:
    segments = [item for item in source.plan.items if isinstance(item, Checkpoint)]
    if all(segment.first == segment.last for segment in segments):
        return ()
    alone = Setting("flax", singles(checkpointed(source.plan.items)))
    outcome = outcome_of(source.chain, alone)
    fits = "" if outcome.peak_bytes <= source.room else " That does not fit the plan's budget."
    return (
        "flax_block recomputes layers one by one, without the plan's longer segments: "
        f"{source.loss(outcome)}.{fits}",
    )


def _early_stop(source: Source) -> tuple[str, ...]:
    layers = tuple(
        replace(layer, recompute_time=layer.forward_time) for layer in source.chain.layers
    )
    assert source.costs is not None  # there is a chain
    ticks = Chain(layers, source.chain.input_bytes).replay(source.plan.schedule).time
    time = ticks / source.costs.ticks_per_unit
    if time == source.plan.time:
        return ()
    longer = format_time(time, source.plan.time_unit)
    return (f"jax recomputes a segment to its end: the plan takes {longer} a step there.",)
