"""Two plans side by side: which layers they treat differently, and what each of them costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scheduler.common.errors import InvalidPlan
from scheduler.common.jsontext import finite
from scheduler.common.text import format_both, format_bytes, format_time, shown
from scheduler.plans.kinds import kind_of
from scheduler.plans.plan import Plan
from scheduler.plans.text import more_rows
from scheduler.report.tables import WIDTH, fitted, format_percent, span_text

MOST_ROWS = 40
"""Rows shown of what differs; what follows is counted."""


@dataclass(frozen=True, slots=True)
class DiffRow:
    """Layers that follow one another and are treated differently by the two plans.

    Attributes
    ----------
    first, last
        Their names; one layer is both.
    before, after
        What the first plan and the second plan do with each of them, in words; a segment is
        named by the positions of its first and last layer.
    before_runs, after_runs
        How often each one's forward runs in a step.
    """

    first: str
    last: str
    before: str
    after: str
    before_runs: int
    after_runs: int


@dataclass(frozen=True, repr=False)
class PlanDiff:
    """How two plans of the same layers differ, made by `diff_plans`.

    Attributes
    ----------
    before, after
        The two plans.
    rows
        What they treat differently, in the order of the layers of the first.
    different
        How many layers these are.
    """

    before: Plan
    after: Plan
    rows: tuple[DiffRow, ...]
    different: int

    @property
    def same_costs(self) -> bool:
        """Whether both plans were made for the same costs, so that their figures compare."""
        return self.before.costs_sha256 == self.after.costs_sha256

    def to_dict(self) -> dict[str, Any]:
        """The difference as JSON values."""
        return {
            "before": finite(_figures(self.before)),
            "after": finite(_figures(self.after)),
            "same_costs": self.same_costs,
            "layers": len(self.before.layers),
            "different": self.different,
            "rows": [dict(zip(_FIELDS, _values(row), strict=True)) for row in self.rows],
        }

    def table(self) -> list[list[object]]:
        """The rows as plain values under a header of their field names."""
        return [list(_FIELDS), *(_values(row) for row in self.rows)]

    def __repr__(self) -> str:
        return f"<PlanDiff: {self.different} of {len(self.before.layers)} layers differ>"

    def __str__(self) -> str:
        return self.text()

    def text(self, names: tuple[str, str] = ("before", "after"), width: int = WIDTH) -> str:
        """The figures of both, and the layers that differ; `names` are those of the plans."""
        figures = [
            (label, one, other, "" if one == other else change)
            for label, one, other, change in self._lines()
        ]
        lines = fitted(("", *names, "change"), figures, width)
        noun = self.before.noun
        total = len(self.before.layers)
        if not self.rows:
            lines += ["", f"All {total} {noun}s are treated alike."]
        else:
            lines += ["", f"{self.different} of {total} {noun}s are treated differently:", ""]
            position = {name: i for i, name in enumerate(self.before.layers)}
            cells = [
                (_places(row, position), row.before, row.after) for row in self.rows[:MOST_ROWS]
            ]
            lines += fitted((f"{noun}s", *names), cells, width, left=3)
            lines += more_rows(len(self.rows) - MOST_ROWS)
        if not self.same_costs:
            lines += ["", "The plans were made for different costs."]
        return "\n".join(lines)

    def _lines(self) -> list[tuple[str, str, str, str]]:
        one, other = self.before, self.after
        peak, budget = other.peak_bytes - one.peak_bytes, "no budget"
        time = _time(other.time - one.time, one) if one.time_unit == other.time_unit else "–"
        return [
            ("peak", format_bytes(one.peak_bytes), format_bytes(other.peak_bytes), _bytes(peak)),
            ("time", _time(one.time, one, sign=False), _time(other.time, other, sign=False), time),
            (
                "overhead",
                format_percent(one.overhead),
                format_percent(other.overhead),
                f"{100 * (other.overhead - one.overhead):+.2f} points",
            ),
            (
                "budget",
                budget if one.budget_bytes is None else format_both(one.budget_bytes),
                budget if other.budget_bytes is None else format_both(other.budget_bytes),
                "",
            ),
            ("method", one.method, other.method, ""),
            ("status", one.standing, other.standing, ""),
            (
                "extra runs",
                str(_extra(one)),
                str(_extra(other)),
                f"{_extra(other) - _extra(one):+d}",
            ),
        ]


def diff_plans(before: Plan, after: Plan) -> PlanDiff:
    """How `after` differs from `before`.

    Raises
    ------
    InvalidPlan
        They are plans of different layers.
    """
    both = set(before.layers) & set(after.layers)
    missing = [name for name in (*before.layers, *after.layers) if name not in both]
    if missing:
        raise InvalidPlan(
            f"the plans are of different layers: only one of them has {shown(missing[0])}; "
            "compare two plans of the same model"
        )
    one, other = _treatments(before), _treatments(after)
    runs = (before.forwards, after.forwards)
    rows: list[DiffRow] = []
    different = 0
    last = -2
    for i, name in enumerate(before.layers):
        if one[name] == other[name]:
            continue
        different += 1
        row = DiffRow(name, name, one[name], other[name], runs[0][name], runs[1][name])
        if rows and last == i - 1 and _values(rows[-1])[2:] == _values(row)[2:]:
            rows[-1] = DiffRow(rows[-1].first, *_values(row)[1:])  # type: ignore[arg-type]
        else:
            rows.append(row)
        last = i
    return PlanDiff(before, after, tuple(rows), different)


_FIELDS = ("first", "last", "before", "after", "before_runs", "after_runs")


def _values(row: DiffRow) -> list[object]:
    return [getattr(row, name) for name in _FIELDS]


def _treatments(plan: Plan) -> dict[str, str]:
    """What is done with each layer, in words."""
    return dict(zip(plan.layers, kind_of(plan.schedule).treatments(plan), strict=True))


def _places(row: DiffRow, position: dict[str, int]) -> str:
    first, last = position[row.first], position[row.last]
    where = f"{first}" if first == last else f"{first}–{last}"
    names = span_text(row.first, row.last)
    return where if names == where else f"{where}  {names}"


def _figures(plan: Plan) -> dict[str, object]:
    names = ("peak_bytes", "time", "overhead", "budget_bytes", "time_unit", "method", "status")
    return {**{name: getattr(plan, name) for name in names}, "extra_runs": _extra(plan)}


def _extra(plan: Plan) -> int:
    return sum(plan.forwards.values()) - len(plan.layers)


def _bytes(n: int) -> str:
    return f"{'+' if n >= 0 else '-'}{format_bytes(abs(n))}"


def _time(value: float, plan: Plan, *, sign: bool = True) -> str:
    said = format_time(abs(value), plan.time_unit)
    return f"{'+' if value >= 0 else '-'}{said}" if sign else said
