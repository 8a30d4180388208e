"""What a planned stage does beside torch's: it holds the schedule to the plan."""

from __future__ import annotations

from typing import Any

from torch.distributed.pipelining import PipelineStage

from scheduler.common.errors import InvalidPlan, UnsupportedModel
from scheduler.pipeline import PipelinePlan
from scheduler.plans.settings import checkpointed
from scheduler.pytorch.checkpointing.apply import Handle


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
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: Any = None,
        full_backward: bool = True,
        last_backward: Any = False,
    ) -> None:
        """As torch's; refuses backwards in two parts where something is recomputed."""
        own = self.plan.stages[self.stage_index].plan
        if not full_backward and checkpointed(own.items):
            raise UnsupportedModel(
                f"the schedule runs the backward of stage {self.stage_index} in two parts, between "
                "which what is recomputed stays in memory; use Schedule1F1B or ScheduleGPipe"
            )
        super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
