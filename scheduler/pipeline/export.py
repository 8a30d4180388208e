"""The plan of a pipeline in the words of the libraries that run it.

Megatron-LM takes a layout (``--pipeline-model-parallel-layout``: E the embedding, t a decoder
layer, L the loss, stages between ``|``), and one ``--recompute-num-layers`` for all stages.
torchtitan takes the modules of each stage, and a policy for each of their blocks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from scheduler.common.errors import InvalidPlan, SchedulerError
from scheduler.common.text import format_bytes, format_time, shown
from scheduler.export.exported import Exported
from scheduler.pipeline.rows import Way, settings_of, sort_of
from scheduler.plans.settings import checkpointed
from scheduler.report.tables import excess, format_percent

if TYPE_CHECKING:
    from scheduler.pipeline.plan import PipelinePlan, Stage

TARGETS = {
    "megatron": "its pipeline layout, and the best recompute flags for it",
    "torchtitan": "module_fqns_per_model_part, and which blocks of each stage are checkpointed",
    "json": "the plan file",
}


def exported(plan: PipelinePlan, target: str, costs: object) -> Exported:
    """The file for a target; see `scheduler.export.export`."""
    if target == "json":
        return Exported(target, plan.to_json())
    if target == "megatron":
        return _megatron(plan, costs)
    if target == "torchtitan":
        return _torchtitan(plan)
    raise SchedulerError(
        f"the plan of a pipeline cannot be exported to {shown(target)}; choose "
        f"{', '.join(TARGETS)}"
    )
