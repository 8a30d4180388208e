"""Every method on one model and one budget, side by side."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from scheduler.common.jsontext import finite
from scheduler.common.text import (
    format_both,
    format_bytes,
    format_exact,
    format_time,
    more_than_budget,
)
from scheduler.plans.plan import excess
from scheduler.report.curve import Mark
from scheduler.report.tables import WIDTH, fitted, format_percent, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Comparison", "MethodRow"]

_LONGEST = 38
"""Characters of a method's name in the table, which leaves `WIDTH` room for the rest."""


@dataclass(frozen=True, slots=True)
class MethodRow:
    """What one method does on the costs.

    Attributes
    ----------
    method
        Its name.
    peak_bytes
        Peak of its plan, without reserved bytes; None where the method does not apply.
    fits
        Is the plan within the budget? If not, it is the method's plan of the smallest peak.
    time
        Time of one step of the plan, in the comparison's time unit.
    overhead
        The same as a share above keeping everything.
    optimal_time_at_peak, optimal_overhead_at_peak
        What the optimal plan takes with this very peak as its budget.
    note
        A sentence: why the method does not apply, or what limits a figure.
    """

    method: str
    peak_bytes: int | None = None
    fits: bool = False
    time: float | None = None
    overhead: float | None = None
    optimal_time_at_peak: float | None = None
    optimal_overhead_at_peak: float | None = None
    note: str = ""

    @property
    def label(self) -> str:
        """What the row is called."""
        return self.method


