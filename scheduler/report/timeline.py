"""The memory of one training step over its time, with its peak named and the budget drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from scheduler.common.text import format_bytes, format_time
from scheduler.report.budget import FAR, UnderBudget
from scheduler.report.figure import AROUND_TITLES, COLOURS, Sheet
from scheduler.report.labels import Box, said_bytes, said_time, shortened

__all__ = ["Bar", "Timeline"]

_KINDS = {"first": "forward", "again": "recomputation", "back": "backward"}


class Bar(NamedTuple):
    """An action: its kind ("first", "again" or "back"), its time, and bytes live during it."""

    kind: str
    time: float
    bytes: int


@dataclass(frozen=True)
class Timeline(UnderBudget):
    """What the picture shows.

    Attributes
    ----------
    name
        Of the model; may be empty.
    bars
        The actions of the plan, in order.
    keep_all
        Those of the plan that recomputes nothing, for comparison.
    time_unit
        Of all times.
    peak_bytes, set_by
        Of the plan, and what sets it.
    budget_bytes, reserved_bytes
        The budget as asked for, or None, and what of it is reserved.
    """

    name: str
    bars: Sequence[Bar]
    keep_all: Sequence[Bar]
    time_unit: str
    peak_bytes: int
    set_by: str
    budget_bytes: int | None
    reserved_bytes: int

    margins = AROUND_TITLES

    @property
    def title(self) -> str:
        """The model's name, and what is shown."""
        return f"{self.name}: one training step" if self.name else "One training step"

    def subtitle(self) -> str:
        """The peak and the time, beside those of keeping everything."""
        unit = self.time_unit
        return (
            f"Peak {format_bytes(self.peak_bytes)} at {self.set_by}; keeping everything takes "
            f"{format_bytes(_most(self.keep_all))}. The step takes "
            f"{format_time(_time(self.bars), unit)} instead of "
            f"{format_time(_time(self.keep_all), unit)}.{self.far_budget()}"
        )

    def height(self, is_wide: bool) -> float:
        """As high as it reads best."""
        return 270 if is_wide else 190

    def draw(self, sheet: Sheet) -> None:
        """The bars with their peak, the outline of keeping everything, and the budget."""
        limit, total = self.limit, max(_time(self.bars), _time(self.keep_all)) or 1.0
        highest = max(self.peak_bytes, _most(self.keep_all) if self._has_all else 0, limit or 0)
        top = (highest or 1) * (1.12 if sheet.is_wide else 1.3)
        sheet.limits((0, total), (0, top))
        sheet.times(total, "time", self.time_unit)
        sheet.bytes(top, "memory in use", is_up=True)
        edges, columns = _columns(self.bars, total / (2 * sheet.width))
        for kind, words in _KINDS.items():
            if any(bar.kind == kind for bar in columns):
                values = [bar.bytes if bar.kind == kind else float("nan") for bar in columns]
                style: dict[str, Any] = {"color": COLOURS[kind], "linewidth": 0, "label": words}
                sheet.note(sheet.axes.stairs(values, edges, fill=True, **style), kind)
        self._block(sheet, edges, columns)
        if self._has_all:
            edges, columns = _columns(self.keep_all, total / (2 * sheet.width))
            values = [bar.bytes for bar in columns]
            style = {"color": COLOURS["muted"], "linewidth": 1, "linestyle": (0, (3, 3))}
            drawn = sheet.axes.stairs(values, edges, label="keeping everything", **style)
            sheet.note(drawn, "keep-all")
            self._block(sheet, edges, columns, softly=True)
        if limit is not None:
            sheet.limit(self.budget_bytes or 0, self.reserved_bytes, is_up=True)
        self._mark_peak(sheet)

    @property
    def highest_bytes(self) -> int:
        """The plan's peak."""
        return self.peak_bytes

    @property
    def _has_all(self) -> bool:
        return 0 < _most(self.keep_all) <= FAR * max(self.peak_bytes, 1)

    def _block(
        self, sheet: Sheet, edges: Sequence[float], columns: Sequence[Bar], *, softly: bool = False
    ) -> None:
        """Keep labels off the columns."""
        tops = sheet.at([(edge, bar.bytes) for edge, bar in zip(edges, columns, strict=False)])
        ends = [x for x, _ in tops[1:]] + [x for x, _ in sheet.at([(edges[-1], 0)])]
        boxes = [Box(x, y - 4, end, 0) for (x, y), end in zip(tops, ends, strict=True)]
        sheet.labels.block(boxes, softly=softly)

    def _mark_peak(self, sheet: Sheet) -> None:
        start = 0.0
        for bar in self.bars:
            if bar.bytes == self.peak_bytes:
                break
            start += bar.time
        middle = start + bar.time / 2
        peak = (middle, self.peak_bytes)
        sheet.note(
            sheet.mark(peak, "ink", "o", "_peak"),
            "peak",
            f"peak: {said_bytes(self.peak_bytes)}, {self.set_by}, "
            f"{said_time(middle, self.time_unit)} into the step",
            bytes=self.peak_bytes,
            time=middle,
        )
        short = f"peak {format_bytes(self.peak_bytes)}"
        sheet.label(peak, shortened(f"{short}: {self.set_by}", sheet.width * 0.8), short)


def _time(bars: Sequence[Bar]) -> float:
    return sum(bar.time for bar in bars)


def _most(bars: Sequence[Bar]) -> int:
    return max((bar.bytes for bar in bars), default=0)


def _columns(bars: Sequence[Bar], least: float) -> tuple[list[float], list[Bar]]:
    """Times between which a bar is seen, and these: of those shorter than `least`, the highest."""
    edges, columns = [0.0], []
    now = 0.0
    highest: Bar | None = None
    for i, bar in enumerate(bars):
        now += bar.time
        # Of equal ones the longer is drawn: where bars are thin, what takes most of the time.
        if highest is None or (bar.bytes, bar.time) > (highest.bytes, highest.time):
            highest = bar
        if now - edges[-1] >= least or i == len(bars) - 1:
            edges.append(now)
            columns.append(highest)
            highest = None
    return edges, columns
