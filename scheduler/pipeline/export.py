"""The plan of a pipeline in the words of the libraries that run it.

Megatron-LM takes a layout (``--pipeline-model-parallel-layout``: E the embedding, t a decoder
layer, L the loss; stages stand between ``|``), and one setting of recomputation for all stages.
torchtitan takes the modules of each stage (``module_fqns_per_model_part``); which blocks of them
are checkpointed is in the same file.
"""

from __future__ import annotations

import json
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from scheduler.common.errors import InfeasibleBudget, InvalidPlan, SchedulerError
from scheduler.common.text import format_both, format_time, shown
from scheduler.export.exported import Exported, as_comment
from scheduler.export.targets.megatron import flag_text
from scheduler.pipeline import ways
from scheduler.plans.settings import blocks_of, checkpointed
from scheduler.report.tables import excess, format_percent
from solvers.schedule import Keep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.costs.costgraph import CostGraph
    from scheduler.pipeline.facts import PipelineFacts, Stage
    from solvers.pipeline.problem import Pipeline

TARGETS = {
    "megatron": "its pipeline layout, and the best recompute flags for it",
    "torchtitan": "module_fqns_per_model_part, and what of each stage is checkpointed",
    "json": "the plan file",
}


def exported(plan: PipelineFacts, target: str, costs: CostGraph, pipeline: Pipeline) -> Exported:
    """The file for a target; see `scheduler.export.export`."""
    if target == "megatron":
        return _megatron(plan, costs, pipeline)
    if target == "torchtitan":
        return _torchtitan(plan, pipeline)
    raise SchedulerError(
        f"the plan of a pipeline cannot be exported to {shown(target)}; choose {', '.join(TARGETS)}"
    )


def _megatron(plan: PipelineFacts, costs: CostGraph, pipeline: Pipeline) -> Exported:
    """The layout of the plan's cuts, and the fastest flags that fit on every stage."""
    cuts = plan.cuts
    layout = _layout(pipeline, cuts)
    families = ways.megatron_settings(pipeline, cuts)
    best = ways.best_of(ways.by_setting(pipeline, cuts, families))
    assert best.setting is not None  # it is one of a setting
    if not best.fits:
        lacks = max(best.lacking)
        s = best.lacking.index(lacks)
        asked = plan.stages[s].budget_bytes
        raise InfeasibleBudget(
            asked,
            asked + lacks,
            f"stage {s} of {len(plan.stages)}, where Megatron's flags are the same for all",
            plan.stages[s].reserved_bytes,
            "megatron",
        )
    time = best.time / costs.ticks_per_unit
    notes = (
        f"Megatron's recompute flags are the same for all stages. In place of the plan: "
        f"{best.name.removeprefix('megatron: ')}, which takes "
        f"{format_time(time, plan.time_unit)} a step against the plan's "
        f"{format_time(plan.time, plan.time_unit)} ({format_percent(excess(time, plan.time))} "
        "longer), replayed.",
    )
    flags = f"--pipeline-model-parallel-layout '{layout}'\n{flag_text(best.setting)}"
    return Exported("megatron", f"{as_comment([*_head(plan), *notes])}\n{flags}", notes)


def _layout(pipeline: Pipeline, cuts: Sequence[int]) -> str:
    """E, t and L of each stage; runs of t as Megatron writes them: ``t*4``."""
    blocks = set(blocks_of(pipeline.chain))
    last = len(pipeline.chain) - 1
    if not {0, last}.isdisjoint(blocks) or blocks != set(range(1, last)):
        raise InvalidPlan(
            "Megatron's layout has an embedding, decoder layers and a loss, and these layers are "
            "not an embedding, blocks whose names end with numbers, and a head"
        )
    parts = []
    for first, end in pairwise(cuts):
        letters = ("E" if i == 0 else "L" if i == last else "t" for i in range(first, end))
        runs = [(letter, len(list(run))) for letter, run in groupby(letters)]
        parts.append("".join(each if n == 1 else f"{each}*{n}" for each, n in runs))
    return "|".join(parts)


def _torchtitan(plan: PipelineFacts, pipeline: Pipeline) -> Exported:
    """Names of modules as torchtitan has them: tok_embeddings, layers.0, norm and output."""
    blocks = {layer: i for i, layer in enumerate(blocks_of(pipeline.chain))}
    first, last = min(blocks), max(blocks)
    parts, kept, notes = [], [], []
    for stage in plan.stages:
        names: list[str] = []
        for i in range(stage.first, stage.last + 1):
            if i in blocks:
                names.append(f"layers.{blocks[i]}")
            elif i < first:
                names.append("tok_embeddings")
            elif i > last:
                names += ["norm", "output"]
        parts.append(names)
        inside = {stage.first + i for i in checkpointed(stage.plan.items)}
        kept.append([f"layers.{blocks[i]}" for i in sorted(inside) if i in blocks])
        if not _is_plain(stage):
            notes.append(
                f"Stage {len(parts) - 1} keeps more than whole blocks, one by one, can say "
                "(several in one checkpoint, checkpoints in checkpoints, or options): apply its "
                "own plan with scheduler.pytorch.pipeline_stage."
            )
    record = {
        "parallelism": {
            "pipeline_parallel_degree": len(parts),
            "pipeline_parallel_schedule": {"1f1b": "1F1B", "gpipe": "GPipe"}.get(plan.schedule),
            "module_fqns_per_model_part": parts,
        },
        "checkpointed_blocks_per_model_part": kept,
    }
    return Exported("torchtitan", json.dumps(record, indent=1) + "\n", tuple(notes))


def _is_plain(stage: Stage) -> bool:
    """Whether whole blocks are kept or checkpointed, one by one."""
    items = stage.plan.items
    single = all(isinstance(each, Keep) or each.first == each.last for each in items)
    return stage.plan.depth <= 1 and single and not stage.plan.schedule.options()


def _head(plan: PipelineFacts) -> list[str]:
    budgets = sorted({stage.budget_bytes for stage in plan.stages})
    return [
        "Pipeline layout and recompute flags of Megatron-LM.",
        "Written by checkpoint-scheduler.",
        "",
        f"Plan of {len(plan.stages)} stages, {plan.microbatches} microbatches, {plan.schedule}, "
        f"{plan.status}: {format_time(plan.time, plan.time_unit)} a step within "
        f"{' to '.join(map(format_both, {budgets[0], budgets[-1]}))} a device; costs "
        f"{plan.costs_sha256[:12]}.",
        "",
    ]
