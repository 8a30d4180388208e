"""The plan of a pipeline: its cuts, the plan of each stage, and what is known of both."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scheduler.common.files import write_atomically
from scheduler.common.jsontext import dump_record
from scheduler.common.text import format_both, format_bytes, format_time
from scheduler.export.exported import Exported
from scheduler.pipeline import file
from scheduler.pipeline.facts import PipelineFacts, Stage
from scheduler.plans.file.loaded import Loaded
from scheduler.plans.text import labelled
from scheduler.report.notebook import InNotebooks
from scheduler.report.tables import WIDTH, fitted, format_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["PipelinePlan", "Stage"]


@dataclass(frozen=True, repr=False)
class PipelinePlan(InNotebooks, Loaded, PipelineFacts):
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


def _span(names: tuple[str, ...]) -> str:
    """The layers of a stage, by the names of the first and the last."""
    first, last = names[0], names[-1]
    return first if len(names) == 1 else f"{first} … {last} ({len(names)})"
