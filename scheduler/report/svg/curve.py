"""Time against memory: every optimal plan, where the rules of thumb stand, and the plan chosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from scheduler.common.text import format_both, format_bytes, format_time
from scheduler.report.svg.axes import LEAST_PLOT, Axis, axes, bytes_axis, time_axis
from scheduler.report.svg.labels import Box, Labels, Mark, together
from scheduler.report.svg.parts import (
    Swatch,
    circle,
    diamond,
    document,
    element,
    heading,
    legend,
    line,
    path,
    said_bytes,
    said_time,
    shortened,
)
from scheduler.report.tables import format_percent

__all__ = ["Curve", "Mark", "draw_curve"]

_STEEP = 4
"""Times that differ by more than this factor are drawn on a logarithmic axis."""

_CLOSE = 9
"""Marks that are fewer pixels apart share a label."""


class Curve(NamedTuple):
    """What the picture shows.

    Attributes
    ----------
    name
        Of the model; may be empty.
    points
        Pairs (peak bytes, time), peak ascending and time falling: the frontier.
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


def draw_curve(shown: Curve, width: float = 880, height: float = 460) -> str:
    """The picture as SVG; `width` and `height` in pixels, of which a long legend takes more."""
    title = f"{shown.name}: time against memory" if shown.name else "Time against memory"
    subtitle = _subtitle(shown)
    body, top = heading(title, subtitle, width)
    limit = None if shown.budget_bytes is None else shown.budget_bytes - shown.reserved_bytes
    marks = [*shown.others, *([shown.plan] if shown.plan else [])]
    has_limit = limit is not None and limit <= 1.5 * max(
        peak for peak in (shown.points[-1][0], *(mark.bytes for mark in marks))
    )
    signs, top = legend(_swatches(shown, has_limit), top, width)
    height = max(height, top + LEAST_PLOT)
    across, up = _axes_of(shown, marks, limit if has_limit else None, width, height, top)
    body += [*signs, *_void(shown, across, up), *axes(across, up)]
    labels = Labels(Box(across.start + 4, up.end - 10, across.end + 8, up.start - 3))
    if has_limit and limit is not None:
        body += _limit(limit, across, up)
        x = across.at(limit)
        labels.block([Box(x - 2, up.end, x + 2, up.start)], softly=True)
    if shown.bounds:
        drawn = f"M{_below_bounds(shown, across, up)}"
        body.append(path(drawn, "ckpt-option-line", dash="5 3", what="bound"))
        labels.block(_along_bounds(shown, across, up), softly=True)
    drawn = _step(shown.points, across, up)
    body.append(path(drawn, "ckpt-first-line ckpt-thick", what="frontier"))
    labels.block(_along(shown.points, across, up), softly=True)
    body += _marks(shown, across, up, labels)
    return document(title, subtitle, width, height, body, "curve")


def _subtitle(shown: Curve) -> str:
    count = len(shown.points)
    plans = shown.points_are if count != 1 else shown.points_are.replace("plans", "plan")
    ends = f"{count:,} {plans}"
    if count > 1:
        (least, slow), (most, fast) = shown.points[0], shown.points[-1]
        ends += (
            f", from {format_bytes(least)} at {format_time(slow, shown.time_unit)} "
            f"to {format_bytes(most)} at {format_time(fast, shown.time_unit)}"
        )
    said = f"{ends}."
    if shown.plan is not None and shown.bound_time is not None:
        bound = format_time(shown.bound_time, shown.time_unit)
        said += (
            f" This plan: {format_bytes(shown.plan.bytes)}, "
            f"{format_time(shown.plan.time, shown.time_unit)} "
            f"({format_percent(_overhead(shown.plan.time, shown))} over keeping everything); "
            f"no plan within its budget takes less than {bound}."
        )
    return said


def _overhead(time: float, shown: Curve) -> float:
    if shown.keep_all_time:
        return time / shown.keep_all_time - 1
    return 0.0 if time == 0 else float("inf")


def _swatches(shown: Curve, has_limit: bool) -> list[Swatch]:
    signs = [Swatch("first", "line", shown.points_are)]
    if shown.bounds:
        signs.append(Swatch("option", "dash", "proven lower bound"))
        signs.append(Swatch("void", "area", "no plan of its class is faster"))
    elif shown.is_exact:
        signs.append(Swatch("void", "area", "no plan is faster"))
    if shown.others:
        signs.append(Swatch("again", "dot", "other methods"))
    if shown.plan is not None:
        signs.append(Swatch("nested", "diamond", "this plan"))
    if shown.bound_time is not None:
        signs.append(Swatch("nested", "dash", "its lower bound"))
    if has_limit:
        signs.append(Swatch("limit", "line", f"budget {format_both(shown.budget_bytes or 0)}"))
    return signs


def _axes_of(
    shown: Curve, marks: Sequence[Mark], limit: int | None, width: float, height: float, top: float
) -> tuple[Axis, Axis]:
    peaks = [peak for peak, _ in shown.points] + [mark.bytes for mark in marks]
    peaks += [] if limit is None else [limit]
    times = [time for _, time in (*shown.points, *shown.bounds)] + [mark.time for mark in marks]
    times += [] if shown.bound_time is None else [shown.bound_time]
    least, most = min(peaks), max(peaks)
    first = 0 if least < most * 0.4 else least - (most - least) * 0.06
    many = 8 if width > 600 else 4
    across = bytes_axis(first, most + (most - first) * 0.05, 66, width - 24, "peak memory", many)
    fast, slow = min(times), max(times)
    log = fast > 0 and slow / fast > _STEEP
    gap = (slow - fast) or slow or 1.0
    low, high = (fast / 1.15, slow * 1.15) if log else (fast - gap * 0.08, slow + gap * 0.1)
    low = low if log else max(low, 0.0)
    up = time_axis(low, high, height - 52, top + 26, "time of a step", shown.time_unit, log=log)
    return across, up


