"""A stage of a planned pipeline, for the schedules of `torch.distributed.pipelining`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from scheduler.common.errors import InvalidPlan
from scheduler.pipeline import PipelinePlan
from scheduler.pytorch.checkpointing.apply import apply_chain
from scheduler.pytorch.model.step import device_of
from scheduler.pytorch.model.wrappers import bare
from scheduler.pytorch.pipelining.cut import Spans, StageModel, check_cuts

if TYPE_CHECKING:
    from scheduler.pytorch.pipelining.planned import PlannedStage


def with_output(loss_fn: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The loss with the output that it is made of, which schedules hold until its backward.

    For `scheduler.pytorch.profile`, whose costs the last stage is then planned by:
    ``profile(model, inputs, with_output(lambda out: loss_fn(out.logits, labels)))``.
    """

    @wraps(loss_fn)
    def held(output: Any) -> torch.Tensor:
        loss = loss_fn(output)
        loss.output = output  # type: ignore[attr-defined]
        return loss

    return held


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
    from scheduler.pytorch.pipelining.planned import PlannedStage  # loading takes a second

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
