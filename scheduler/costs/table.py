"""Tables of costs to read, runs of equal rows folded into one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from scheduler.common.text import format_bytes
from scheduler.costs.layer import LayerCost
from scheduler.report.tables import WIDTH, fitted, wrapped

__all__ = ["costs_table", "folded_table", "inputs_of", "reads_text"]

_HEADER = ("layer", "forward", "backward", "output", "saved")
_FIRST, _LAST = 30, 10
"""Rows shown of a table that is longer than both together."""

_MOST_READ = 3
"""Names shown of what a node reads."""

_Item = TypeVar("_Item")
Edges = Sequence[tuple[int, int]]


def costs_table(
    layers: Sequence[LayerCost],
    input_bytes: int,
    title: str,
    time_unit: str,
    edges: Edges | None = None,
    width: int = WIDTH,
) -> str:
    """A table with a title line; times as they were given, sizes in binary units.

    Parameters
    ----------
    layers, input_bytes, time_unit
        Of the costs.
    title
        Their name and size.
    edges
        Pairs of positions: the layers are a graph, and the table says what each of them reads.
    width
        Characters of a line at most.
    """
    title = f"{title}, input {format_bytes(input_bytes)}, times in {time_unit}"
    reads = inputs_of(len(layers), edges)
    names = [layer.name for layer in layers]

    def row(first: int, last: int) -> tuple[str, ...]:
        cells = _cells(layers[first], layers[last])
        return cells if edges is None else (*cells, reads_text(reads[first], names, "the input"))

    header = _HEADER if edges is None else (*_HEADER, "reads")
    plain = [replace(layer, name="") for layer in layers]
    return folded_table(title, header, plain, reads, row, width)


def inputs_of(count: int, edges: Edges | None) -> list[list[int]]:
    """For each node what it reads; without edges, the node before."""
    if edges is None:
        return [[i - 1] if i else [] for i in range(count)]
    reads: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges:
        reads[b].append(a)
    return reads


def reads_text(reads: Sequence[int], names: Sequence[str], nothing: str) -> str:
    """Names of what a node reads, a few of many; `nothing` where it reads no other node."""
    shown = ", ".join(names[i] for i in reads[:_MOST_READ])
    hidden = len(reads) - _MOST_READ
    return f"{shown} and {hidden} more" if hidden > 0 else shown or nothing


def folded_table(
    title: str,
    header: Sequence[str],
    items: Sequence[_Item],
    reads: Sequence[Sequence[int]],
    row: Callable[[int, int], tuple[str, ...]],
    width: int = WIDTH,
) -> str:
    """A table with a row for each run of equal items that each read just the one before.

    Parameters
    ----------
    title, header
        The line above the table, and its first row.
    items
        What makes two rows equal.
    reads
        For each item the positions of those that it reads.
    row
        The cells of a run, from the positions of its first and its last item.
    width
        Characters of a line at most.
    """
    starts = [
        i
        for i in range(len(items))
        if not i or items[i] != items[i - 1] or list(reads[i]) != [i - 1]
    ]
    runs = list(zip(starts, [*(start - 1 for start in starts[1:]), len(items) - 1], strict=True))
    hidden = len(runs) - _FIRST - _LAST
    remark = None
    if hidden > 0:
        runs, remark = runs[:_FIRST] + runs[-_LAST:], (_FIRST, f"… {hidden} more rows …")
    cells = [row(first, last) for first, last in runs]
    return "\n".join([wrapped(title, width), *fitted(header, cells, width, remark=remark)])


def _cells(first: LayerCost, last: LayerCost) -> tuple[str, ...]:
    return (
        first.name if first is last else f"{first.name}–{last.name}",
        f"{first.forward_time:.10g}",
        f"{first.backward_time:.10g}",
        format_bytes(first.output_bytes),
        format_bytes(first.saved_bytes),
    )
