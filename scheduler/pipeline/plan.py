"""The plan of a pipeline: its cuts, the plan of each stage, and what is known of both."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from scheduler.common.errors import InvalidPlan
from scheduler.common.files import read_text, write_atomically
from scheduler.common.jsontext import dump_record
from scheduler.common.text import format_both, format_bytes, format_time
from scheduler.costs.costgraph import CostGraph
from scheduler.costs.readers import as_costs
from scheduler.export.exported import Exported
from scheduler.pipeline import file
from scheduler.pipeline.problem import problem_of, stage_costs
from scheduler.plans.file.items import parse_plan
from scheduler.plans.plan import Plan
from scheduler.plans.text import labelled
from scheduler.report.notebook import InNotebooks
from scheduler.report.tables import WIDTH, excess, fitted, format_percent
from solvers.pipeline.problem import Order, Pipeline, Runtime
from solvers.pipeline.replay import StageReplay
from solvers.pipeline.replay import replay as replayed
from solvers.schedule import IllegalPlan

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    orders
        Of each stage what it does, in order: pairs ("F", m) and ("B", m).
    runtime
        What the library holds beside the plan.
    communication_time
        From a stage to the next, and back.
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

    def export(self, target: str, costs: object = None) -> Exported:
        """The plan as a file for a library; what `scheduler.export.export` does with it.

        Parameters
        ----------
        target
            "megatron", "torchtitan" or "json".
        costs
            As for `replay`; "json" needs none.

        Raises
        ------
        SchedulerError
            There is no such target, or `InvalidPlan`, `InfeasibleBudget`: it cannot say the plan.
        """
        if target == "json":
            return Exported(target, self.to_json())
        from scheduler.pipeline.export import exported  # only who exports needs it

        own = self._own(costs)
        self.replay(own)
        return exported(self, target, own, self._problem(own))

    def to_dict(self) -> dict[str, Any]:
        """The plan in the form of its file."""
        return file.record(vars(self), [vars(stage) for stage in self.stages])

    def to_json(self) -> str:
        """The text of its file."""
        return dump_record(self.to_dict(), ("stages",))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write its file, whole or not at all."""
        write_atomically(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PipelinePlan:
        """Read the file of a pipeline's plan; `replay` tells whether it still holds.

        Raises
        ------
        InvalidPlan
            The file is none, or says what cannot be.
        """
        return cls.from_json(read_text(path, "plan file", InvalidPlan), os.fspath(path))

    @classmethod
    def from_json(cls, text: str, source: str = "the JSON text") -> PipelinePlan:
        """Read the text of such a file; `source` is what a message calls it."""
        try:
            return cls.from_dict(parse_plan(text, source))
        except InvalidPlan as error:
            raise InvalidPlan(f"{source}: {error}") from error

    @classmethod
    def from_dict(cls, record: object) -> PipelinePlan:
        """The plan in a mapping in the form of such a file."""
        stages, values = file.parsed(record)
        return cls(stages=tuple(Stage(**stage) for stage in stages), **values)

    def __repr__(self) -> str:
        return (
            f"<PipelinePlan: {len(self.stages)} stages, {self.microbatches} microbatches, "
            f"{self.schedule}, {self.status}, {format_time(self.time, self.time_unit)} a step>"
        )

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int = WIDTH) -> str:
        """What is known of it, and a row a stage, in lines of at most `width` characters."""
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
        reserved = {stage.reserved_bytes for stage in self.stages}
        if any(reserved):
            sizes = " to ".join(map(format_both, sorted(reserved)[:: max(len(reserved) - 1, 1)]))
            lines.append(("reserved", f"{sizes} of each device, not in the budgets below"))
        header, *rows = self.cells()
        return "\n".join([*labelled(lines), "", *fitted(header, rows, width, left=2)])

    def cells(self) -> list[tuple[str, ...]]:
        """A row a stage, under a header."""
        return [
            ("stage", "layers", "forward", "backward", "again", "in flight", "peak", "budget"),
            *(
                (
                    str(s),
                    _span(stage.plan.layers),
                    format_time(stage.forward_time, self.time_unit),
                    format_time(stage.backward_time, self.time_unit),
                    format_percent(stage.plan.overhead),
                    str(stage.in_flight),
                    format_bytes(stage.peak_bytes),
                    format_bytes(stage.budget_bytes - stage.reserved_bytes),
                )
                for s, stage in enumerate(self.stages)
            ),
        ]

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw when each stage runs forward and backward, on axes of matplotlib.

        Raises
        ------
        InvalidPlan
            As `replay`: a plan from a file does not carry its costs.
        SchedulerError
            matplotlib is not installed.
        """
        from scheduler.pipeline.pictures import gantt  # only who draws it needs it
        from scheduler.report.figure import plot

        return plot(gantt(self), ax)

    def _repr_svg_(self) -> str | None:
        from scheduler.pipeline.pictures import gantt_picture  # only who draws it needs it
        from scheduler.report.figure import can_draw

        return gantt_picture(self) if self._costs is not None and can_draw() else None

    def _own(self, given: object) -> CostGraph:
        if given is None and self._costs is None:
            raise InvalidPlan("a plan from a file does not carry its costs; pass the layer costs")
        own = as_costs(self._costs if given is None else given)
        if own.sha256 != self.costs_sha256:
            raise InvalidPlan(
                f"the plan belongs to other costs: it was made for those with digest "
                f"{self.costs_sha256[:8]}…, these have {own.sha256[:8]}…"
            )
        return own

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


def _span(names: tuple[str, ...]) -> str:
    """The layers of a stage, by the names of the first and the last."""
    first, last = names[0], names[-1]
    return first if len(names) == 1 else f"{first} … {last} ({len(names)})"
