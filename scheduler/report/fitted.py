"""Tables that fit where they are printed: aligned, with names cut, or row below row."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

from scheduler.report.table import WIDTH, aligned

__all__ = ["fitted", "print_width", "span_text"]

_LEAST_NAME = 24
"""Characters to which a name may be cut before the table is written row below row."""

_LEAST = 20


def print_width() -> int:
    """Characters in a line of standard output: `WIDTH`, or a terminal's where that is less."""
    if not sys.stdout.isatty():
        return WIDTH
    return max(min(shutil.get_terminal_size().columns, WIDTH), _LEAST)


def fitted(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int, left: int = 1
) -> list[str]:
    """The lines of a table, none longer than `width`.

    Parameters
    ----------
    header, rows
        Texts; the first one of a row names it.
    width
        Characters.
    left
        Columns that are aligned left.
    """
    table = [header, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(left)]
    too_wide = max(map(len, aligned(table, left))) - width
    for column in range(left):  # names can be cut, figures cannot
        less = max(min(too_wide, widths[column] - _LEAST_NAME), 0)
        widths[column] -= less
        too_wide -= less
    if too_wide > 0:
        return _below_each_other(header, rows, width, left)
    cut = [[*map(_cut, row[:left], widths), *row[left:]] for row in table]
    return aligned(cut, left)


def span_text(first: str, last: str) -> str:
    """Names of a first and a last layer, what both begin with said once: ``enc.h.0–3``."""
    if first == last:
        return first
    shared = 0
    for a, b in zip(first.split("."), last.split("."), strict=False):
        if a != b:
            break
        shared += len(a) + 1
    return f"{first}–{last[shared:]}"


def _below_each_other(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int, left: int
) -> list[str]:
    """Each row as a paragraph: what it is called, then its figures with their labels."""
    labels = ["" if column == 1 and left == 2 else label for column, label in enumerate(header)]
    lines = []
    for name, *cells in rows:
        lines.append(_cut(name, width))
        said = [
            f"{label} {cell}" if label else cell
            for label, cell in zip(labels[1:], cells, strict=True)
            if cell
        ]
        lines += textwrap.wrap("; ".join(said), width, initial_indent="  ", subsequent_indent="  ")
    return lines


def _cut(words: str, most: int) -> str:
    """`words` with its middle left out where it is longer than `most`, its indent kept."""
    if len(words) <= most:
        return words
    right = (most - 1) // 2
    return f"{words[: most - 1 - right]}…{words[len(words) - right :]}"