def _corners(
    points: Sequence[tuple[int, float]], across: Axis, up: Axis
) -> Iterator[tuple[float, float]]:
    """The pixels of the points, without those that fall on the one before."""
    before: tuple[float, float] | None = None
    for peak, time in points:
        corner = (round(2 * across.at(peak)) / 2, round(2 * up.at(time)) / 2)
        if corner != before:
            yield corner
        before = corner


def _step(points: Sequence[tuple[int, float]], across: Axis, up: Axis) -> str:
    """Stairs through the points: a budget between two has the plan of the one below it."""
    (x, y), *rest = _corners(points, across, up)
    return f"M{x:g} {y:g}{''.join(f'H{right:g}V{lower:g}' for right, lower in rest)}H{across.end:g}"


def _below_bounds(shown: Curve, across: Axis, up: Axis) -> str:
    """Stairs under the bounds, which hold for every smaller budget, from the left to the right."""
    corners = list(_corners(shown.bounds, across, up))
    drawn = f"{across.start:g} {corners[0][1]:g}"
    return drawn + "".join(f"V{y:g}H{x:g}" for x, y in corners) + f"H{across.end:g}"


def _void(shown: Curve, across: Axis, up: Axis) -> list[str]:
    """The area in which no plan can be."""
    if shown.bounds:
        stairs = _below_bounds(shown, across, up)
    elif shown.is_exact:
        x = across.at(shown.points[0][0])
        stairs = (
            f"{across.start:g} {up.end:g}H{x:g}{_step(shown.points, across, up).replace('M', 'L')}"
        )
    else:
        return []
    return [path(f"M{stairs}V{up.start:g}H{across.start:g}Z", "ckpt-void")]


def _along(points: Sequence[tuple[int, float]], across: Axis, up: Axis) -> list[Box]:
    """Where the stairs are drawn, in boxes of a few pixels."""
    boxes: set[Box] = set()
    corners = [*_corners(points, across, up), (across.end, up.at(points[-1][1]))]
    for (x, y), (right, lower) in pairwise(corners):
        boxes.add(Box(x - 3, y - 3, right + 3, y + 3))
        boxes.add(Box(right - 3, y - 3, right + 3, lower + 3))
    return sorted(boxes)


def _along_bounds(shown: Curve, across: Axis, up: Axis) -> list[Box]:
    """Where the stairs under the bounds are drawn."""
    corners = list(_corners(shown.bounds, across, up))
    starts = [(across.start, corners[0][1]), *corners]
    boxes: list[Box] = []
    for (left, before), (x, y) in zip(
        starts, [*corners, (across.end, corners[-1][1])], strict=True
    ):
        boxes.append(Box(left - 3, min(before, y) - 3, left + 3, max(before, y) + 3))
        boxes.append(Box(left - 3, y - 3, x + 3, y + 3))
    return boxes


def _limit(limit: int, across: Axis, up: Axis) -> list[str]:
    x = across.at(limit)
    tip = element("title", f"budget without what is reserved: {said_bytes(limit)}")
    drawn = line(x, up.end, x, up.start, "limit")
    return [element("g", tip + drawn, class_="budget", data_bytes=limit)]


def _marks(shown: Curve, across: Axis, up: Axis, labels: Labels) -> list[str]:
    body: list[str] = []
    clusters: list[tuple[float, float, list[Mark]]] = []  # what stands too close for two labels
    plan = shown.plan
    if plan is not None:
        x, y = across.at(plan.bytes), up.at(plan.time)
        clusters.append((x, y, []))
        if shown.bound_time is not None:
            lower = up.at(shown.bound_time)
            drawn = line(x - 22, lower, x + 22, lower, "nested", "4 3")
            tip = element("title", f"lower bound: {said_time(shown.bound_time, shown.time_unit)}")
            time = repr(shown.bound_time)
            body.append(element("g", tip + drawn, class_="plan-bound", data_time=time))
        labels.block([Box(x - 9, y - 9, x + 9, y + 9)])
    for mark in shown.others:
        x, y = across.at(mark.bytes), up.at(mark.time)
        near = [each for each in clusters if abs(each[0] - x) + abs(each[1] - y) < _CLOSE]
        if near:
            near[0][2].append(mark)
        else:
            clusters.append((x, y, [mark]))
        labels.block([Box(x - 6, y - 6, x + 6, y + 6)])
        body.append(_mark(mark, "method", circle(x, y, 4.5, "again"), shown))
    if plan is not None:
        body.append(_mark(plan, "plan", diamond(*clusters[0][:2], "nested"), shown))
    room = (across.end - across.start) * 0.7
    for i, (x, y, marks) in enumerate(clusters):
        words = together(marks, plan if i == 0 else None, room)
        body += labels.place(x, y, shortened(words, room))
    return body


def _mark(mark: Mark, what: str, drawn: str, shown: Curve) -> str:
    tip = element(
        "title",
        f"{mark.name}: {said_bytes(mark.bytes)}, {said_time(mark.time, shown.time_unit)}, "
        f"{format_percent(_overhead(mark.time, shown))} over keeping everything",
    )
    return element(
        "g",
        tip + drawn,
        class_=what,
        data_method=mark.name,
        data_bytes=mark.bytes,
        data_time=repr(mark.time),
    )
