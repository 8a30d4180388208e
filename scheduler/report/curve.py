"""Time against memory: every optimal plan, where the rules of thumb stand, and the plan chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from scheduler.common.text import format_bytes, format_time
from scheduler.report.figure import AROUND_TITLES, COLOURS, Sheet
from scheduler.report.labels import Box, along, said_bytes, said_time, shortened, text_width
from scheduler.report.tables import excess, format_percent

__all__ = ["Curve", "Mark"]

_STEEP = 4
"""Times that differ by more than this factor are drawn on a logarithmic axis."""

_CLOSE = 9
"""Marks that are fewer points apart share a label."""

_NAMES = 2
"""Names said beside the first one of marks that share a label."""

_Points = Sequence[tuple[float, float]]
_Where = Literal["pre", "post"]


class Mark(NamedTuple):
    """A plan: what it is called, and where it stands."""

    name: str
    bytes: int
    time: float


@dataclass(frozen=True)
class Curve:
    """What the picture shows.

    Attributes
    ----------
    name
        Of the model; may be empty.
    points
        Pairs (peak bytes, time), peak ascending and time falling: the frontier. It may be empty
        where there are other plans.
    points_are
        What they are: "optimal plans", "plans of a sweep".
    is_exact
        Whether the points are all optimal ones, so that nothing is faster than they are.
    bounds
        Pairs (budget in bytes, time that no plan within it beats), ascending; for a sweep.
    others
        Plans of other methods.
    plan
        The plan that was chosen, or None.
    bound_time
        No plan within the budget takes less; None without a plan.
    keep_all_time
        Of the plan that recomputes nothing.
    time_unit
        Of all times.
    budget_bytes, reserved_bytes
        The budget as asked for, or None, and what of it is reserved.
    """

    name: str
    points: Sequence[tuple[int, float]]
    points_are: str
    is_exact: bool
    bounds: Sequence[tuple[int, float]]
    others: Sequence[Mark]
    plan: Mark | None
    bound_time: float | None
    keep_all_time: float
    time_unit: str
    budget_bytes: int | None
    reserved_bytes: int

    margins = AROUND_TITLES

    @property
    def title(self) -> str:
        """The model's name, and what is shown."""
        return f"{self.name}: time against memory" if self.name else "Time against memory"

    def subtitle(self) -> str:
        """Where the points begin and end, and what the plan needs."""
        unit = self.time_unit
        said = []
        if self.points:
            count = len(self.points)
            what = self.points_are if count != 1 else self.points_are.replace("plans", "plan")
            ends = f"{count:,} {what}"
            if count > 1:
                (least, slow), (most, fast) = self.points[0], self.points[-1]
                ends += (
                    f", from {format_bytes(least)} at {format_time(slow, unit)} "
                    f"to {format_bytes(most)} at {format_time(fast, unit)}"
                )
            said.append(f"{ends}.")
        if self.plan is not None and self.bound_time is not None:
            said.append(
                f"This plan: {format_bytes(self.plan.bytes)}, {format_time(self.plan.time, unit)} "
                f"({self._overhead(self.plan)} over keeping everything); "
                f"no plan within its budget takes less than {format_time(self.bound_time, unit)}."
            )
        return " ".join(said)

    def height(self, is_wide: bool) -> float:
        """As high as it reads best."""
        return 290 if is_wide else 220

    def draw(self, sheet: Sheet) -> None:
        """The area where no plan can be, the stairs of bounds and points, and the marks."""
        (left, right), (low, high), is_log = self._limits()
        if is_log:
            sheet.axes.set_yscale("log")
        sheet.limits((left, right), (low, high))
        sheet.bytes(right, "peak memory")
        sheet.times(high, "time of a step", self.time_unit, is_up=True, log=is_log)
        points, bounds = sheet.thinned(self.points), sheet.thinned(self.bounds)
        if points:
            points.append((right, points[-1][1]))
            self._draw_stairs(sheet, points, "frontier", "post")
        if bounds:  # each holds for smaller budgets too
            bounds = [(left, bounds[0][1]), *bounds, (right, bounds[-1][1])]
            self._draw_stairs(sheet, bounds, "bound", "pre")
            self._draw_void(sheet, bounds, "pre")
        elif self.is_exact and points:
            self._draw_void(sheet, [(left, high), *points], "post")
        if self._limit is not None:
            sheet.limit(self.budget_bytes or 0, self.reserved_bytes, is_up=False)
        self._draw_plans(sheet)

    @property
    def _limit(self) -> int | None:
        """What a plan may use, where that is near enough to be drawn."""
        if self.budget_bytes is None:
            return None
        limit = self.budget_bytes - self.reserved_bytes
        return limit if limit <= 1.5 * max(self._peaks()) else None

    @property
    def _marks(self) -> list[Mark]:
        return [*([self.plan] if self.plan else []), *self.others]

    def _peaks(self) -> list[int]:
        return [peak for peak, _ in self.points] + [mark.bytes for mark in self._marks]

    def _overhead(self, mark: Mark) -> str:
        return format_percent(excess(mark.time, self.keep_all_time))

    def _limits(self) -> tuple[tuple[float, float], tuple[float, float], bool]:
        """The memory and the times to be shown, and whether these need a logarithmic axis."""
        peaks = self._peaks() + [limit for limit in (self._limit,) if limit is not None]
        times = [time for _, time in (*self.points, *self.bounds)]
        times += [mark.time for mark in self._marks]
        times += [bound for bound in (self.bound_time,) if bound is not None]
        least, most = min(peaks), max(peaks)
        first = 0 if least < most * 0.4 else least - (most - least) * 0.06
        last = most + (most - first) * 0.05
        fast, slow = min(times), max(times)
        gap = (slow - fast) or slow or 1.0
        is_log = fast > 0 and slow / fast > _STEEP
        low, high = max(fast - gap * 0.08, 0.0), slow + gap * 0.1
        up = (fast / 1.15, slow * 1.15) if is_log else (low, high)
        return (first, max(last, first + 1)), up, is_log

    def _draw_stairs(self, sheet: Sheet, points: _Points, part: str, where: _Where) -> None:
        """Draw the points of the frontier, or the bounds."""
        style: dict[str, Any] = {"color": COLOURS["first"], "linewidth": 2}
        if part == "bound":
            style = {"color": COLOURS["option"], "linewidth": 1, "linestyle": (0, (5, 3))}
        words = "proven lower bound" if part == "bound" else self.points_are
        (drawn,) = sheet.axes.step(*zip(*points, strict=True), where=where, label=words, **style)
        sheet.note(drawn, part)
        sheet.labels.block(along(sheet.at(_stairs(points, where)), 3), softly=True)

    def _draw_void(self, sheet: Sheet, points: _Points, where: _Where) -> None:
        """Fill the area below the points, where no plan can be."""
        what = "no plan of its class is faster" if self.bounds else "no plan is faster"
        xs, ys = zip(*points, strict=True)
        low, _ = sheet.axes.get_ylim()
        style: dict[str, Any] = {
            "color": COLOURS["void"],
            "linewidth": 0,
            "zorder": 0.2,
            "label": what,
        }
        sheet.note(sheet.axes.fill_between(xs, ys, low, step=where, **style), "void")

    def _draw_plans(self, sheet: Sheet) -> None:
        """Draw every mark, the plan's bound, and a label for those that stand together."""
        clusters: list[tuple[float, float, list[Mark]]] = []
        marks = self._marks
        methods = "other methods" if self.plan is not None else "methods"
        for mark, (x, y) in zip(marks, sheet.at([mark[1:] for mark in marks]), strict=True):
            near = (each for a, b, each in clusters if abs(a - x) + abs(b - y) < _CLOSE)
            cluster = next(near, None)
            if cluster is None:
                clusters.append((x, y, [mark]))
            else:
                cluster.append(mark)
            is_plan = mark is self.plan
            half = 9 if is_plan else 6
            sheet.labels.block([Box(x - half, y - half, x + half, y + half)])
            words = "this plan" if is_plan else methods if mark is self.others[0] else "_"
            drawn = sheet.mark(mark[1:], *("nested", "D") if is_plan else ("again", "o"), words)
            tip = (
                f"{mark.name}: {said_bytes(mark.bytes)}, {said_time(mark.time, self.time_unit)}, "
                f"{self._overhead(mark)} over keeping everything"
            )
            data = {"method": mark.name, "bytes": mark.bytes, "time": mark.time}
            sheet.note(drawn, "plan" if is_plan else "method", tip, **data)
        if self.plan is not None and self.bound_time is not None:
            self._draw_bound(sheet, self.plan.bytes, self.bound_time)
        room = sheet.width * 0.7
        for _, _, cluster in clusters:
            sheet.label(cluster[0][1:], shortened(self._together(cluster, room), room))

    def _draw_bound(self, sheet: Sheet, peak: int, time: float) -> None:
        """Draw a short dashed line across the plan's bound."""
        first, last = sheet.axes.get_xlim()
        half = (last - first) * 22 / sheet.width
        style: dict[str, Any] = {
            "color": COLOURS["nested"],
            "linewidth": 1,
            "linestyle": (0, (4, 3)),
        }
        (drawn,) = sheet.axes.plot(
            (peak - half, peak + half), (time, time), label="its lower bound", **style
        )
        sheet.note(
            drawn, "plan-bound", f"lower bound: {said_time(time, self.time_unit)}", time=time
        )

    def _together(self, marks: Sequence[Mark], room: float) -> str:
        """The label of marks that stand together; "=" where they are at the very same place."""
        first, *others = marks
        if first is self.plan:  # it may be among the methods too
            others = [mark for mark in others if mark != first]
        for names in range(min(_NAMES, len(others)), -1, -1):
            said = "this plan" if first is self.plan else first.name
            for mark in others[:names]:
                said += f" = {mark.name}" if mark[1:] == first[1:] else f", {mark.name}"
            said += f" and {len(others) - names} more" if len(others) > names else ""
            if text_width(said) <= room:
                break
        return said


def _stairs(points: _Points, where: _Where) -> list[tuple[float, float]]:
    """The corners of stairs through the points."""
    corners = list(points[:1])
    for (x, y), (right, lower) in pairwise(points):
        corners += [(x, lower) if where == "pre" else (right, y), (right, lower)]
    return corners
