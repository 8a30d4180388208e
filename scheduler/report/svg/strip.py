"""A strip of layers: which are kept, which are recomputed and how often, in which segments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from scheduler.report.svg.parts import (
    Swatch,
    document,
    element,
    escaped,
    heading,
    legend,
    shortened,
    text,
    text_width,
)

__all__ = ["Cell", "Span", "Strip", "draw_strip"]

_WORDS = {
    "first": "kept",
    "option": "kept in part (an option)",
    "again": "recomputed once",
    "nested": "recomputed more often",
}
_HEIGHTS = {"first": 30.0, "option": 30.0, "again": 20.0, "nested": 12.0}
"""What is kept stands high, what is recomputed low: colour is not needed to tell them apart."""

_ROW = 100
"""Layers in a row of a wide picture; a narrow one has half as many."""

_MOST_LEVELS = 5
_LEVEL, _CELLS, _GAP, _NAMES = 7, 30, 26, 18
_MOST_OPTIONS = 6
"""Options that are counted by name; of the others, how many there are."""


class Cell(NamedTuple):
    """A layer: its name, "first" (kept), "option", "again" or "nested", runs, and its option."""

    name: str
    state: str
    runs: int
    option: str | None = None


class Span(NamedTuple):
    """A checkpointed segment: its first and last layer, and how deep it is nested, from 0."""

    first: int
    last: int
    depth: int


class Strip(NamedTuple):
    """What the picture shows.

    Attributes
    ----------
    name
        Of the model; may be empty.
    noun
        What the cells are: "layer" or "node".
    cells, spans
        In the order of the layers; a graph has no spans.
    """

    name: str
    noun: str
    cells: Sequence[Cell]
    spans: Sequence[Span]


def draw_strip(shown: Strip, width: float = 880) -> str:
    """The picture as SVG, as high as it needs to be; `width` in pixels."""
    what = f"{shown.noun} by {shown.noun}"
    title = f"{shown.name}: {what}" if shown.name else what.capitalize()
    subtitle = _subtitle(shown)
    body, top = heading(title, subtitle, width)
    states = {cell.state for cell in shown.cells}
    swatches = [Swatch(key, "area", words) for key, words in _WORDS.items() if key in states]
    if shown.spans:
        swatches.append(Swatch("muted", "line", "a segment that is recomputed as one"))
    signs, top = legend(swatches, top, width)
    body += signs
    left, right = 16 + text_width(str(len(shown.cells) - 1)) + 8, width - 16
    most = _ROW if width > 600 else _ROW // 2
    rows = -(-len(shown.cells) // most)
    in_row = -(-len(shown.cells) // rows)
    cell_width = min((right - left) / in_row, 60)
    y = top + 20
    for start in range(0, len(shown.cells), in_row):
        end = min(start + in_row, len(shown.cells))
        body += _row(shown, start, end, left, y, cell_width)
        spans = [
            span
            for span in shown.spans
            if span.first < end and span.last >= start and span.depth < _MOST_LEVELS
        ]
        body += [
            _segment(shown, span, start, end, left, y + _CELLS + 2, cell_width) for span in spans
        ]
        levels = max((span.depth + 1 for span in spans), default=0)
        y += _CELLS + _LEVEL * levels
        options = _options(shown, start, end, left, y + 3, cell_width)
        body += options
        y += _GAP + (_NAMES if options else 0)
    return document(title, subtitle, width, y - _GAP + 18, body, "strip")


def _subtitle(shown: Strip) -> str:
    counts = {state: sum(cell.state == state for cell in shown.cells) for state in _WORDS}
    total = f"{len(shown.cells)} {shown.noun}{'s' * (len(shown.cells) != 1)}"
    said = f"{total}: " + ", ".join(
        f"{count} {words}"
        for count, words in zip(counts.values(), _WORDS.values(), strict=True)
        if count
    )
    extra = sum(cell.runs - 1 for cell in shown.cells)
    said += f"; {extra} extra run{'s' * (extra != 1)} in all."
    options = Counter(cell.option for cell in shown.cells if cell.option is not None)
    if options:
        named = [f"{name} ({n})" for name, n in list(options.items())[:_MOST_OPTIONS]]
        hidden = len(options) - _MOST_OPTIONS
        said += f" By option: {', '.join(named)}{f' and {hidden} more' if hidden > 0 else ''}."
    deepest = max((span.depth + 1 for span in shown.spans), default=0)
    if deepest > _MOST_LEVELS:
        said += f" Segments nest {deepest} deep; the outer {_MOST_LEVELS} levels are drawn."
    return said


def _row(shown: Strip, start: int, end: int, left: float, y: float, cell_width: float) -> list[str]:
    body = [text(left - 8, y + _CELLS - 4, str(start), anchor="end", colour="muted")]
    gap = 1.0 if cell_width > 5 else 0.4
    for i in range(start, end):
        cell = shown.cells[i]
        high = _HEIGHTS[cell.state]
        x = left + (i - start) * cell_width
        tip = f"{i}: {cell.name}: {_WORDS[cell.state]}, {cell.runs} run{'s' * (cell.runs != 1)}"
        if cell.option is not None:
            tip += f", option {cell.option}"
        body.append(
            element(
                "rect",
                f"<title>{escaped(tip)}</title>",
                x=round(x, 2),
                y=y + _CELLS - high,
                width=round(cell_width - gap, 2),
                height=high,
                class_=f"ckpt-{cell.state}",
                data_layer=i,
                data_runs=cell.runs,
            )
        )
    body += _names(shown, start, end, left, y, cell_width)
    return body


def _options(
    shown: Strip, start: int, end: int, left: float, y: float, cell_width: float
) -> list[str]:
    """Under neighbours of one option a line, and its name where that meets no other."""
    body: list[str] = []
    inset, free = min(0.15 * cell_width, 1.5), left
    for option, run in groupby(range(start, end), key=lambda i: shown.cells[i].option):
        cells = list(run)
        if option is None:
            continue
        x, wide = left + (cells[0] - start) * cell_width, len(cells) * cell_width
        body.append(
            element(
                "rect",
                x=round(x + inset, 2),
                y=y,
                width=round(wide - 2 * inset, 2),
                height=2,
                class_="ckpt-option",
                data_option=option,
            )
        )
        half = text_width(option) / 2
        middle = max(x + wide / 2, left + half)
        middle = min(middle, left + (end - start) * cell_width - half)
        if middle - half >= free:
            body.append(text(middle, y + 15, option, anchor="middle", colour="muted"))
            free = middle + half + 6
    return body


def _names(
    shown: Strip, start: int, end: int, left: float, y: float, cell_width: float
) -> list[str]:
    """The names of the first and the last layer of a row, above it."""
    room = (end - start) * cell_width
    first, last = shown.cells[start].name, shown.cells[end - 1].name
    if end - start == 1:
        return [text(left, y - 4, shortened(first, max(room, 200)), colour="muted")]
    if room < 200:
        words = shortened(f"{first} … {last}", 320)
        return [text(left, y - 4, words, colour="muted")]
    return [
        text(left, y - 4, shortened(first, room / 2 - 8), colour="muted"),
        text(left + room, y - 4, shortened(last, room / 2 - 8), anchor="end", colour="muted"),
    ]


def _segment(
    shown: Strip, span: Span, start: int, end: int, left: float, y: float, cell_width: float
) -> str:
    first, last = max(span.first, start), min(span.last, end - 1)
    inset = min(0.15 * cell_width, 1.5)
    x = left + (first - start) * cell_width + inset
    names = f"{shown.cells[span.first].name} to {shown.cells[span.last].name}"
    return element(
        "rect",
        f"<title>{escaped(f'recomputed as one: {names}, level {span.depth + 1}')}</title>",
        x=round(x, 2),
        y=y + _LEVEL * span.depth,
        width=round((last - first + 1) * cell_width - 2 * inset, 2),
        height=4,
        class_="ckpt-muted",
        data_first=span.first,
        data_last=span.last,
        data_depth=span.depth,
    )
