"""Every optimal trade of memory against time of one model."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from scheduler.common.text import format_bytes, format_time
from scheduler.costs.costgraph import CostGraph
from scheduler.costs.readers import Costs
from scheduler.planning.budget import read_budget
from scheduler.planning.certify import certified, infeasible
from scheduler.plans.plan import Plan, excess
from scheduler.report.tables import WIDTH, fitted, format_percent, spread, wrapped
from solvers.chain import frontier as solver
from solvers.replay import replay
from solvers.schedule import keep_all
from solvers.solution import Infeasible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ROWS", "Frontier"]

ROWS = 20
"""Points that a frontier prints."""


class Frontier(Sequence[tuple[int, float]]):
    """All Pareto-optimal pairs of peak bytes and time, peak ascending; made by `frontier`.

    That of a graph is a `scheduler.planning.graph.frontier.GraphFrontier`.

    Attributes
    ----------
    costs
        What was solved.
    points
        Pairs (peak bytes, time in `time_unit`), each reached by a plan.
    exact
        True: these are all optimal pairs. False: sets were thinned to a limit; every pair is
        still reached by a plan, and a plan carries its gap.
    keep_all_peak_bytes, keep_all_time
        Of the plan that recomputes nothing.
    time_unit
        Unit of every time.
    """

    def __init__(self, costs: CostGraph, max_points: int | None, memory_limit: int) -> None:
        self.costs: Costs = costs
        self._layers = costs
        self._chain = costs.to_chain()
        self._solved = solver.Frontier(
            self._chain, max_points=max_points, memory_limit=memory_limit
        )
        ticks = costs.ticks_per_unit
        self.points: tuple[tuple[int, float], ...] = tuple(
            (peak, time / ticks) for peak, time in self._solved.points
        )
        self.exact = self._solved.exact
        everything = replay(self._chain, keep_all(len(self._chain)))
        self.keep_all_peak_bytes = everything.peak_bytes
        self.keep_all_time = everything.time / ticks
        self.time_unit = costs.time_unit

    def plan(
        self, budget: object = None, *, budget_gb: object = None, reserved: object = 0
    ) -> Plan:
        """The fastest plan within a budget, without solving again.

        Parameters
        ----------
        budget
            Bytes, or text such as ``"40GB"`` or ``"40GiB"``.
        budget_gb
            A number of GB, 10⁹ bytes each, instead.
        reserved
            Bytes, or text, that come off the budget first.

        Raises
        ------
        InvalidBudget
            The budget is missing, given twice, or no size.
        InfeasibleBudget
            No plan fits; names the smallest budget that does.
        """
        size = read_budget(budget_gb, budget, reserved)
        start = time.perf_counter()
        try:
            solution = self._solved.solution(size.available)
        except Infeasible as error:
            raise infeasible(
                self._chain,
                error,
                method="optimal",
                budget_bytes=size.asked,
                reserved_bytes=size.reserved,
            ) from None
        return certified(
            self._layers,
            self._chain,
            solution,
            method="optimal",
            budget_bytes=size.asked,
            reserved_bytes=size.reserved,
            seconds=time.perf_counter() - start,
        )

    @property
    def points_are(self) -> str:
        """What the points are, as the legend of a picture says it."""
        return "optimal plans" if self.exact else "near-optimal plans"

    @property
    def bounds(self) -> Sequence[tuple[int, float]]:
        """Pairs (budget in bytes, time that no plan within it beats), ascending; of a sweep."""
        return ()

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

    def to_dict(self, points: Sequence[tuple[int, float]] | None = None) -> dict[str, Any]:
        """The frontier, or some `points` of it, as JSON values."""
        return {
            "name": self.costs.name,
            "layers": len(self.costs),
            "time_unit": self.time_unit,
            "keep_all_peak_bytes": self.keep_all_peak_bytes,
            "keep_all_time": self.keep_all_time,
            "exact": self.exact,
            "points": [
                {"peak_bytes": peak, "time": time}
                for peak, time in (self.points if points is None else points)
            ],
        }

    def __repr__(self) -> str:
        (least, _), (most, _) = self.points[0], self.points[-1]
        kind = "exact" if self.exact else "thinned"
        count = "1 point" if len(self) == 1 else f"{len(self)} points"
        return f"<Frontier: {count}, {kind}, {format_bytes(least)} to {format_bytes(most)}>"

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
        from scheduler.planning.curve import plot_frontier  # only who draws it needs it

        return plot_frontier(self, ax)

    def _repr_svg_(self) -> str | None:
        from scheduler.planning.curve import frontier_picture  # only who draws it needs it

        return frontier_picture(self)

    def table(self, most: int, width: int = WIDTH) -> str:
        """A table of at most `most` points, evenly chosen, the ends among them.

        Its lines have at most `width` characters.
        """
        shown = spread(self.points, most)
        header = ("peak", "of keep-all", "time", "overhead")
        rows = [
            (
                format_bytes(peak),
                format_percent(peak / self.keep_all_peak_bytes if self.keep_all_peak_bytes else 1),
                format_time(time, self.time_unit),
                format_percent(self.overhead(time)),
            )
            for peak, time in shown
        ]
        title = wrapped(self._title(len(shown)), width)
        return "\n".join([title, *fitted(header, rows, width, left=0)])

    def _title(self, count: int) -> str:
        layers = "1 layer" if len(self.costs) == 1 else f"{len(self.costs)} layers"
        kind = "optimal" if self.exact else "near-optimal (thinned)"
        points = f"1 {kind} plan" if len(self) == 1 else f"{len(self)} {kind} plans"
        part = f", {count} shown" if count < len(self) else ""
        return (
            f"{self.costs.name or 'costs'}: {layers}, {points}{part}; keep-all needs "
            f"{format_bytes(self.keep_all_peak_bytes)} and "
            f"{format_time(self.keep_all_time, self.time_unit)} a step"
        )
