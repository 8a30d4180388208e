"""The trades of memory against time of one model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from scheduler.common.jsontext import finite
from scheduler.common.text import counted, format_bytes, format_time
from scheduler.costs.readers import Costs
from scheduler.planning.certify import certified
from scheduler.planning.comparison import Comparison
from scheduler.planning.request import Budget, read_budget
from scheduler.planning.sweep import Swept, Trades
from scheduler.plans.pictures import WIDTH as PICTURE_WIDTH
from scheduler.plans.plan import Plan
from scheduler.report.curve import Curve, Mark
from scheduler.report.figure import can_draw, plot
from scheduler.report.notebook import InNotebooks
from scheduler.report.svg import svg
from scheduler.report.tables import WIDTH, excess, fitted, format_percent, spread, wrapped
from solvers.problem import Problem

if TYPE_CHECKING:
    from matplotlib.axes import Axes


ROWS = 20
"""Points that a frontier prints."""

_FIELDS = ("peak_bytes", "time", "overhead")
_SWEEP_FIELDS = (*_FIELDS, "lower_bound_time", "gap", "class", "proven")


class Frontier(InNotebooks, Sequence[tuple[int, float]]):
    """Pairs of peak bytes and time, peak ascending, each reached by a plan; made by `frontier`.

    Of a chain all Pareto-optimal ones. Of a graph those of a sweep: budgets are evenly spread from
    the floor, which every plan needs, to the peak of the plan that recomputes nothing, and solved
    in ascending order. A plan for one fits the next, and its search starts there. Afterwards
    bounds go down: a time that no plan within a budget can beat, none within a smaller one can.

    Attributes
    ----------
    costs
        What was solved.
    points
        Pairs (peak bytes, time in `time_unit`), each reached by a plan; the time falls.
    exact
        True: these are all optimal pairs. False: sets were thinned to a limit, or it is a sweep;
        between two points there may be others, and a plan carries its gap.
    plans
        Of a sweep the plan of each point, with its class, bound and the budget that it was solved
        for; empty where the points were found together.
    gaps
        Of a sweep for each point how far its time is above the proven bound of its class at most.
    bounds
        Of a sweep pairs (budget in bytes, time that no plan of its class within it beats).
    failed
        Of a sweep pairs (budget in bytes, sentence) of the budgets without a plan, and why.
    interrupted
        Did the sweep end early? It went from the tightest budget up.
    keep_all_peak_bytes, keep_all_time
        Of the plan that recomputes nothing.
    time_unit
        Unit of every time.
    points_are, remarks
        What a picture calls the points, and how far they can be trusted, as sentences.
    """

    def __init__(self, costs: Costs, problem: Problem[Any], trades: Trades) -> None:
        self.costs = costs
        self.time_unit = costs.time_unit
        self._problem = problem
        self._trades = trades
        ticks = costs.ticks_per_unit
        everything = problem.replay(problem.keep_all())
        self.keep_all_peak_bytes = everything.peak_bytes
        self.keep_all_time = everything.time / ticks
        self.exact = trades.exact
        self.failed = list(trades.failed)
        self.interrupted = trades.interrupted
        self.points_are = trades.points_are
        self.remarks = tuple(trades.remarks)
        self.points = tuple((peak, time / ticks) for peak, time in trades.points)
        wanted = set(self.points)
        plans: dict[tuple[int, float], Plan] = {}
        for each in trades.swept:
            plan = self._certified(each, Budget(each.budget))
            point = (plan.peak_bytes, plan.time)
            if point in wanted:
                plans.setdefault(point, plan)
        self.plans: tuple[Plan, ...] = tuple(plans[point] for point in self.points if plans)
        self.gaps = tuple(plan.gap for plan in self.plans)
        self.bounds = [
            (each.budget, each.solution.lower_bound_time / ticks) for each in trades.swept
        ]

    def plan(
        self,
        budget_gb: object = None,
        *,
        budget: object = None,
        reserved: object = 0,
        reserved_gb: object = None,
    ) -> Plan:
        """The fastest plan within a budget, without solving again.

        Of a sweep the fastest of its plans, whose bound is that of the next larger budget of the
        sweep; solving for this very budget may find a faster plan, and proves more.

        Parameters
        ----------
        budget_gb, budget, reserved, reserved_gb
            As for `scheduler.solve`.

        Raises
        ------
        InvalidBudget
            The budget is missing, given twice, or no size.
        InfeasibleBudget
            No plan fits; names the smallest budget that does, or of a graph the floor of all plans.
        NoPlanFound
            The sweep has no plan within the budget.
        """
        size = read_budget(budget_gb, budget, reserved, reserved_gb, self._problem)
        return self._certified(self._trades.find(size), size)

    def _certified(self, found: Swept, size: Budget) -> Plan:
        return certified(
            self.costs,
            self._problem,
            found.solution,
            method=found.method,
            size=size,
            seconds=found.seconds,
        )

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    @overload
    def __getitem__(self, index: int) -> tuple[int, float]: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[tuple[int, float], ...]: ...

    def __getitem__(self, index: int | slice) -> tuple[int, float] | tuple[tuple[int, float], ...]:
        return self.points[index]

    def overhead(self, time: float) -> float:
        """`time` as a share above that of keeping everything."""
        return excess(time, self.keep_all_time)

    def values(self, points: Sequence[tuple[int, float]] | None = None) -> list[tuple[object, ...]]:
        """The points, or some of them, as plain values under a header of their names."""
        wanted = set(self.points if points is None else points)
        if not self.plans:
            rows = [
                (peak, time, self.overhead(time)) for peak, time in self if (peak, time) in wanted
            ]
            return [_FIELDS, *rows]
        known = [
            (
                *(plan.peak_bytes, plan.time, plan.overhead, plan.lower_bound_time),
                *(plan.gap, plan.plan_class, plan.status == "optimal"),
            )
            for plan in self.plans
            if (plan.peak_bytes, plan.time) in wanted
        ]
        return [_SWEEP_FIELDS, *known]

    def to_dict(self, points: Sequence[tuple[int, float]] | None = None) -> dict[str, Any]:
        """The frontier, or some `points` of it, as JSON values."""
        names, *rows = self.values(points)
        if not self.plans:
            names = names[:2]
        record = {
            "name": self.costs.name,
            "layers": len(self.costs),
            "time_unit": self.time_unit,
            "keep_all_peak_bytes": self.keep_all_peak_bytes,
            "keep_all_time": self.keep_all_time,
            "exact": self.exact,
            "points": [finite(dict(zip(names, row, strict=False))) for row in rows],  # type: ignore[arg-type]
        }
        if self.plans:
            record["failed"] = [{"budget_bytes": size, "why": why} for size, why in self.failed]
            record["interrupted"] = self.interrupted
        return record

    def __repr__(self) -> str:
        (least, _), (most, _) = self.points[0], self.points[-1]
        kind = "exact" if self.exact else "thinned"
        if self.plans:
            kind = f"{sum(plan.status == 'optimal' for plan in self.plans)} of them proven"
        points = counted(len(self), "point")
        return f"<Frontier: {points}, {kind}, {format_bytes(least)} to {format_bytes(most)}>"

    def __str__(self) -> str:
        return self.table(ROWS)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw time against memory.

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
        return plot(self._curve(), ax)

    def picture(
        self,
        plan: Plan | None = None,
        comparison: Comparison | None = None,
        width: float = PICTURE_WIDTH,
    ) -> str:
        """Time against memory as SVG.

        Parameters
        ----------
        plan
            The plan to mark, with its lower bound and its budget.
        comparison
            Other methods to mark.
        width
            In pixels.
        """
        return svg(self._curve(plan, comparison), width)

    def _repr_svg_(self) -> str | None:
        return self.picture() if can_draw() else None

    def _curve(self, plan: Plan | None = None, comparison: Comparison | None = None) -> Curve:
        return Curve(
            name=self.costs.name,
            points=self.points,
            points_are=self.points_are,
            is_exact=self.exact,
            bounds=self.bounds,
            others=() if comparison is None else comparison.marks,
            plan=None if plan is None else Mark(plan.method, plan.peak_bytes, plan.time),
            bound_time=None if plan is None else plan.lower_bound_time,
            keep_all_time=self.keep_all_time,
            time_unit=self.time_unit,
            budget_bytes=None if plan is None else plan.budget_bytes,
            reserved_bytes=0 if plan is None else plan.reserved_bytes,
        )

    def table(self, most: int, width: int = WIDTH, available: int | None = None) -> str:
        """A table of at most `most` points, evenly chosen, the ends among them, and what failed.

        Its lines have at most `width` characters. Where so many bytes are `available`, it says
        which points they are enough for.
        """
        shown = spread(self.points, most)
        header = ["peak", "of keep-all", "time", "overhead"]
        rows = [
            [
                format_bytes(peak),
                format_percent(peak / self.keep_all_peak_bytes if self.keep_all_peak_bytes else 1),
                format_time(time, self.time_unit),
                format_percent(self.overhead(time)),
            ]
            for peak, time in shown
        ]
        if self.plans:
            header += ["gap", "optimal in class"]
            for row, plan in zip(rows, spread(self.plans, most), strict=True):
                row += [format_percent(plan.gap), plan.optimal_in or "not proven"]
        if available is not None:
            header.append("fits")
            for row, (peak, _) in zip(rows, shown, strict=True):
                row.append("yes" if peak <= available else "no")
        notes = [f"{why[0].upper()}{why[1:]}." for _, why in self.failed]
        if self.interrupted:
            notes.append("Interrupted: larger budgets were not tried.")
        return "\n".join(
            [
                wrapped(self._title(len(shown)), width),
                *fitted(tuple(header), [tuple(row) for row in rows], width, left=0),
                *(wrapped(note, width) for note in notes),
            ]
        )

    def _title(self, count: int) -> str:
        size = self.costs.size
        if not self.plans:
            kind = "optimal" if self.exact else "near-optimal (thinned)"
            part = f", {count} shown" if count < len(self) else ""
            size = f"{size}, {counted(len(self), f'{kind} plan')}{part}"
        return (
            f"{self.costs.name or ('graph' if self.plans else 'costs')}: {size}; keep-all needs "
            f"{format_bytes(self.keep_all_peak_bytes)} and "
            f"{format_time(self.keep_all_time, self.time_unit)} a step"
        )
