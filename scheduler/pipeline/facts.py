"""What the plan of a pipeline says, and what it does when it is executed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from scheduler.common.errors import InvalidPlan
from scheduler.costs.costgraph import CostGraph
from scheduler.costs.readers import as_costs
from scheduler.pipeline.problem import problem_of, stage_costs
from scheduler.plans.facts import held_to
from scheduler.plans.plan import Plan
from scheduler.report.tables import excess
from solvers.pipeline.problem import Order, Pipeline, Runtime
from solvers.pipeline.replay import StageReplay
from solvers.pipeline.replay import replay as replayed
from solvers.schedule import IllegalPlan


@dataclass(frozen=True)
class Stage:
    """One stage of a pipeline.

    Attributes
    ----------
    plan
        Of one microbatch alone, of the chain of this stage's layers; its peak is that of a lone
        microbatch and leaves out what the runtime holds.
    first, last
        Its layers, by position in the whole chain.
    peak_bytes
        On the stage's device at most, without `reserved_bytes`: state, what all microbatches in
        flight hold, and what the runtime holds.
    budget_bytes, reserved_bytes
        Of the device as it was asked for, and what of it is reserved.
    proven_bytes
        What was left for the stage when the pipeline's bound was proven.
    state_bytes
        Of its layers: there all the time.
    in_flight
        Most microbatches between their forward and their backward.
    forward_time, backward_time
        Of one microbatch, the backward with what runs again.
    """

    plan: Plan
    first: int
    last: int
    peak_bytes: int
    budget_bytes: int
    reserved_bytes: int
    proven_bytes: int
    state_bytes: int
    in_flight: int
    forward_time: float
    backward_time: float


@dataclass(frozen=True, repr=False)
class PipelineFacts:
    """What a plan says and does, below its face: `scheduler.pipeline.plan.PipelinePlan`."""

    cuts: tuple[int, ...]
    stages: tuple[Stage, ...]
    microbatches: int
    schedule: str
    time: float
    lower_bound_time: float
    time_unit: str
    status: str
    costs_sha256: str
    orders: tuple[Order, ...]
    runtime: Runtime
    communication_time: float
    _costs: CostGraph | None = field(default=None, compare=False)

    @property
    def bubble(self) -> float:
        """Share of the devices' time in which they wait."""
        busy = sum(stage.forward_time + stage.backward_time for stage in self.stages)
        return 1 - self.microbatches * busy / (len(self.stages) * self.time) if self.time else 0.0

    @property
    def gap(self) -> float:
        """How far the time is above the bound at most, as a share of it."""
        return excess(self.time, self.lower_bound_time)

    def name(self, costs: object = None) -> str:
        """Of its costs, parameters and errors as of `replay`; may be empty."""
        return self._own(costs).name

    def replay(self, costs: object = None) -> tuple[StageReplay, ...]:
        """Execute the plan on its costs, microbatch by microbatch.

        Parameters
        ----------
        costs
            Any form of the costs that it was made for; a plan that was just solved carries them.

        Returns
        -------
        tuple of StageReplay
            Of each stage its runs in order: when they start and end, in `time_unit`, and the bytes
            on its device.

        Raises
        ------
        InvalidPlan
            No costs are at hand, they are not those of the plan, the plan cannot be executed, a
            stage is over its budget, or a time or a peak is not what the plan says.
        """
        own = self._own(costs)
        pipeline = self._problem(own)
        for stage in self.stages:
            stage.plan.replay(stage_costs(own, stage.first, stage.last + 1))
        try:
            done = replayed(pipeline, self.cuts, [stage.plan.items for stage in self.stages])
        except IllegalPlan as error:
            raise InvalidPlan(f"the plan cannot be executed: {error}") from error
        ticks = own.ticks_per_unit
        self._check(pipeline, done, ticks)
        return tuple(
            StageReplay(
                tuple(replace(r, start=r.start / ticks, end=r.end / ticks) for r in each.runs)
            )
            for each in done
        )

    def _own(self, given: object) -> CostGraph:
        return held_to(self.costs_sha256, given, self._costs, as_costs)

    def _problem(self, own: CostGraph) -> Pipeline:
        budgets = [stage.budget_bytes - stage.reserved_bytes for stage in self.stages]
        return problem_of(own, budgets, self.orders, self.communication_time, self.runtime)

    def _check(self, pipeline: Pipeline, done: Sequence[StageReplay], ticks: int) -> None:
        """Refuse what a replay does not find to be so."""
        end = max(each.runs[-1].end for each in done)
        claims: list[tuple[str, float, float]] = [("a time", self.time, end / ticks)]
        for s, (stage, each) in enumerate(zip(self.stages, done, strict=True)):
            state = sum(pipeline.state_bytes[stage.first : stage.last + 1])
            ahead, back = each.times
            claims += [
                (f"of stage {s} a peak", stage.peak_bytes, each.peak_bytes),
                (f"of stage {s} a state", stage.state_bytes, state),
                (f"of stage {s} a forward", stage.forward_time, ahead / ticks),
                (f"of stage {s} a backward", stage.backward_time, back / ticks),
            ]
            if each.peak_bytes > pipeline.budgets[s]:
                raise InvalidPlan(
                    f"stage {s} needs {each.peak_bytes} bytes, more than its budget leaves, "
                    f"{pipeline.budgets[s]}: solve again"
                )
        for what, said, found in claims:
            if said != found:
                raise InvalidPlan(
                    f"the plan says {what} of {said}, its replay gives {found}; it was changed "
                    "after it was solved: solve again"
                )
