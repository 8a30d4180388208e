"""The memory of one training step over its time, with its peak named and the budget drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scheduler.common.text import format_both, format_bytes, format_time
from scheduler.report.svg.axes import LEAST_PLOT, Axis, axes, bytes_axis, time_axis
from scheduler.report.svg.labels import Box, Labels
from scheduler.report.svg.parts import (
    Swatch,
    circle,
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

__all__ = ["Bar", "Timeline", "draw_timeline"]

_KINDS = (("first", "forward"), ("again", "recomputation"), ("back", "backward"))
_STEPS_A_PIXEL = 2
_FAR = 4
"""Keeping everything, or a budget, is drawn up to this many times the peak."""


class Bar(NamedTuple):
    """An action: its kind ("first", "again" or "back"), its time, and bytes live during it."""

    kind: str
    time: float
    bytes: int


class Timeline(NamedTuple):
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


def draw_timeline(shown: Timeline, width: float = 880, height: float = 420) -> str:
    """The picture as SVG; `width` and `height` in pixels, of which a long legend takes more."""
    total, most = _time(shown.bars), max((bar.bytes for bar in shown.keep_all), default=0)
    limit = None if shown.budget_bytes is None else shown.budget_bytes - shown.reserved_bytes
    near = _FAR * max(shown.peak_bytes, 1)
    has_all = 0 < most <= near
    has_limit = limit is not None and limit <= near
    title = f"{shown.name or 'Memory'}: one training step" if shown.name else "One training step"
    body, top = heading(
        title, _subtitle(shown, total, most, limit if not has_limit else None), width
    )
    names = {bar.kind for bar in shown.bars}
    swatches = [Swatch(kind, "area", label) for kind, label in _KINDS if kind in names]
    if has_all:
        swatches.append(Swatch("muted", "dash", "keeping everything"))
    if has_limit:
        swatches.append(Swatch("limit", "line", _budget_words(shown)))
    signs, top = legend(swatches, top, width)
    height = max(height, top + LEAST_PLOT)
    highest = max(shown.peak_bytes, most if has_all else 0, limit or 0 if has_limit else 0)
    across = time_axis(
        0, max(total, _time(shown.keep_all)), 66, width - 18, "time", shown.time_unit, _many(width)
    )
    up = bytes_axis(
        0, highest * (1.12 if width > 600 else 1.3), height - 52, top + 26, "memory in use"
    )
    body += [*signs, *axes(across, up)]
    for kind, _ in _KINDS:
        if drawn := _areas(shown.bars, kind, across, up):
            body.append(path(drawn, f"ckpt-{kind}", what=kind))
    if has_all:
        body.append(
            path(
                _outline(shown.keep_all, across, up), "ckpt-muted-line", dash="3 3", what="keep-all"
            )
        )
    labels = Labels(Box(across.start + 4, up.end - 8, across.end, up.start - 4))
    labels.block(_covered(shown.bars, across, up))
    if has_all:
        labels.block(_covered(shown.keep_all, across, up), softly=True)
    if has_limit and limit is not None:
        y = up.at(limit)
        labels.block([Box(across.start, y - 2, across.end, y + 2)])
        tip = element("title", f"budget without what is reserved: {said_bytes(limit)}")
        drawn = tip + line(across.start, y, across.end, y, "limit")
        body.append(element("g", drawn, class_="budget", data_bytes=limit))
    body += _peak(shown, across, up, labels)
    return document(title, _subtitle(shown, total, most, None), width, height, body, "timeline")


def _subtitle(shown: Timeline, total: float, most: int, limit: int | None) -> str:
    said = (
        f"Peak {format_bytes(shown.peak_bytes)} at {shown.set_by}; keeping everything takes "
        f"{format_bytes(most)}. The step takes {format_time(total, shown.time_unit)} instead of "
        f"{format_time(_time(shown.keep_all), shown.time_unit)}."
    )
    if limit is not None:
        said += f" The budget, {format_both(limit)}, lies far above."
    return said


def _time(bars: Sequence[Bar]) -> float:
    return sum(bar.time for bar in bars)


def _many(width: float) -> int:
    return 8 if width > 600 else 4


def _areas(bars: Sequence[Bar], kind: str, across: Axis, up: Axis) -> str:
    drawn = []
    for start, end, bar in _columns(bars, across):
        if bar.kind == kind:
            y = up.at(bar.bytes)
            drawn.append(f"M{start:.1f} {up.start:g}V{y:.1f}H{end:.1f}V{up.start:g}Z")
    return "".join(drawn)


def _outline(bars: Sequence[Bar], across: Axis, up: Axis) -> str:
    drawn = f"M{across.start:g} {up.start:g}"
    for _, end, bar in _columns(bars, across):
        drawn += f"V{up.at(bar.bytes):.1f}H{end:.1f}"
    return f"{drawn}V{up.start:g}"


def _columns(bars: Sequence[Bar], across: Axis) -> list[tuple[float, float, Bar]]:
    """Bars with the pixels where they start and end; of those that share one, the highest."""
    columns: list[tuple[float, float, Bar]] = []
    begin, now = across.start, 0.0
    highest: Bar | None = None
    for i, bar in enumerate(bars):
        now += bar.time
        # Of equal ones the longer is drawn: where bars are thin, what takes most of the time.
        if highest is None or (bar.bytes, bar.time) > (highest.bytes, highest.time):
            highest = bar
        end = across.at(now)
        # An edge of a column is on a grid of half pixels, or where the next bar would be as wide.
        if (end - begin) * _STEPS_A_PIXEL >= 1 or i == len(bars) - 1:
            last = columns[-1] if columns else None
            if last is not None and last[2][::2] == highest[::2]:
                columns[-1] = (last[0], end, highest)
            else:
                columns.append((begin, end, highest))
            begin, highest = end, None
    return columns


def _covered(bars: Sequence[Bar], across: Axis, up: Axis) -> list[Box]:
    """Where the bars are drawn, in strips a few pixels wide."""
    strips: dict[int, float] = {}
    for start, end, bar in _columns(bars, across):
        for strip in range(int(start) // 6, int(end) // 6 + 1):
            strips[strip] = min(strips.get(strip, up.start), up.at(bar.bytes))
    return [Box(6 * strip, top - 4, 6 * strip + 6, up.start) for strip, top in strips.items()]


def _budget_words(shown: Timeline) -> str:
    words = f"budget {format_both(shown.budget_bytes or 0)}"
    if shown.reserved_bytes:
        words += f", less {format_bytes(shown.reserved_bytes)} reserved"
    return words


def _peak(shown: Timeline, across: Axis, up: Axis, labels: Labels) -> list[str]:
    now = 0.0
    for bar in shown.bars:
        if bar.bytes == shown.peak_bytes:
            break
        now += bar.time
    middle = now + bar.time / 2
    x, y = across.at(middle), up.at(shown.peak_bytes)
    words = f"peak {format_bytes(shown.peak_bytes)}: {shown.set_by}"
    words = shortened(words, (across.end - across.start) * 0.8)
    tip = element(
        "title",
        f"peak: {said_bytes(shown.peak_bytes)}, {shown.set_by}, "
        f"{said_time(middle, shown.time_unit)} into the step",
    )
    mark = element(
        "g",
        tip + circle(x, y, 4.5, "ink"),
        class_="peak",
        data_bytes=shown.peak_bytes,
        data_time=repr(middle),
    )
    labels.block([Box(x - 6, y - 6, x + 6, y + 6)])
    short = f"peak {format_bytes(shown.peak_bytes)}"
    return [mark, *(labels.place(x, y, words) or labels.place(x, y, short))]
