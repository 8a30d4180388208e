"""Pictures of a pipeline's plan: what its replay says, drawn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from scheduler.plans.pictures import WIDTH
from scheduler.report.gantt import Gantt, Lane, Part, StageMemory
from scheduler.report.svg import svg
from solvers.pipeline.replay import StageReplay

if TYPE_CHECKING:
    from scheduler.pipeline.facts import PipelineFacts, Stage


def gantt_picture(plan: PipelineFacts, costs: object = None, width: float = WIDTH) -> str:
    """When each stage runs forward and backward, as SVG; parameters and errors as `replay`'s."""
    return svg(gantt(plan, costs), width)


def memory_picture(plan: PipelineFacts, costs: object = None, width: float = WIDTH) -> str:
    """What lies on each stage's device, as SVG."""
    return svg(StageMemory(*_lanes(plan, costs)), width)


def gantt(plan: PipelineFacts, costs: object = None) -> Gantt:
    """The first of them, to be drawn."""
    return Gantt(*_lanes(plan, costs))


def _lanes(plan: PipelineFacts, costs: object) -> tuple[Any, ...]:
    lanes = [
        Lane(list(_parts(stage, done)), stage.budget_bytes - stage.reserved_bytes)
        for stage, done in zip(plan.stages, plan.replay(costs), strict=True)
    ]
    return plan.name(costs), lanes, plan.time, plan.time_unit, plan.bubble


def _parts(stage: Stage, done: StageReplay) -> Iterator[Part]:
    # What runs again runs between backwards of layers, and is drawn before all of them.
    again = stage.plan.time - stage.plan.keep_all_time
    for run in done.runs:
        peak, start = run.peak_bytes, run.start
        if run.kind == "B" and again > 0:
            yield Part("again", run.microbatch, start, start + again, peak, peak)
            start += again
        kind = "first" if run.kind == "F" else "back"
        yield Part(kind, run.microbatch, start, run.end, peak, run.after_bytes)
