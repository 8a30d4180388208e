"""A table of layer costs to read, runs of equal layers folded into one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from scheduler.layers import LayerCost
from scheduler.report.table import aligned
from scheduler.text import format_bytes

__all__ = ["costs_table"]

_HEADER = ("layer", "forward", "backward", "output", "saved")
_FIRST, _LAST = 30, 10
"""Rows shown of a table that is longer than both together."""


def costs_table(layers: Sequence[LayerCost], input_bytes: int, name: str, time_unit: str) -> str:
    """An aligned table with a title line; times as they were given, sizes in binary units."""
    count = "1 layer" if len(layers) == 1 else f"{len(layers)} layers"
    title = f"{name or 'costs'}: {count}, input {format_bytes(input_bytes)}, times in {time_unit}"
    rows = [
        _row(list(run)) for _, run in groupby(layers, key=lambda layer: replace(layer, name=""))
    ]
    hidden = len(rows) - _FIRST - _LAST
    gap = []
    if hidden > 0:
        rows, gap = rows[:_FIRST] + rows[-_LAST:], [f"… {hidden} more rows …"]
    lines = aligned([_HEADER, *rows])
    return "\n".join([title, *lines[: _FIRST + 1], *gap, *lines[_FIRST + 1 :]])


def _row(run: Sequence[LayerCost]) -> tuple[str, ...]:
    first = run[0]
    name = first.name if len(run) == 1 else f"{first.name}–{run[-1].name}"
    return (
        name,
        f"{first.forward_time:.10g}",
        f"{first.backward_time:.10g}",
        format_bytes(first.output_bytes),
        format_bytes(first.saved_bytes),
    )
