"""When the stages of a pipeline run, microbatch by microbatch, and what lies on their devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from scheduler.common.text import format_bytes, format_time
from scheduler.report.figure import COLOURS, Sheet
from scheduler.report.labels import text_width
from scheduler.report.tables import format_percent

__all__ = ["Gantt", "Lane", "Part", "StageMemory"]

_KINDS = {"first": "forward", "again": "recomputation", "back": "backward"}
_LANE = 30
_BAR = 0.8


class Part(NamedTuple):
    """What a device does: "first", "again" or "back", of which microbatch, and when.

    Then so many bytes lie on it at most, and when it is over `after_bytes`.
    """

    kind: str
    microbatch: int
    start: float
    end: float
    bytes: int
    after_bytes: int


class Lane(NamedTuple):
    """A device: its parts in order, and what may lie on it."""

    parts: Sequence[Part]
    budget_bytes: int


@dataclass(frozen=True)
class _Lanes:
    """What both pictures show.

    Attributes
    ----------
    name
        Of the model; may be empty.
    lanes
        The devices, first stage first.
    time
        Of one step.
    time_unit
        Of all times.
    bubble
        Share of the devices' time in which they wait.
    """

    name: str
    lanes: Sequence[Lane]
    time: float
    time_unit: str
    bubble: float

    margins = (66.0, 24.0, 14.0, 52.0)

    def height(self, is_wide: bool) -> float:
        """A lane for each device."""
        return max(_LANE * len(self.lanes), 90)

    def _frame(self, sheet: Sheet) -> None:
        count = len(self.lanes)
        sheet.limits((0, self.time or 1), (count - 0.5, -0.5))
        sheet.times(self.time or 1, "time", self.time_unit)
        sheet.axes.set_yticks(range(count), [f"stage {s}" for s in range(count)])
        sheet.axes.grid(visible=False)


class Gantt(_Lanes):
    """Forwards, backwards, recomputation and waiting of each stage."""

    @property
    def title(self) -> str:
        """The model's name, and what is shown."""
        return f"{self.name}: one step of the pipeline" if self.name else "One step of the pipeline"

    def subtitle(self) -> str:
        """How long a step takes, and how much of it devices wait."""
        return (
            f"The step takes {format_time(self.time, self.time_unit)}; devices wait "
            f"{format_percent(self.bubble)} of it. What runs again is drawn at the start of its "
            "backward; numbers are microbatches."
        )

    def draw(self, sheet: Sheet) -> None:
        """A row of bars for each device."""
        self._frame(sheet)
        for kind, words in _KINDS.items():
            label: str | None = words
            for s, lane in enumerate(self.lanes):
                bars = [(p.start, p.end - p.start) for p in lane.parts if p.kind == kind]
                if not bars:
                    continue
                style: dict[str, Any] = {
                    "facecolors": COLOURS[kind],
                    "edgecolors": COLOURS["paper"],
                    "linewidth": 0.5,
                    "label": label,
                }
                drawn = sheet.axes.broken_barh(bars, (s - _BAR / 2, _BAR), **style)
                sheet.note(drawn, kind, f"stage {s}: {words}")
                label = None
        for s, lane in enumerate(self.lanes):
            for part in lane.parts:
                self._number(sheet, s, part)

    def _number(self, sheet: Sheet, s: int, part: Part) -> None:
        words = str(part.microbatch)
        wide = (part.end - part.start) / (self.time or 1) * sheet.width
        if part.kind == "again" or wide < text_width(words) + 4:
            return
        sheet.axes.text(
            (part.start + part.end) / 2,
            s,
            words,
            color=COLOURS["paper"] if part.kind == "first" else COLOURS["ink"],
            fontsize=8,
            horizontalalignment="center",
            verticalalignment="center",
        )


class StageMemory(_Lanes):
    """What lies on the device of each stage, under its budget."""

    @property
    def title(self) -> str:
        """The model's name, and what is shown."""
        return f"{self.name}: memory of each stage" if self.name else "Memory of each stage"

    def subtitle(self) -> str:
        """The stage that is nearest to its budget."""
        room, s = min(
            (lane.budget_bytes - self._peak(lane), s) for s, lane in enumerate(self.lanes)
        )
        peak = format_bytes(self._peak(self.lanes[s]))
        return (
            f"Stage {s} is nearest to its budget: peak {peak}, {format_bytes(room)} below. Each "
            "lane is as high as its stage's budget; runs are drawn at their peaks."
        )

    def draw(self, sheet: Sheet) -> None:
        """For each device its bytes over time, and the line that they stay below."""
        self._frame(sheet)
        label: str | None = "in use"
        line: str | None = "budget, without what is reserved"
        for s, lane in enumerate(self.lanes):
            floor, scale = s + _BAR / 2, _BAR / (lane.budget_bytes or 1)
            at = lane.parts[-1].after_bytes  # as before the step
            xs, ys = [0.0], [at]
            for part in lane.parts:
                xs += [part.start, part.start, part.end, part.end]
                ys += [at, part.bytes, part.bytes, part.after_bytes]
                at = part.after_bytes
            xs, ys = [*xs, self.time], [*ys, at]
            style: dict[str, Any] = {"color": COLOURS["first"], "linewidth": 0, "label": label}
            tops = [floor - size * scale for size in ys]
            drawn = sheet.axes.fill_between(xs, tops, floor, **style)
            sheet.note(drawn, "first", f"stage {s}: peak {format_bytes(self._peak(lane))}")
            (limit,) = sheet.axes.plot(
                (0, self.time),
                (floor - _BAR,) * 2,
                color=COLOURS["limit"],
                linewidth=1,
                label=line,
            )
            sheet.note(limit, "budget", f"budget: {format_bytes(lane.budget_bytes)}")
            label = line = None

    @staticmethod
    def _peak(lane: Lane) -> int:
        return max(part.bytes for part in lane.parts)
