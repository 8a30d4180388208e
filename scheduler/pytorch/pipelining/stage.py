"""A stage of a planned pipeline, for the schedules of `torch.distributed.pipelining`."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage

from scheduler.common.errors import InvalidPlan, UnsupportedModel
from scheduler.pipeline import PipelinePlan
from scheduler.plans.settings import checkpointed
from scheduler.pytorch.checkpointing.apply import Handle, apply_chain
from scheduler.pytorch.model.step import device_of
from scheduler.pytorch.model.wrappers import bare
from scheduler.pytorch.pipelining.cut import Spans, StageModel, check_cuts


class PlannedStage(PipelineStage):
    """A `PipelineStage` that runs as its part of a plan says.

    Attributes
    ----------
    plan
        Of the whole pipeline.
    handle
        Of this stage's own plan, as `scheduler.pytorch.apply` returns it; None where it keeps all.
    """

    plan: PipelinePlan
    handle: Handle | None

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """As torch's; refuses more microbatches, of a step and in flight, than in the plan."""
        plan, rank = self.plan, self.stage_index
        if fwd_chunk_id >= plan.microbatches:
            raise InvalidPlan(
                f"the schedule runs more than the {plan.microbatches} microbatches of the plan; "
                "give it so many, or solve for more"
            )
        if self.has_backward and len(self.fwd_cache) >= plan.stages[rank].in_flight:
            raise InvalidPlan(
                f"the schedule holds more than {len(self.fwd_cache)} microbatches on stage {rank}, "
                f"and the plan is one of {plan.schedule!r}, which holds no more; solve with the "
                "schedule that runs"
            )
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)  # type: ignore[no-untyped-call]

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, **kwargs: Any
    ) -> None:
        """As torch's; refuses backwards in two parts where something is recomputed."""
        own = self.plan.stages[self.stage_index].plan
        if not full_backward and checkpointed(own.items):
            raise UnsupportedModel(
                f"the schedule runs the backward of stage {self.stage_index} in two parts, between "
                "which what is recomputed stays in memory; use Schedule1F1B or ScheduleGPipe"
            )
        super().backward_one_chunk(bwd_chunk_id, loss, full_backward, **kwargs)  # type: ignore[no-untyped-call]


def pipeline_stage(
    model: nn.Module,
    plan: PipelinePlan,
    rank: int | None = None,
    *,
    inputs: Any = None,
    device: torch.device | None = None,
    group: dist.ProcessGroup | None = None,
) -> PlannedStage:
    """Cut a model to one stage of a plan, and make it train as the plan says.

    The stage is for `Schedule1F1B` and `ScheduleGPipe` of `torch.distributed.pipelining`. What runs
    before the blocks is on the first stage, what runs behind them on the last, whose output is that
    of the model (of transformers' models the logits); `inputs` go into the first, and keyword
    arguments of `step`, such as a mask, into all.

    Parameters
    ----------
    model
        The whole model, on any device, also "meta". It is cut in place: what other stages have
        loses its weights. Names of modules and weights stay.
    plan
        Of `solve_pipeline`, for costs whose layers carry the blocks' names, as
        `scheduler.pytorch.profile` and `scheduler.memory.costs_from_shape` give them.
    rank
        The stage; default: that of this process in `group`.
    inputs
        A microbatch as `scheduler.pytorch.profile` takes it, to see what runs before the blocks and
        what behind. An `nn.Sequential` and transformers' models need none.
    device
        Where activations are received; default: where the weights are.
    group
        The processes of the pipeline; default: all.

    Raises
    ------
    InvalidPlan
        The plan is for another number of processes or another model; or, in a step, for another
        schedule, or fewer microbatches.
    UnsupportedModel
        The model cannot be cut there: a weight would be on two stages, or code of its own between
        blocks; or, in a step, the schedule splits backwards in which something is recomputed.
    """
    stages = len(plan.stages)
    if (found := dist.get_world_size(group)) != stages:
        raise InvalidPlan(
            f"the plan has {stages} stages, and there are {found} processes, of which each runs "
            f"one; start {stages}, or solve with stages={found}"
        )
    rank = dist.get_rank(group) if rank is None else rank
    if not 0 <= rank < stages:
        raise InvalidPlan(f"the plan has stages 0 to {stages - 1}, and no stage {rank}")
    model = bare(model)
    layers = [name for stage in plan.stages for name in stage.plan.layers]
    spans = Spans(model, layers, inputs)
    check_cuts(model, layers, plan.cuts, spans)
    own = plan.stages[rank].plan
    device = device_of(model, inputs) if device is None else device
    cut = StageModel(model, range(plan.cuts[rank], plan.cuts[rank + 1]), spans)
    blocks = [name for name in own.layers if name in spans.blocks]
    made = PlannedStage(cut, rank, stages, device, group=group)
    made.plan = plan
    made.handle = apply_chain(own, model, blocks) if blocks else None
    return made
