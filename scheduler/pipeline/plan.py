"""The plan of a pipeline: its cuts, the plan of each stage, and what is known of both."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.common.text import format_bytes, format_time
from scheduler.plans.plan import Plan
from scheduler.plans.text import labelled
from scheduler.report.notebook import InNotebooks
from scheduler.report.tables import WIDTH, excess, fitted, format_percent


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
        On the stage's device at most: state, what all microbatches in flight hold, and what the
        runtime holds.
    budget_bytes
        Of the device, without what is reserved.
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
    state_bytes: int
    in_flight: int
    forward_time: float
    backward_time: float


@dataclass(frozen=True, repr=False)
class PipelinePlan(InNotebooks):
    """Where a chain is cut into stages, and what each of them keeps.

    Attributes
    ----------
    cuts
        The first layer of each stage, and behind them the number of layers.
    stages
        Each with its plan.
    microbatches
        Of one step.
    schedule
        "1f1b" or "gpipe", or "custom" where orders were given.
    time, lower_bound_time
        Of one step; no cuts and plans within the budgets take less than the bound.
    time_unit
        Of all times.
    status
        "optimal" where the bound proves it, else "feasible".
    costs_sha256
        Digest of the costs that it was made for.
    """

    cuts: tuple[int, ...]
    stages: tuple[Stage, ...]
    microbatches: int
    schedule: str
    time: float
    lower_bound_time: float
    time_unit: str
    status: str
    costs_sha256: str

    @property
    def bubble(self) -> float:
        """Share of the devices' time in which they wait."""
        busy = sum(stage.forward_time + stage.backward_time for stage in self.stages)
        return 1 - self.microbatches * busy / (len(self.stages) * self.time) if self.time else 0.0

    @property
    def gap(self) -> float:
        """How far the time is above the bound at most, as a share of it."""
        return excess(self.time, self.lower_bound_time)

    def __repr__(self) -> str:
        return (
            f"<PipelinePlan: {len(self.stages)} stages, {self.microbatches} microbatches, "
            f"{self.schedule}, {self.status}, {format_time(self.time, self.time_unit)} a step>"
        )

    def __str__(self) -> str:
        unit = self.time_unit
        lines = [
            (
                "time",
                f"{format_time(self.time, unit)} a step of {self.microbatches} microbatches, "
                f"{self.schedule}; devices wait {format_percent(self.bubble)} of it",
            ),
            (
                "status",
                f"{self.status}; no cuts and plans within the budgets take less than "
                f"{format_time(self.lower_bound_time, unit)} (gap {format_percent(self.gap)})",
            ),
        ]
        header = ["stage", "layers", "forward", "backward", "again", "in flight", "peak", "budget"]
        rows = []
        for s, stage in enumerate(self.stages):
            rows.append(
                [
                    str(s),
                    _span(stage.plan.layers),
                    format_time(stage.forward_time, unit),
                    format_time(stage.backward_time, unit),
                    format_percent(stage.plan.overhead),
                    str(stage.in_flight),
                    format_bytes(stage.peak_bytes),
                    format_bytes(stage.budget_bytes),
                ]
            )
        return "\n".join([*labelled(lines), "", *fitted(header, rows, WIDTH, left=2)])


def _span(names: tuple[str, ...]) -> str:
    """The layers of a stage, by the names of the first and the last."""
    first, last = names[0], names[-1]
    return first if len(names) == 1 else f"{first} … {last} ({len(names)})"
