"""Every method on one model and one budget, side by side."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from scheduler.common.jsontext import finite
from scheduler.common.text import format_both, format_bytes, format_time
from scheduler.plans.plan import Plan
from scheduler.report.curve import Curve, Mark
from scheduler.report.figure import plot
from scheduler.report.notebook import InNotebooks
from scheduler.report.tables import WIDTH, fitted, format_percent, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
        Peak of its plan, without reserved bytes; None where there is none.
    fits
        Is the plan within the budget? If not, it is the method's plan of the smallest peak.
    time
        Time of one step of the plan, in the comparison's time unit.
    overhead
        The same as a share above keeping everything.
    optimal_time_at_peak, optimal_overhead_at_peak
        Of chains: what the optimal plan takes with this very peak as its budget.
    plan_class
        Of graphs: the class of plans that its bound holds for.
    lower_bound_time, gap
        Of graphs: no plan of the class takes less; how far the time is above that at most.
    status
        Of graphs: "optimal" in the class, or "feasible"; None where there is no plan.
    seconds
        Of graphs: how long it took.
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
    plan_class: str | None = None
    lower_bound_time: float | None = None
    gap: float | None = None
    status: str | None = None
    seconds: float | None = None

    @property
    def label(self) -> str:
        """The method, and the class where it has one of several."""
        return f"{self.method} ({self.plan_class})" if self.method == "staged" else self.method

    @property
    def proven_in(self) -> str | None:
        """The class in which no plan is faster; None where that is not proven."""
        return self.plan_class if self.status == "optimal" else None


def row_of(plan: Plan, available: int, **more: Any) -> MethodRow:
    """The row of a plan, held to so many bytes; `more` are other fields."""
    return MethodRow(
        method=plan.method,
        peak_bytes=plan.peak_bytes,
        fits=plan.peak_bytes <= available,
        time=plan.time,
        overhead=plan.overhead,
        **more,
    )


@dataclass(frozen=True, slots=True)
class View:
    """How a kind of problem shows its comparison.

    Attributes
    ----------
    fields
        Of `MethodRow`: those that the rows of this kind have.
    columns
        Pairs (header, field) of the table, beside the method.
    notes
        What explains them, as sentences.
    conclusion
        What the best plan loses or saves, as a sentence.
    """

    fields: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    conclusion: str


COLUMNS = (
    ("peak", "peak_bytes"),
    ("fits", "fits"),
    ("time", "time"),
    ("overhead", "overhead"),
)
"""What every table has."""


@dataclass(frozen=True, repr=False)
class Comparison(InNotebooks):
    """One row a method, made by `compare`.

    Attributes
    ----------
    rows
        Of a chain baselines first, "optimal" last; of a graph "keep-all" first.
    name, layers, size
        Of the costs: what they are called, how many layers they have, and that in words.
    budget_bytes, reserved_bytes
        The budget as it was asked for, and what of it is reserved.
    keep_all_peak_bytes, keep_all_time
        Of the plan that recomputes nothing.
    time_unit
        Unit of every time.
    set_by
        Of a chain what needs the memory of the optimal row: ``the backward of 'head'``. Of a graph
        why nothing fits, where that is proven.
    optimal
        The best row: of a chain that of the optimal plan, of a graph the fastest plan that fits,
        proven ones first.
    time_limit
        Of a graph: seconds that each method was given.
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
    optimal: MethodRow
    size: str
    view: View
    time_limit: float | None = None

    @property
    def marks(self) -> list[Mark]:
        """The plan of each method that has one, for a picture."""
        return [
            Mark(row.label, row.peak_bytes, row.time)
            for row in self.rows
            if row.peak_bytes is not None and row.time is not None
        ]

    def _optima(self) -> list[tuple[int, float]]:
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
        shown = Curve(
            name=self.name,
            points=self._optima(),
            points_are="optimal plans at these peaks",
            is_exact=False,
            bounds=(),
            others=self.marks,
            plan=None,
            bound_time=None,
            keep_all_time=self.keep_all_time,
            time_unit=self.time_unit,
            budget_bytes=self.budget_bytes,
            reserved_bytes=self.reserved_bytes,
        )
        return plot(shown, ax)

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        left_out = ["optimal", "view"] + ["size", "time_limit"] * (self.time_limit is None)
        names, *rows = self.table()
        return {
            **{f.name: getattr(self, f.name) for f in fields(self) if f.name not in left_out},
            "rows": [finite(dict(zip(map(str, names), row, strict=True))) for row in rows],
        }

    def table(self) -> list[list[object]]:
        """The rows as plain values under a header of their field names."""
        names = self.view.fields
        return [list(names), *([getattr(row, name) for name in names] for row in self.rows)]

    def __repr__(self) -> str:
        fit = sum(row.fits for row in self.rows)
        return f"<Comparison: {fit} of {len(self.rows)} methods fit {self._budget()}>"

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int = WIDTH) -> str:
        """The table and what is to be said of it, in lines of at most `width` characters."""
        title = [wrapped(line, width) for line in self._title()]
        header, *rows = self.cells()
        said = [*self.view.notes, *self.notes(), "", self.conclusion()]
        lines = [*title, "", *fitted(header, rows, width)]
        return "\n".join([*lines, "", *(wrapped(words, width) for words in said)])

    def conclusion(self) -> str:
        """What the best plan loses or saves, in a sentence."""
        return self.view.conclusion

    def notes(self) -> list[str]:
        """What is to be said of single rows, as sentences."""
        return [f"{row.label}: {row.note.rstrip('.')}." for row in self.rows if row.note]

    def cells(self, columns: int | None = None) -> list[tuple[str, ...]]:
        """The rows as they are read, under a header; at most so many columns."""
        shown = self.view.columns[:columns]
        return [
            ("method", *(header for header, _ in shown)),
            *(
                (_short(row.label), *(self._cell(row, name) for _, name in shown))
                for row in self.rows
            ),
        ]

    def _cell(self, row: MethodRow, name: str) -> str:
        value = getattr(row, name)
        if name == "fits":
            tried = row.peak_bytes is not None or row.seconds is not None
            return ("yes" if value else "no") if tried else "–"
        if value is None or (name != "seconds" and row.peak_bytes is None):
            return "–"
        if name == "peak_bytes":
            return format_bytes(value)
        if name == "time":
            return format_time(value, self.time_unit)
        if name == "seconds":
            return format_time(value, "s")
        return value if isinstance(value, str) else format_percent(value)

    def _title(self) -> list[str]:
        name = self.name or ("costs" if self.time_limit is None else "graph")
        model = (
            f"{name}: {self.size}, keep-all peak "
            f"{format_bytes(self.keep_all_peak_bytes)}, "
            f"{format_time(self.keep_all_time, self.time_unit)} a step"
        )
        budget = f"budget {self._budget()}"
        if self.time_limit is not None:
            return [f"{model};", f"{budget}, at most {self.time_limit:g} s a method"]
        line = f"{model}; {budget}"
        return [line] if len(line) <= WIDTH else [f"{model};", budget]

    def _budget(self) -> str:
        reserved = (
            f", {format_both(self.reserved_bytes)} of it reserved" if self.reserved_bytes else ""
        )
        return f"{format_both(self.budget_bytes)}{reserved}"


def _short(method: str) -> str:
    """A method's name; what somebody has set may be a long list."""
    return method if len(method) <= _LONGEST else f"{method[: _LONGEST - 1]}…"
