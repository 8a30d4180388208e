"""Peak and overhead of plans by length, under their budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scheduler.common.text import format_bytes
from scheduler.report.budget import UnderBudget
from scheduler.report.figure import AROUND_TITLES, COLOURS, Sheet
from scheduler.report.labels import Box, said_bytes
from scheduler.report.tables import format_percent

__all__ = ["Lengths", "Point"]


class Point(NamedTuple):
    """A plan: the tokens of its step, its peak, its overhead, and that of the longest's plan."""

    tokens: int
    peak_bytes: int
    overhead: float
    longest_overhead: float


@dataclass(frozen=True)
class Lengths(UnderBudget):
    """What the picture shows.

    Attributes
    ----------
    name
        Of the model; may be empty.
    points
        Tokens ascending.
    budget_bytes, reserved_bytes
        The budget as asked for, or None, and what of it is reserved.
    """

    name: str
    points: Sequence[Point]
    budget_bytes: int | None
    reserved_bytes: int

    margins = AROUND_TITLES

    @property
    def title(self) -> str:
        """The model's name, and what is shown."""
        return f"{self.name}: plans by length" if self.name else "Plans by length"

    def subtitle(self) -> str:
        """The ends, and the budget where it is not drawn."""
        first, last = self.points[0], self.points[-1]
        return (
            f"The shortest plan, for {first.tokens:,} tokens, loses "
            f"{format_percent(first.overhead)}; the longest, for {last.tokens:,}, "
            f"{format_percent(last.overhead)}. A step runs under the plan of the next longer point."
            f"{self.far_budget()}"
        )

    def height(self, is_wide: bool) -> float:
        """As high as it reads best."""
        return 270 if is_wide else 190

    def draw(self, sheet: Sheet) -> None:
        """The peak of each length's plan, its overhead beside it, and the budget."""
        edges = [0, *(each.tokens for each in self.points)]
        limit = self.limit
        top = max(self.highest_bytes, limit or 0) or 1
        sheet.limits((0, edges[-1] * 1.04), (0, top * 1.2))
        sheet.bytes(top, "peak memory", is_up=True)
        sheet.axes.xaxis.set_label_text("tokens of a step")
        values = [each.peak_bytes for each in self.points]
        drawn = sheet.axes.stairs(
            values, edges, fill=True, color=COLOURS["void"], linewidth=0, label="within the peak"
        )
        sheet.note(drawn, "void")
        if limit is not None:
            sheet.limit(self.budget_bytes or 0, self.reserved_bytes, is_up=True)
        places = sheet.at([(each.tokens, each.peak_bytes) for each in self.points])
        for i, (each, (x, y)) in enumerate(zip(self.points, places, strict=True)):
            sheet.labels.block([Box(x - 6, y - 6, x + 6, y + 6)])
            point = (each.tokens, each.peak_bytes)
            words = "a plan, with the time it loses" if not i else "_"
            tip = (
                f"{each.tokens:,} tokens: {said_bytes(each.peak_bytes)}, "
                f"{format_percent(each.overhead)} over keeping everything; under the longest's "
                f"plan {format_percent(each.longest_overhead)}"
            )
            data = {"tokens": each.tokens, "bytes": each.peak_bytes, "overhead": each.overhead}
            sheet.note(sheet.mark(point, "nested", "D", words), "plan", tip, **data)
        for each in self.points:
            point = (each.tokens, each.peak_bytes)
            lost = format_percent(each.overhead)
            sheet.label(point, f"{lost}, {format_bytes(each.peak_bytes)}", lost)

    @property
    def highest_bytes(self) -> int:
        """The highest peak."""
        return max(each.peak_bytes for each in self.points)
