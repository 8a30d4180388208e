"""A strip of layers: which are kept, which are recomputed and how often, in which segments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from scheduler.common.text import counted
from scheduler.report.figure import COLOURS, Sheet
from scheduler.report.labels import SIZE, Side, clean, shortened, text_width

if TYPE_CHECKING:
    from matplotlib.patches import Rectangle

__all__ = ["Cell", "Span", "Strip"]

_WORDS = {
    "first": "kept",
    "option": "kept in part (an option)",
    "again": "recomputed once",
    "nested": "recomputed more often",
}
_HEIGHTS = {"first": 30, "option": 30, "again": 20, "nested": 12}
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


class _Row(NamedTuple):
    """Layers from `start` up to `end`, their segments, and where cells begin and end."""

    start: int
    end: int
    spans: list[Span]
    top: float
    below: float
    bottom: float


@dataclass(frozen=True)
class Strip:
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

    @property
    def title(self) -> str:
        """The model's name, and what is shown."""
        what = f"{self.noun} by {self.noun}"
        return f"{self.name}: {what}" if self.name else what.capitalize()

    def subtitle(self) -> str:
        """How many layers are kept, how many run again, under which options; what bars say."""
        states = Counter(cell.state for cell in self.cells)
        total = counted(len(self.cells), self.noun)
        parts = [f"{states[state]} {words}" for state, words in _WORDS.items() if states[state]]
        extra = sum(cell.runs - 1 for cell in self.cells)
        said = f"{total}: {', '.join(parts)}; {counted(extra, 'extra run')} in all."
        options = Counter(cell.option for cell in self.cells if cell.option is not None)
        if options:
            named = [f"{name} ({n})" for name, n in list(options.items())[:_MOST_OPTIONS]]
            hidden = len(options) - _MOST_OPTIONS
            said += f" By option: {', '.join(named)}{f' and {hidden} more' if hidden > 0 else ''}."
        said += f" Each bar is a {self.noun}: the lower, the more often it runs."
        deepest = max((span.depth + 1 for span in self.spans), default=0)
        if deepest:
            said += " Each line below is a segment: its input is kept, the rest of it runs again"
            said += f" in the backward{', nested segments within it' if deepest > 1 else ''}."
        if deepest > _MOST_LEVELS:
            said += f" Segments nest {deepest} deep; the outer {_MOST_LEVELS} levels are drawn."
        return said

    @property
    def margins(self) -> tuple[float, float, float, float]:
        """Room for the positions of the rows, and above each row for its names."""
        return 24 + text_width(str(len(self.cells) - 1)), 16, 20, 18

    def height(self, is_wide: bool) -> float:
        """As high as the rows need."""
        return self._rows(is_wide)[-1].bottom

    def draw(self, sheet: Sheet) -> None:
        """Rows of cells, what stands below them, and the names at their ends; in points."""
        rows = self._rows(sheet.is_wide)
        sheet.axes.set_axis_off()
        sheet.axes.set_xlim(0, sheet.width)
        sheet.axes.set_ylim(max(rows[-1].bottom, sheet.height), 0)
        cell = min(sheet.width / max(row.end - row.start for row in rows), 60)
        for row in rows:
            self._draw_cells(sheet, row, cell)
            self._draw_names(sheet, row, cell)
            inset = min(0.15 * cell, 1.5)
            for span in row.spans:
                first, last = max(span.first, row.start), min(span.last, row.end - 1)
                left = (first - row.start) * cell + inset
                wide = (last - first + 1) * cell - 2 * inset
                y = row.top + _CELLS + 2 + _LEVEL * span.depth
                ends = f"{self.cells[span.first].name} to {self.cells[span.last].name}"
                tip = f"recomputed as one: {ends}, level {span.depth + 1}"
                drawn = _rectangle(sheet, left, y, wide, 4, "muted")
                sheet.note(drawn, "segment", tip, **span._asdict())
            self._draw_options(sheet, row, cell, inset)
        self._name_colours(sheet)

    def _name_colours(self, sheet: Sheet) -> None:
        """Name what is drawn for the legend, each state once, and segments."""
        states = {cell.state for cell in self.cells}
        for state, words in _WORDS.items():
            if state in states:
                _rectangle(sheet, 0, 0, 0, 0, state).set_label(words)
        if self.spans:
            words = "a segment that is recomputed as one"
            sheet.axes.plot([], [], color=COLOURS["muted"], linewidth=3, label=words)

    def _rows(self, is_wide: bool) -> list[_Row]:
        most = _ROW if is_wide else _ROW // 2
        in_row = -(-len(self.cells) // -(-len(self.cells) // most))
        rows: list[_Row] = []
        y = 0.0
        for start in range(0, len(self.cells), in_row):
            end = min(start + in_row, len(self.cells))
            spans = [
                span
                for span in self.spans
                if span.first < end and span.last >= start and span.depth < _MOST_LEVELS
            ]
            below = y + _CELLS + _LEVEL * max((span.depth + 1 for span in spans), default=0)
            has_options = any(cell.option is not None for cell in self.cells[start:end])
            rows.append(_Row(start, end, spans, y, below, below + _NAMES * has_options))
            y = rows[-1].bottom + _GAP
        return rows

    def _draw_cells(self, sheet: Sheet, row: _Row, cell: float) -> None:
        _text(sheet, -8, row.top + _CELLS - 4, str(row.start), "right")
        gap = 1.0 if cell > 5 else 0.4
        for i in range(row.start, row.end):
            layer = self.cells[i]
            high = _HEIGHTS[layer.state]
            left, top = (i - row.start) * cell, row.top + _CELLS - high
            drawn = _rectangle(sheet, left, top, cell - gap, high, layer.state)
            tip = f"{i}: {layer.name}: {_WORDS[layer.state]}, {counted(layer.runs, 'run')}"
            tip += "" if layer.option is None else f", option {layer.option}"
            sheet.note(drawn, "layer", tip, layer=i, runs=layer.runs, state=layer.state)

    def _draw_names(self, sheet: Sheet, row: _Row, cell: float) -> None:
        """The names of the first and the last layer of a row, above it."""
        room, y = (row.end - row.start) * cell, row.top - 4
        first, last = self.cells[row.start].name, self.cells[row.end - 1].name
        if row.end - row.start == 1:
            _text(sheet, 0, y, shortened(first, max(room, 200)))
        elif room < 200:
            _text(sheet, 0, y, shortened(f"{first} … {last}", min(sheet.width, 320)))
        else:
            _text(sheet, 0, y, shortened(first, room / 2 - 8))
            _text(sheet, room, y, shortened(last, room / 2 - 8), "right")

    def _draw_options(self, sheet: Sheet, row: _Row, cell: float, inset: float) -> None:
        """Under neighbours of one option a line, and its name where that meets no other."""
        y, free, room = row.below + 3, 0.0, (row.end - row.start) * cell
        layers = range(row.start, row.end)
        for option, run in groupby(layers, key=lambda i: self.cells[i].option):
            indices = list(run)
            if option is None:
                continue
            left, wide = (indices[0] - row.start) * cell, len(indices) * cell
            drawn = _rectangle(sheet, left + inset, y, wide - 2 * inset, 2, "option")
            sheet.note(drawn, "option", option=option)
            half = text_width(option) / 2
            middle = min(max(left + wide / 2, half), room - half)
            if middle - half >= free:
                _text(sheet, middle, y + 15, option, "center")
                free = middle + half + 6


def _rectangle(
    sheet: Sheet, left: float, top: float, wide: float, high: float, colour: str
) -> Rectangle:
    from matplotlib.patches import Rectangle

    drawn = Rectangle((left, top), wide, high, facecolor=COLOURS[colour], linewidth=0)
    sheet.axes.add_artist(drawn)
    return drawn


def _text(sheet: Sheet, x: float, y: float, words: str, side: Side = "left") -> None:
    style: dict[str, Any] = {"color": COLOURS["muted"], "fontsize": SIZE, "ha": side}
    sheet.axes.text(x, y, clean(words), va="baseline", parse_math=False, **style)
