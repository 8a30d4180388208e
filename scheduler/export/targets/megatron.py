"""Megatron-LM: the fastest recompute flags that fit, found by replaying all of them.

``full uniform n`` checkpoints runs of n layers, ``full block n`` the first n layers of each
pipeline stage one by one, ``selective`` a part of each layer. The flags are the same for every
stage. Options of the costs stand for ``selective`` where they are called as
``recompute_modules`` are: ``core_attn``, or several joined with ``+``; or as in traced blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from scheduler.common.errors import InfeasibleBudget, SchedulerError
from scheduler.common.text import format_bytes, format_time
from scheduler.export.exported import Exported, Source, as_comment
from scheduler.plans.settings import (
    TRACED_SELECTIVE,
    Outcome,
    Setting,
    best,
    block_settings,
    blocks_of,
    option_settings,
    outcome_of,
    stages_of,
    uniform_settings,
)
from solvers.chain.problem import Chain
from solvers.chain.segments import tables

__all__ = ["MODULES", "to_megatron"]

MODULES = (
    "core_attn",
    "moe_act",
    "layernorm",
    "mla_up_proj",
    "mlp",
    "moe",
    "shared_experts",
)
"""Values of ``recompute_modules``."""


def to_megatron(source: Source) -> Exported:
    """The best flags within the plan's budget, and what they lose against the plan.

    With pipeline stages each of them is a chain of its own within the same budget, which holds
    as many micro-batches as 1F1B has in flight there; the slowest stage counts.

    Raises
    ------
    InfeasibleBudget
        No flags fit.
    """
    chain, blocks = source.chain, blocks_of(source.chain)
    if source.stages > len(blocks):
        raise SchedulerError(
            f"{source.stages} pipeline stages are more than the {len(blocks)} blocks of the plan"
        )
    if source.stages > 1:
        return _staged(source)
    settings = _all(_selective(chain), blocks, len(blocks))
    reserved = source.plan.reserved_bytes
    outcome = best(chain, settings, source.room, family="megatron", reserved=reserved)
    notes = (
        f"Megatron's flags count {source.stack()}. In place of the plan: "
        f"{outcome.setting.text.removeprefix('megatron: ')}; {source.loss(outcome)}.",
    )
    return Exported("megatron", _text(source, outcome.setting, notes), notes, outcome)


def _selective(chain: Chain) -> list[str]:
    """Options of every block that are called as recompute_modules are."""
    names = [setting.option or "" for setting in option_settings("", chain)]
    return [name for name in names if all(part in MODULES for part in _modules(name))]


def _modules(option: str) -> list[str]:
    return ["core_attn"] if option == TRACED_SELECTIVE else option.split("+")


def _all(options: list[str], blocks: Sequence[int], most: int) -> Iterator[Setting]:
    """Every setting of the flags for one stage, the simpler ones first; numbers up to `most`."""
    yield Setting("megatron: no recomputation", ())
    for option in options:
        yield Setting(f"megatron: selective {'+'.join(_modules(option))}", (), option=option)
    yield from block_settings("megatron: full block", [blocks], range(1, most + 1))
    yield from uniform_settings("megatron: full uniform", [blocks], range(1, most + 1))


def _staged(source: Source) -> Exported:
    blocks = stages_of(blocks_of(source.chain), source.stages)
    cuts = [0, *(stage[0] for stage in blocks[1:]), len(source.chain)]
    chains = [_part(source.chain, first, end) for first, end in pairwise(cuts)]
    most, options = max(map(len, blocks)), _selective(source.chain)
    families = [_all(options, blocks_of(chain), most) for chain in chains]
    setting, outcomes = _best_staged(source, chains, list(zip(*families, strict=True)))
    assert source.costs is not None  # there is a chain
    slowest = max(outcome.ticks for outcome in outcomes) / source.costs.ticks_per_unit
    notes = (
        f"Megatron's flags count {source.stack()}, in {source.stages} pipeline stages. In place of "
        f"the plan, which is one of a single device: {setting.text.removeprefix('megatron: ')}; "
        f"the slowest stage takes {format_time(slowest, source.plan.time_unit)} a micro-batch.",
        *(
            f"Stage {stage}: {len(run)} blocks, micro-batches in flight: {source.stages - stage}, "
            f"peak {format_bytes(outcome.peak_bytes)}."
            for stage, (run, outcome) in enumerate(zip(blocks, outcomes, strict=True))
        ),
        "Gradients of earlier micro-batches are not in these peaks: reserve them.",
    )
    return Exported("megatron", _text(source, setting, notes), notes)


def _best_staged(
    source: Source, chains: list[Chain], every: list[tuple[Setting, ...]]
) -> tuple[Setting, list[Outcome]]:
    """Of settings, each given once a stage, the one whose slowest stage is the fastest."""
    counts = [tables(chain) for chain in chains]

    def outcomes_of(settings: tuple[Setting, ...]) -> list[Outcome]:
        return [
            outcome_of(chain, setting, source.stages - 1 - stage)
            for stage, (chain, setting) in enumerate(zip(chains, settings, strict=True))
        ]

    ranked: list[tuple[int, int, int]] = []
    for n, settings in enumerate(every):
        each = [
            setting.measured(chain, count)
            for chain, count, setting in zip(chains, counts, settings, strict=True)
        ]
        ranked.append((max(t for _, t in each), max(peak for peak, _ in each), n))
    for _, peak, n in sorted(ranked):
        # More micro-batches only add to the peak of one, which takes less long to find.
        if peak <= source.room and _highest(outcomes := outcomes_of(every[n])) <= source.room:
            return every[n][0], outcomes
    raise _too_much(source, min(map(outcomes_of, every), key=_highest))


def _highest(outcomes: list[Outcome]) -> int:
    return max(outcome.peak_bytes for outcome in outcomes)


def _too_much(source: Source, outcomes: list[Outcome]) -> InfeasibleBudget:
    worst = max(outcomes, key=lambda outcome: outcome.peak_bytes)
    reserved = source.plan.reserved_bytes
    budget, smallest = source.room + reserved, worst.peak_bytes + reserved
    return InfeasibleBudget(budget, smallest, worst.set_by, reserved, "megatron")


def _part(chain: Chain, first: int, end: int) -> Chain:
    return Chain(chain.layers[first:end], chain.input_of(first))


def _text(source: Source, setting: Setting, notes: tuple[str, ...]) -> str:
    arguments = _arguments(setting)
    flags = "".join(
        f"--{name.replace('_', '-')} {' '.join(value) if isinstance(value, list) else value}\n"
        for name, value in arguments.items()
        if value is not None
    )
    config = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    comment = as_comment(
        [
            "Recompute flags of Megatron-LM, in place of the plan below.",
            "Written by checkpoint-scheduler.",
            "",
            *source.summary(),
            "",
            *notes,
            "",
            f"TransformerConfig({config})",
        ]
    )
    return f"{comment}\n{flags}"


def _arguments(setting: Setting) -> dict[str, object]:
    if setting.option is not None:
        values: tuple[object, ...] = ("selective", None, None, _modules(setting.option))
    elif not setting.segments:
        values = (None, None, None, None)
    else:
        _, _, method, _ = setting.text.split()
        values = ("full", method, setting.number, None)
    names = ("granularity", "method", "num_layers", "modules")
    return {f"recompute_{name}": value for name, value in zip(names, values, strict=True)}
