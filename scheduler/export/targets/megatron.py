"""Megatron-LM: the fastest recompute flags that fit, found by replaying all of them.

``full uniform n`` checkpoints runs of n layers, ``full block n`` the first n layers of each
pipeline stage one by one, ``selective`` a part of each layer. The flags are the same for every
stage. Options of the costs stand for ``selective`` where they are called as
``recompute_modules`` are: ``core_attn``, or several joined with ``+``; or as in traced blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import attrgetter, itemgetter

from scheduler.common.errors import InfeasibleBudget, SchedulerError
from scheduler.common.text import format_bytes, format_time
from scheduler.export.exported import Exported, Source, as_comment
from scheduler.plans.settings import (
    TRACED_SELECTIVE,
    Outcome,
    Setting,
    best,
    blocks_of,
    cut_settings,
    first,
    option_settings,
    outcome_of,
    stages_of,
    uniform,
)
from solvers.chain.problem import Chain
from solvers.chain.segments import Tables

MODULES = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")
"""Values of ``recompute_modules``."""


def to_megatron(source: Source) -> Exported:
    """The best flags within the plan's budget, and what they lose against the plan.

    With pipeline stages each of them is a chain of its own within the same budget, which holds
    as many micro-batches as 1F1B has in flight there; the slowest stage counts.
    """
    chain, blocks = source.chain, blocks_of(source.chain)
    if source.stages > len(blocks):
        raise SchedulerError(
            f"{source.stages} pipeline stages are more than the {len(blocks)} blocks of the plan"
        )
    if source.stages > 1:
        return _staged(source)
    settings = flag_settings(selective_options(chain), blocks, len(blocks))
    reserved = source.plan.reserved_bytes
    outcome = best(chain, settings, source.room, family="megatron", reserved=reserved)
    notes = (
        f"Megatron's flags count {source.stack()}. In place of the plan: "
        f"{outcome.setting.text.removeprefix('megatron: ')}; {source.loss(outcome)}.",
    )
    return Exported("megatron", _text(source, outcome.setting, notes), notes, outcome)


def selective_options(chain: Chain) -> list[str]:
    """Options of every block that are called as recompute_modules are."""
    names = [setting.option or "" for setting in option_settings("", chain)]
    return [name for name in names if all(part in MODULES for part in _modules(name))]


def _modules(option: str) -> list[str]:
    return ["core_attn"] if option == TRACED_SELECTIVE else option.split("+")


def flag_settings(options: list[str], blocks: Sequence[int], most: int) -> Iterator[Setting]:
    """Every setting of the flags for one stage, the simpler ones first; numbers up to `most`."""
    yield Setting("megatron: no recomputation", ())
    for option in options:
        yield Setting(f"megatron: selective {'+'.join(_modules(option))}", (), option=option)
    yield from cut_settings("megatron: full block", first, blocks, most)
    yield from cut_settings("megatron: full uniform", uniform, blocks, most)


def _staged(source: Source) -> Exported:
    blocks = stages_of(blocks_of(source.chain), source.stages)
    cuts = [0, *(stage[0] for stage in blocks[1:]), len(source.chain)]
    chains = [
        Chain(source.chain.layers[start:end], source.chain.input_of(start))
        for start, end in pairwise(cuts)
    ]
    most, options = max(map(len, blocks)), selective_options(source.chain)
    families = [flag_settings(options, blocks_of(chain), most) for chain in chains]
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
    room, counts = source.room, [Tables(chain) for chain in chains]

    def outcomes_of(settings: tuple[Setting, ...]) -> list[Outcome]:
        return [
            outcome_of(chain, setting, source.stages - 1 - stage)
            for stage, (chain, setting) in enumerate(zip(chains, settings, strict=True))
        ]

    def measured(settings: tuple[Setting, ...]) -> tuple[int, int]:
        figures = [
            setting.measured(chain, count)
            for chain, count, setting in zip(chains, counts, settings, strict=True)
        ]
        return max(ticks for _, ticks in figures), max(peak for peak, _ in figures)

    ranked = sorted(((measured(settings), settings) for settings in every), key=itemgetter(0))
    for (_, peak), settings in ranked:
        # More micro-batches only add to the peak of one, which takes less long to find.
        if peak <= room and _highest(outcomes := outcomes_of(settings)).peak_bytes <= room:
            return settings[0], outcomes
    worst = min(
        (_highest(outcomes_of(settings)) for settings in every), key=attrgetter("peak_bytes")
    )
    reserved = source.plan.reserved_bytes
    smallest = worst.peak_bytes + reserved
    raise InfeasibleBudget(room + reserved, smallest, worst.set_by, reserved, "megatron")


def _highest(outcomes: list[Outcome]) -> Outcome:
    return max(outcomes, key=attrgetter("peak_bytes"))


def _text(source: Source, setting: Setting, notes: tuple[str, ...]) -> str:
    config = ", ".join(f"{name}={value!r}" for name, value in _arguments(setting).items())
    what = "Recompute flags of Megatron-LM, in place of the plan below."
    head = [what, "Written by checkpoint-scheduler.", "", *source.summary(), ""]
    return (
        f"{as_comment([*head, *notes, '', f'TransformerConfig({config})'])}\n{flag_text(setting)}"
    )


def flag_text(setting: Setting) -> str:
    """The flags of a setting, one a line."""
    return "".join(
        f"--{name.replace('_', '-')} {' '.join(value) if isinstance(value, list) else value}\n"
        for name, value in _arguments(setting).items()
        if value is not None
    )


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
