"""Tables of text: aligned columns, percentages, and a few rows for many."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["WIDTH", "aligned", "format_percent", "spread", "wrapped"]

WIDTH = 100
"""Characters of a line of text."""

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


def format_percent(share: float) -> str:
    """`share` of one in percent: ``16.54%``; a trace is not shown as nothing: ``<0.01%``."""
    if math.isinf(share):
        return "∞"
    return "<0.01%" if 0 < share < 0.00005 else f"{100 * share:.2f}%"


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
