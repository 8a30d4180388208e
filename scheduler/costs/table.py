"""Tables of costs to read, runs of equal rows folded into one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from scheduler.report.tables import WIDTH, fitted, wrapped

__all__ = ["costs_table"]

_FIRST, _LAST = 30, 10
"""Rows shown of a table that is longer than both together."""

_MOST_READ = 3
"""Names shown of what a part reads."""


def costs_table(
    title: str,
    header: tuple[str, ...],
    parts: Sequence[Any],
    cells: Callable[[Any], tuple[str, ...]],
    edges: Sequence[tuple[int, int]] | None,
    *,
    nothing: str,
    width: int = WIDTH,
) -> str:
    """A table with a row for each run of equal parts that each read just the one before.

    Parameters
    ----------
    title, header
        The line above the table, and its first row.
    parts, cells
        Layers or nodes, and what a row says of one beside its name.
    edges
        Pairs of positions: the table says what each part reads. None: the parts are a chain.
    nothing
        What it says of a part that reads no other.
    width
        Characters of a line at most.
    """
    reads: list[list[int]] = [[] for _ in parts]
    for a, b in [(i, i + 1) for i in range(len(parts) - 1)] if edges is None else edges:
        reads[b].append(a)
    plain = [replace(part, name="") for part in parts]
    starts = [
        i for i in range(len(parts)) if not i or plain[i] != plain[i - 1] or reads[i] != [i - 1]
    ]
    runs = list(zip(starts, [*(start - 1 for start in starts[1:]), len(parts) - 1], strict=True))
    hidden = len(runs) - _FIRST - _LAST
    remark = None
    if hidden > 0:
        runs, remark = runs[:_FIRST] + runs[-_LAST:], (_FIRST, f"… {hidden} more rows …")
    names = [part.name for part in parts]
    rows = [
        (
            names[first] if first == last else f"{names[first]}–{names[last]}",
            *cells(parts[first]),
            *([] if edges is None else [_listed([names[i] for i in reads[first]]) or nothing]),
        )
        for first, last in runs
    ]
    columns = header if edges is None else (*header, "reads")
    return "\n".join([wrapped(title, width), *fitted(columns, rows, width, remark=remark)])


def _listed(names: Sequence[str]) -> str:
    """A few of many names."""
    text, hidden = ", ".join(names[:_MOST_READ]), len(names) - _MOST_READ
    return f"{text} and {hidden} more" if hidden > 0 else text
