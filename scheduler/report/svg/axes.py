"""Axes of pictures: where a value stands, and round values along the way."""

from __future__ import annotations

import math
from typing import NamedTuple

from scheduler.report.svg.parts import element, line, text

__all__ = ["LEAST_PLOT", "Axis", "axes", "bytes_axis", "time_axis"]

LEAST_PLOT = 250
"""Pixels of a picture below its legend at least: its axes with their titles take 78 of them."""

_BINARY = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))
_TIMES = ("ns", "us", "ms", "s")


class Axis(NamedTuple):
    """Where values of one kind stand: `first` at pixel `start`, `last` at pixel `end`."""

    first: float
    last: float
    start: float
    end: float
    title: str
    ticks: tuple[tuple[float, str], ...]
    log: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value; those beyond the ends are put at the ends."""
        value = min(max(value, self.first), self.last)
        share = (
            math.log(value / self.first) / math.log(self.last / self.first)
            if self.log
            else (value - self.first) / (self.last - self.first)
        )
        return self.start + share * (self.end - self.start)


def axes(across: Axis, up: Axis) -> list[str]:
    """Grid, ticks and titles of a plot; `up` runs from the bottom to the top."""
    body = []
    for value, label in up.ticks:
        y = up.at(value)
        body.append(line(across.start, y, across.end, y, "grid"))
        tick = text(across.start - 8, y + 4, label, anchor="end", colour="muted")
        body.append(element("g", tick, class_="tick-up", data_value=value, data_pixel=y))
    for value, label in across.ticks:
        x = across.at(value)
        body.append(line(x, up.start, x, up.start + 5, "muted"))
        tick = text(x, up.start + 19, label, anchor="middle", colour="muted")
        body.append(element("g", tick, class_="tick-across", data_value=value, data_pixel=x))
    body.append(line(across.start, up.start, across.end, up.start, "muted"))
    middle = (across.start + across.end) / 2
    body.append(text(middle, up.start + 38, across.title, anchor="middle", colour="muted"))
    body.append(text(across.start - 50, up.end - 14, up.title, colour="muted"))
    return body


def bytes_axis(
    first: float, last: float, start: float, end: float, title: str, ticks: int = 6
) -> Axis:
    """An axis of bytes in the binary unit that its end reads best in."""
    last = last if last > first else first + 1
    size, unit = next((size, unit) for size, unit in _BINARY if last >= size or size == 1)
    return _axis(first, last, start, end, f"{title}, {unit}", size, ticks)


def time_axis(
    first: float,
    last: float,
    start: float,
    end: float,
    title: str,
    unit: str,
    ticks: int = 6,
    *,
    log: bool = False,
) -> Axis:
    """An axis of times given in `unit`, in the unit that its end reads best in."""
    last = last if last > first else first + 1
    size = 1.0
    if unit in _TIMES:
        step = _TIMES.index(unit)
        while last / size >= 1000 and step < len(_TIMES) - 1:
            size, step = size * 1000, step + 1
        while last / size < 1 and step > 0:
            size, step = size / 1000, step - 1
        unit = _TIMES[step]
    return _axis(first, last, start, end, f"{title}, {unit}", size, ticks, log=log)


def _axis(
    first: float,
    last: float,
    start: float,
    end: float,
    title: str,
    size: float,
    ticks: int,
    *,
    log: bool = False,
) -> Axis:
    ends = (first / size, last / size)
    values = _log_ticks(*ends) if log else _ticks(*ends, ticks)
    marks = tuple((value * size, f"{value:.10g}") for value in values)
    return Axis(first, last, start, end, title, marks, log)


def _ticks(first: float, last: float, most: int) -> list[float]:
    """Round values between the ends, at most `most` steps of 1, 2, 2.5 or 5 times 10^n."""
    rough = (last - first) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
    start = math.ceil(first / step - 1e-9)
    return [i * step for i in range(start, math.floor(last / step + 1e-9) + 1)]


def _log_ticks(first: float, last: float) -> list[float]:
    low, high = math.floor(math.log10(first)), math.ceil(math.log10(last))
    factors = (1, 2, 5) if high - low < 4 else (1,)
    values = [m * 10.0**power for power in range(low, high + 1) for m in factors]
    return [value for value in values if first <= value <= last]
