"""Pictures on the axes of matplotlib: their style, their scales, their labels, and their frame.

Colours are told apart by the colour-blind, and no fact is told by colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from scheduler.common.errors import SchedulerError
from scheduler.common.text import format_both, format_bytes
from scheduler.report.labels import (
    SIZE,
    Box,
    Labels,
    clean,
    filled,
    said_bytes,
    shortened,
    text_width,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

__all__ = ["COLOURS", "STYLE", "Picture", "Sheet", "can_draw", "frame", "plot"]
__all__ += ["require"]

# Okabe and Ito's colours, darker on white where they must carry a line.
COLOURS = {
    "paper": "#ffffff",
    "ink": "#1f2328",
    "muted": "#57606a",
    "grid": "#d8dee4",
    "first": "#0072b2",
    "again": "#e69f00",
    "nested": "#c44601",
    "option": "#009e73",
    "back": "#87919c",
    "limit": "#a3195b",
    "void": "#e9edf1",
}

STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": COLOURS["muted"],
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": COLOURS["muted"],
    **{f"axes.spines.{side}": False for side in ("left", "top", "right")},
    "figure.dpi": 144,
    "figure.facecolor": COLOURS["paper"],
    "font.size": SIZE,
    "grid.color": COLOURS["grid"],
    "legend.frameon": False,
    "text.color": COLOURS["ink"],
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "ytick.major.pad": 8,
    "ytick.major.size": 0,
}
"""How figures that are made here look; axes of others keep their style."""

_BINARY = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))
_TIMES = ("s", "ms", "us", "ns")

Points = Sequence[tuple[float, float]]

AROUND_TITLES = (66.0, 24.0, 26.0, 52.0)
"""Margins of axes with titles."""


class Picture(Protocol):
    """What can be drawn."""

    @property
    def title(self) -> str:
        """One line."""

    def subtitle(self) -> str:
        """What a reader should know of it, in a sentence or two."""

    @property
    def margins(self) -> tuple[float, float, float, float]:
        """Points that its axes need around them: left, right, above and below."""

    def height(self, is_wide: bool) -> float:
        """Points that its axes are high."""

    def draw(self, sheet: Sheet) -> None:
        """Draw it."""


class Sheet:
    """Axes to draw a picture on.

    Attributes
    ----------
    axes, figure
        Of matplotlib.
    width, height
        Of the axes, in points.
    is_wide
        Whether there is room for long rows and many ticks.
    labels
        Places for labels, in points from the lower left corner of the axes, growing downwards.
    notes
        What SVG says of artists, by their names (``gid``): class, tooltip, ``data-`` attributes.
    """

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self.notes: dict[str, tuple[str, str, dict[str, object]]] = {}
        self.figure: Any = axes.figure
        self._points = 72 / axes.figure.dpi
        box = axes.get_window_extent()
        self.width, self.height = box.width * self._points, box.height * self._points
        self.is_wide = self.width > 500
        self.labels = Labels(Box(4, -10 - self.height, self.width + 8, -3))

    def note(self, artist: Artist, part: str, tip: str = "", **data: object) -> None:
        """Name an artist, and say what it is."""
        name = part if part not in self.notes else f"{part}-{len(self.notes)}"
        artist.set_gid(name)
        self.notes[name] = (part, tip, data)

    def at(self, points: Points) -> list[tuple[float, float]]:
        """Where values stand on the axes, in the points of `labels`."""
        if not points:
            return []
        corner = self.axes.transAxes.transform((0, 0))
        found = (self.axes.transData.transform(points) - corner) * self._points
        return [(x, -y) for x, y in found.tolist()]

    def thinned(self, points: Points) -> list[tuple[float, float]]:
        """The points without those that nobody can tell from the one before."""
        kept: dict[tuple[int, int], tuple[float, float]] = {}
        for point, (x, y) in zip(points, self.at(points), strict=True):
            kept.setdefault((round(2 * x), round(2 * y)), point)
        return list(kept.values())

    def limits(self, across: tuple[float, float], up: tuple[float, float]) -> None:
        """Show these values, and what others show on the same axes."""
        axes = self.axes
        if axes.has_data():
            (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
            across = (min(left, across[0]), max(right, across[1]))
            up = (min(low, up[0]), max(high, up[1]))
        axes.set_xlim(*across)
        axes.set_ylim(*up)

    def mark(self, point: tuple[float, float], colour: str, shape: str, words: str) -> Artist:
        """A dot ("o") or a diamond ("D") with a rim that sets it off; `words` for the legend."""
        (drawn,) = self.axes.plot(
            *point,
            shape,
            color=COLOURS[colour],
            markersize=10 if shape == "D" else 9,
            markeredgecolor=COLOURS["paper"],
            label=words,
            zorder=3 + (shape == "D"),
        )
        return drawn

    def limit(self, budget: int, reserved: int, *, is_up: bool) -> None:
        """The line that no plan may cross: the budget, less what is reserved."""
        limit, words = budget - reserved, f"budget {format_both(budget)}"
        if reserved:
            words = f"{format_bytes(limit)}: {words} less {format_bytes(reserved)} reserved"
        draw = self.axes.axhline if is_up else self.axes.axvline
        drawn = draw(limit, color=COLOURS["limit"], linewidth=1, label=words)
        tip = f"budget without what is reserved: {said_bytes(limit)}"
        self.note(drawn, "budget", tip, bytes=limit)
        (low, _), (bottom, _) = self.axes.get_xlim(), self.axes.get_ylim()
        ((x, y),) = self.at([(low, limit) if is_up else (limit, bottom)])
        box = Box(0, y - 2, self.width, y + 2) if is_up else Box(x - 2, -self.height, x + 2, 0)
        self.labels.block([box], softly=not is_up)

    def label(self, point: tuple[float, float], *choices: str) -> None:
        """The first of the choices that finds a place beside a value."""
        ((x, y),) = self.at([point])
        for words in choices:
            place = self.labels.place(x, y, words)
            if place is None:
                continue
            common: dict[str, Any] = {"xy": point, "textcoords": "offset points", "zorder": 5}
            if place.leader:
                right, down = place.leader[0] - x, place.leader[1] - y
                line = {"arrowstyle": "-", "color": COLOURS["muted"], "shrinkA": 0, "shrinkB": 0}
                self.axes.annotate("", xytext=(right, -down), arrowprops=line, **common)
            drawn = self.axes.annotate(
                clean(words),
                xytext=(place.x - x, y - place.y),
                horizontalalignment=place.side,
                verticalalignment="baseline",
                fontsize=SIZE,
                parse_math=False,
                **common,
            )
            self.note(drawn, "label")
            return

    def bytes(self, last: float, title: str, *, is_up: bool = False) -> None:
        """Mark bytes, across or up, in the unit that `last` reads best in."""
        self._scale(_BINARY, last, title, is_up)

    def times(
        self, last: float, title: str, unit: str, *, is_up: bool = False, log: bool = False
    ) -> None:
        """The same for times given in `unit`."""
        units = [(1.0, unit)]
        if unit in _TIMES:
            own = _TIMES.index(unit)
            units = [(1000.0 ** (own - i), each) for i, each in enumerate(_TIMES)]
        self._scale(units, last, title, is_up, log)

    def _scale(
        self,
        units: Sequence[tuple[float, str]],
        last: float,
        title: str,
        is_up: bool,
        log: bool = False,
    ) -> None:
        from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

        class Round(MaxNLocator):
            """Round values in the unit of the axis."""

            def tick_values(self, vmin: float, vmax: float) -> Any:
                ticks: Any = super().tick_values(vmin / size, vmax / size)
                return ticks * size

        size, unit = next((each for each in units if last >= each[0]), units[-1])
        axis = self.axes.yaxis if is_up else self.axes.xaxis
        most = 6 if is_up else 8 if self.is_wide else 4
        axis.set_major_locator(
            LogLocator(subs=(1, 2, 5)) if log else Round(most, steps=[1, 2, 2.5, 5, 10])
        )
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / size:.10g}"))
        axis.set_label_text(f"{title}, {unit}")


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def require(package: str, what: str) -> None:
    """Refuse to do `what` where the package is not installed."""
    if find_spec(package) is None:
        raise SchedulerError(
            f"{what} needs {package}, which is not installed: "
            "pip install 'checkpoint-scheduler[report]'"
        )


def plot(picture: Picture, axes: Axes | None) -> Axes:
    """The picture on these axes, or on those of a figure of its own."""
    require("matplotlib", "a picture")
    if axes is None:
        from matplotlib import rc_context

        with rc_context(STYLE):
            return frame(picture).axes
    picture.draw(Sheet(axes))
    axes.set_title(clean(picture.title), parse_math=False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    return axes


def frame(picture: Picture, width: float = 880) -> Sheet:
    """The picture in a figure of its own, so many points wide, under a heading and a legend."""
    from matplotlib.figure import Figure

    left, right, above, below = picture.margins
    plot_width = width - left - right
    plot_height = picture.height(plot_width > 500)
    figure = Figure((plot_width / 72, plot_height / 72))
    sheet = Sheet(figure.add_axes((0, 0, 1, 1)))
    picture.draw(sheet)
    # Only now is it known what the legend says. The axes keep their size, and so their labels.
    lines = filled(picture.subtitle(), width - 32)
    rows = _legend_rows(sheet.axes, width)
    top = 44 + 16 * len(lines) + 18 * len(rows) + above
    height = top + plot_height + below
    figure.set_size_inches(width / 72, height / 72)
    corner = (left / width, below / height)
    sheet.axes.set_position((*corner, plot_width / width, plot_height / height))
    sheet.axes.yaxis.label.set(rotation=0, horizontalalignment="left", verticalalignment="baseline")
    sheet.axes.yaxis.set_label_coords(-50 / plot_width, 1 + 14 / plot_height)
    sheet.note(figure.patch, "ckpt-paper")

    def write(y: float, words: str, **style: Any) -> None:
        figure.text(16 / width, 1 - y / height, clean(words), parse_math=False, **style)

    # Bold letters are wider.
    write(26, shortened(picture.title, (width - 32) / 1.12, 15), fontsize=15, fontweight="bold")
    for i, words in enumerate(lines):
        write(46 + 16 * i, words, color=COLOURS["muted"])
    for i, row in enumerate(rows):
        _write_legend(figure, row, (16 / width, 1 - (44 + 16 * len(lines) + 18 * i) / height))
    return sheet


def _legend_rows(axes: Axes, width: float) -> list[list[tuple[Artist, str]]]:
    """What the axes show and what it is called, in as many rows as the width needs."""
    rows: list[list[tuple[Artist, str]]] = []
    left = 0.0
    for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
        words = shortened(label, width - 54)
        room = 40 + text_width(words)
        if left < room:
            rows.append([])
            left = width - 8
        rows[-1].append((handle, words))
        left -= room
    return rows


def _write_legend(figure: Any, row: list[tuple[Artist, str]], corner: tuple[float, float]) -> None:
    from matplotlib.legend import Legend

    legend = Legend(
        figure,
        *zip(*row, strict=True),
        loc="upper left",
        bbox_to_anchor=corner,
        bbox_transform=figure.transFigure,
        ncols=len(row),
        borderpad=0,
        borderaxespad=0,
        handlelength=16 / SIZE,
        handleheight=1,
        handletextpad=6 / SIZE,
        columnspacing=18 / SIZE,
    )
    figure.add_artist(legend)
