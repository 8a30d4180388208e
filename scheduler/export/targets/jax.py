"""jax: the plan as nested jax.checkpoint, its options as policies, and what flax and MaxText can.

jax has no early stop: a recomputed segment runs to its end. Where a layer's recompute_time is less
than its forward_time, jax takes that much longer than the plan says.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler.common.errors import InfeasibleBudget
from scheduler.common.text import format_bytes, format_time
from scheduler.export.exported import Exported, Source, as_comment
from scheduler.export.standalone.runtime import data, quoted
from scheduler.plans.settings import (
    Outcome,
    Setting,
    best,
    blocks_of,
    checkpointed,
    every_settings,
    option_settings,
    outcome_of,
)
from solvers.problem import Chain
from solvers.replay import replay

__all__ = ["MAXTEXT", "TENSORS", "remat_policy", "to_jax"]

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

_CODE = '''\
def policy(option):
    """What stays under an option: one of jax's policies, or values by their checkpoint_name.

    Several names are joined with "+" in the option's name.
    """
    own = getattr(jax.checkpoint_policies, option, None)
    return own or jax.checkpoint_policies.save_only_these_names(*option.split("+"))


def apply_plan(blocks):
    """One function of all layers, ``run(parameters, x)``, that recomputes as the plan says.

    `blocks` are functions ``block(parameters, x) -> x``, one for each of LAYERS (the ends, such as
    an embedding and a loss, too), and the parameters are a list with a tree for each.
    """
    if len(blocks) != len(LAYERS):
        raise ValueError(f"the plan has {len(LAYERS)} layers, and {len(blocks)} blocks are given")
    position = {name: i for i, name in enumerate(LAYERS)}
    spans = [(position[first], position[last]) for first, last in CHECKPOINTS]

    def layer(i):
        def run(parameters, x):
            return blocks[i](parameters[0], x)

        option = OPTIONS.get(LAYERS[i])
        return run if option is None else jax.checkpoint(run, policy=policy(option))

    def part(first, last, inside):
        steps, at, rest = [], first, inside
        while rest:
            (a, b), *after = rest
            within = list(takewhile(lambda span, b=b: span[1] <= b, after))
            steps += [(i, i + 1, layer(i)) for i in range(at, a)]
            steps.append((a, b + 1, jax.checkpoint(part(a, b, within))))
            at, rest = b + 1, after[len(within) :]
        steps += [(i, i + 1, layer(i)) for i in range(at, last + 1)]

        def run(parameters, x):
            for start, end, step in steps:
                x = step(parameters[start - first : end - first], x)
            return x

        return run

    return part(0, len(LAYERS) - 1, spans)


def flax_block(block, name):
    """The class to build layer `name` from in flax.linen: nn.remat of `block`, or itself.

    Give its modules names, ``flax_block(Block, name)(name="h_3")``: those that flax chooses differ
    with nn.remat, and a checkpoint of the parameters would no longer load.
    """
    from flax import linen as nn

    if name in OPTIONS:
        return nn.remat(block, policy=policy(OPTIONS[name]))
    return nn.remat(block) if name in RECOMPUTED else block
'''


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
    names = "".join(
        f"    {quoted(source.plan.layers[i])}: {quoted(option)},\n"
        for i, option in sorted(source.options().items())
    )
    inside = "".join(
        f"    {quoted(source.plan.layers[i])},\n" for i in checkpointed(source.plan.items)
    )
    comment = as_comment(
        [
            "The plan below for jax: apply_plan(blocks), flax_block(Block, name).",
            "Written by checkpoint-scheduler; depends on nothing of it.",
            "",
            *source.summary(),
            "",
            *notes,
        ]
    )
    text = (
        f"{comment}\nfrom __future__ import annotations\n\nfrom itertools import takewhile\n\n"
        f"import jax\n\n{data(source)}"
        f"# Layers kept in a cheaper way: which.\nOPTIONS = {{\n{names}}}\n"
        f"# Layers that some checkpoint holds.\nRECOMPUTED = {{\n{inside}}}\n{extra}"
        f"\n\n{_CODE}"
    )
    text = text.replace("{\n}", "{}").replace("RECOMPUTED = {}", "RECOMPUTED = set()")
    return Exported("jax", text.replace("[\n]", "[]"), notes, outcome)


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
        *every_settings("maxtext: full", blocks, [1]),
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
    segments = source.segments
    if all(segment.first == segment.last for segment in segments):
        return ()
    alone = tuple((i, i) for i in checkpointed(source.plan.items))
    outcome = outcome_of(source.chain, Setting("flax", alone))
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
    ticks = replay(Chain(layers, source.chain.input_bytes), source.plan.items).time
    time = ticks / source.costs.ticks_per_unit
    if time == source.plan.time:
        return ()
    longer = format_time(time, source.plan.time_unit)
    return (f"jax recomputes a segment to its end: the plan takes {longer} a step there.",)