@dataclass(frozen=True, repr=False)
class Comparison:
    """One row a method, made by `compare`.

    Attributes
    ----------
    rows
        Baselines first, "optimal" last.
    name, layers
        Of the costs: what they are called, and how many layers they have.
    budget_bytes, reserved_bytes
        The budget as it was asked for, and what of it is reserved.
    keep_all_peak_bytes, keep_all_time
        Of the plan that recomputes nothing.
    time_unit
        Unit of every time.
    set_by
        What needs the memory of the optimal row: ``the backward of 'head'``.
    """

    rows: tuple[MethodRow, ...]
    name: str
    layers: int
    budget_bytes: int
    reserved_bytes: int
    keep_all_peak_bytes: int
    keep_all_time: float
    time_unit: str
    set_by: str

    @property
    def optimal(self) -> MethodRow:
        """The row of the optimal plan."""
        return self.rows[-1]

    @property
    def marks(self) -> list[Mark]:
        """The plan of each method that has one, for a picture."""
        return [
            Mark(row.label, row.peak_bytes, row.time)
            for row in self.rows
            if row.peak_bytes is not None and row.time is not None
        ]

    @property
    def optima(self) -> list[tuple[int, float]]:
        """Pairs (peak bytes, time of the optimal plan within it), peak ascending and time falling.

        At the peaks of the rows that say it.
        """
        known = {
            (row.peak_bytes, row.optimal_time_at_peak)
            for row in self.rows
            if row.peak_bytes is not None and row.optimal_time_at_peak is not None
        }
        falling: list[tuple[int, float]] = []
        for peak, time in sorted(known):
            if not falling or time < falling[-1][1]:
                falling.append((peak, time))
        return falling

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        record = asdict(self)
        record["rows"] = [finite(asdict(row)) for row in self.rows]
        return record

    def table(self) -> list[list[object]]:
        """The rows as plain values under a header of their field names."""
        names = [field.name for field in fields(MethodRow)]
        return [list(names), *([getattr(row, name) for name in names] for row in self.rows)]

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw every method's time against its memory, with the budget.

        Parameters
        ----------
        ax
            Axes of matplotlib to draw on; None makes a figure with a heading and a legend, which
            ``.figure.savefig("name.pdf")`` saves.

        Raises
        ------
        SchedulerError
            matplotlib is not installed.
        """
        from scheduler.planning.curve import plot_comparison  # only who draws it needs it

        return plot_comparison(self, ax)

    def __repr__(self) -> str:
        fit = sum(row.fits for row in self.rows)
        return f"<Comparison: {fit} of {len(self.rows)} methods fit {self._budget()}>"

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int = WIDTH) -> str:
        """The table and what is to be said of it, in lines of at most `width` characters."""
        header = ("method", "peak", "fits", "time", "overhead", "optimum at that peak")
        title = [wrapped(line, width) for line in self._title()]
        lines = [*title, "", *fitted(header, [self._cells(row) for row in self.rows], width)]
        notes = ["Last column: the overhead of the optimal plan within the peak of that row."]
        if any(not row.fits and row.peak_bytes is not None for row in self.rows):
            notes.append("A method that does not fit shows its plan of the smallest peak.")
        notes += [f"{row.method}: {row.note}" for row in self.rows if row.note]
        said = [*notes, "", self.conclusion()]
        return "\n".join([*lines, "", *(wrapped(words, width) for words in said)])

    def conclusion(self) -> str:
        """What the optimum saves, in a sentence."""
        best = self.optimal
        assert best.time is not None  # the method applies to every chain
        assert best.overhead is not None
        assert best.peak_bytes is not None
        if not best.fits:
            smallest = best.peak_bytes + self.reserved_bytes
            return (
                f"No plan fits: the smallest feasible budget is {format_exact(smallest)}"
                f"{more_than_budget(smallest, self.budget_bytes)}, set by {self.set_by}."
            )
        if best.overhead == 0:
            return "Nothing needs to be recomputed within this budget."
        lost = f"The optimum loses {format_percent(best.overhead)} to recomputation"
        times = {
            row.method: row.time for row in self.rows[:-1] if row.fits and row.time is not None
        }
        if not times:
            return f"{lost}; no other method has a plan within this budget."
        reaching = [method for method, time in times.items() if time <= best.time]
        if reaching:
            lost = f"{lost}; {' and '.join(reaching)} reach{'es' * (len(reaching) == 1)} it too"
        slower = {method: time for method, time in times.items() if time > best.time}
        if not slower:
            return f"{lost}."
        nearest = min(slower, key=slower.__getitem__)
        which = "next best" if reaching else "best"
        return (
            f"{lost}; over the {which} baseline that fits, {nearest} "
            f"({format_percent(excess(slower[nearest], self.keep_all_time))}), "
            f"it saves {self._time(slower[nearest] - best.time)} a step."
        )

    def _title(self) -> list[str]:
        layers = "1 layer" if self.layers == 1 else f"{self.layers} layers"
        model = (
            f"{self.name or 'costs'}: {layers}, keep-all peak "
            f"{format_bytes(self.keep_all_peak_bytes)}, {self._time(self.keep_all_time)} a step"
        )
        budget = f"budget {self._budget()}"
        line = f"{model}; {budget}"
        return [line] if len(line) <= WIDTH else [f"{model};", budget]

    def _budget(self) -> str:
        reserved = (
            f", {format_both(self.reserved_bytes)} of it reserved" if self.reserved_bytes else ""
        )
        return f"{format_both(self.budget_bytes)}{reserved}"

    def _cells(self, row: MethodRow) -> tuple[str, ...]:
        if row.peak_bytes is None or row.time is None or row.overhead is None:
            return (_short(row.method), "–", "–", "–", "–", "–")
        at_peak = row.optimal_overhead_at_peak
        return (
            _short(row.method),
            format_bytes(row.peak_bytes),
            "yes" if row.fits else "no",
            self._time(row.time),
            format_percent(row.overhead),
            "–" if at_peak is None else format_percent(at_peak),
        )

    def _time(self, time: float) -> str:
        return format_time(time, self.time_unit)


def _short(method: str) -> str:
    """A method's name; what somebody has set may be a long list."""
    return method if len(method) <= _LONGEST else f"{method[: _LONGEST - 1]}…"
