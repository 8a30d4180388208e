"""Tables of text: aligned, with names cut or row below row where that fits no line."""

from __future__ import annotations

import math
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TypeVar

from scheduler.common.text import figures

__all__ = ["WIDTH", "aligned", "excess", "fitted", "format_percent", "narrowed", "print_width"]
__all__ += ["span_text", "spread", "wrapped"]

WIDTH = 100
"""Characters of a line of text."""

_LEAST_NAME = 24
"""Characters to which a name may be cut before the table is written row below row."""

_LEAST = 20
_FIXED = "\N{NO-BREAK SPACE}"

_Row = TypeVar("_Row")


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """One line a row: the first `left` columns aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def excess(time: float, least: float) -> float:
    """How far `time` is above `least`, as a share of it; infinite above nothing."""
    if time == least:
        return 0.0
    return time / least - 1 if least else float("inf")


def format_percent(share: float) -> str:
    """`share` of one in percent: ``16.54%``; a trace is not shown as nothing: ``<0.01%``."""
    percent = 100 * share
    if math.isinf(share):
        return "∞"
    if 0 < percent < 0.005:
        return "<0.01%"
    return f"{figures(percent, 3 if 0 < abs(percent) < 0.9995 else 2)}%"


def spread(rows: Sequence[_Row], most: int) -> list[_Row]:
    """At most `most` of the rows, evenly chosen, the first and the last among them."""
    if len(rows) <= most:
        return list(rows)
    if most == 1:
        return [rows[0]]
    return [rows[i * (len(rows) - 1) // (most - 1)] for i in range(most)]


def wrapped(text: str, width: int = WIDTH, indent: str = "") -> str:
    """`text` in lines of at most `width`, where words allow it, all but the first one indented."""
    return textwrap.fill(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def print_width() -> int:
    """Characters in a line of standard output: `WIDTH`, or where that is less what a terminal has.

    What is set as ``COLUMNS`` is believed, of a terminal or not.
    """
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").strip("0").isdecimal():
        return WIDTH
    return max(min(shutil.get_terminal_size().columns, WIDTH), _LEAST)


def fitted(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    left: int = 1,
    remark: tuple[int, str] | None = None,
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
    remark
        A line between rows, and how many of them stand before it.
    """
    table = [header, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(left)]
    too_wide = max(map(len, aligned(table, left))) - width
    for column in range(left):  # names can be cut, figures cannot
        less = max(min(too_wide, widths[column] - _LEAST_NAME), 0)
        widths[column] -= less
        too_wide -= less
    if too_wide > 0:
        parts = [_below(header, row, width, left) for row in rows]
    else:
        cut = [[*map(_cut, row[:left], widths), *row[left:]] for row in table]
        parts = [[line] for line in aligned(cut, left)]
    if remark is not None:
        where, words = remark
        parts.insert(where + (too_wide <= 0), [_cut(words, width)])  # below the header
    return [line for part in parts for line in part]


def narrowed(text: str, width: int) -> str:
    """`text` with its lines continued below where they are longer than `width`, and indented."""
    indent = " " * (10 if width >= 60 else 4)
    return "\n".join(
        wrapped(line, width, indent) if len(line) > width else line for line in text.split("\n")
    )


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


def _below(header: Sequence[str], row: Sequence[str], width: int, left: int) -> list[str]:
    """A row as a paragraph: what it is called, then its figures with their labels."""
    name, *cells = row
    labels = ["" if column == 1 and left == 2 else label for column, label in enumerate(header)]
    said = [
        f"{label} {cell}" if label else cell
        for label, cell in zip(labels[1:], cells, strict=True)
        if cell
    ]
    named = f"{header[0]} {name}" if not left else name
    # A figure stays with its label and its unit: lines end between figures, where there is room.
    joined = "; ".join(
        each.replace(" ", _FIXED) if len(each) < width - 2 else each for each in said
    )
    figures = textwrap.wrap(joined, width, initial_indent="  ", subsequent_indent="  ")
    return [_cut(named, width), *(line.replace(_FIXED, " ") for line in figures)]


def _cut(words: str, most: int) -> str:
    """`words` with its middle left out where it is longer than `most`, its indent kept."""
    if len(words) <= most:
        return words
    right = (most - 1) // 2
    return f"{words[: most - 1 - right]}…{words[len(words) - right :]}"
