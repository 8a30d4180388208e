"""Time against memory: a frontier, a plan on it, and methods, as one picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from scheduler.costs.readers import Costs
from scheduler.plans.facts import PlanFacts
from scheduler.report.curve import Curve, Mark
from scheduler.report.figure import can_draw, plot
from scheduler.report.svg import svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["curve_picture", "frontier_picture", "plot_comparison", "plot_frontier"]

_WIDTH = 880


class FrontierLike(Protocol):
    """What the picture asks of a frontier."""

    @property
    def costs(self) -> Costs:
        """What was solved."""

    @property
    def points(self) -> Sequence[tuple[int, float]]:
        """Pairs (peak bytes, time), peak ascending."""

    @property
    def points_are(self) -> str:
        """What they are, as a legend says it: "optimal plans"."""

    @property
    def exact(self) -> bool:
        """Whether they are all optimal pairs."""

    @property
    def bounds(self) -> Sequence[tuple[int, float]]:
        """Pairs (budget in bytes, time that no plan within it beats), ascending; of a sweep."""

    @property
    def keep_all_time(self) -> float:
        """Of the plan that recomputes nothing."""


class ComparisonLike(Protocol):
    """What the picture asks of a comparison."""

    @property
    def name(self) -> str:
        """Of the costs."""

    @property
    def marks(self) -> Sequence[Mark]:
        """The plans of the methods."""

    @property
    def optima(self) -> Sequence[tuple[int, float]]:
        """Pairs (peak bytes, time of the optimal plan within it), peak ascending."""

    @property
    def keep_all_time(self) -> float:
        """Of the plan that recomputes nothing."""

    @property
    def time_unit(self) -> str:
        """Unit of every time."""

    @property
    def budget_bytes(self) -> int:
        """The budget as it was asked for."""

    @property
    def reserved_bytes(self) -> int:
        """What of it is reserved."""


def curve_picture(
    frontier: FrontierLike,
    plan: PlanFacts | None = None,
    comparison: ComparisonLike | None = None,
    width: float = _WIDTH,
) -> str:
    """Time against memory, as SVG.

    Parameters
    ----------
    frontier
        All optimal pairs, or a sweep over budgets.
    plan
        The plan to mark, with its lower bound and its budget.
    comparison
        Other methods to mark.
    width
        In pixels.
    """
    return svg(_curve(frontier, plan, comparison), width)


def frontier_picture(frontier: FrontierLike) -> str | None:
    """The picture that a notebook shows of a frontier; None where nothing can be drawn."""
    return curve_picture(frontier) if can_draw() else None


def plot_frontier(frontier: FrontierLike, axes: Axes | None) -> Axes:
    """The same picture on axes of matplotlib."""
    return plot(_curve(frontier), axes)


def plot_comparison(comparison: ComparisonLike, axes: Axes | None) -> Axes:
    """The methods, the optimum at their peaks and the budget, on axes of matplotlib."""
    shown = Curve(
        name=comparison.name,
        points=comparison.optima,
        points_are="optimal plans at these peaks",
        is_exact=False,
        bounds=(),
        others=comparison.marks,
        plan=None,
        bound_time=None,
        keep_all_time=comparison.keep_all_time,
        time_unit=comparison.time_unit,
        budget_bytes=comparison.budget_bytes,
        reserved_bytes=comparison.reserved_bytes,
    )
    return plot(shown, axes)


def _curve(
    frontier: FrontierLike,
    plan: PlanFacts | None = None,
    comparison: ComparisonLike | None = None,
) -> Curve:
    return Curve(
        name=frontier.costs.name,
        points=frontier.points,
        points_are=frontier.points_are,
        is_exact=frontier.exact,
        bounds=frontier.bounds,
        others=() if comparison is None else comparison.marks,
        plan=None if plan is None else Mark(plan.method, plan.peak_bytes, plan.time),
        bound_time=None if plan is None else plan.lower_bound_time,
        keep_all_time=frontier.keep_all_time,
        time_unit=frontier.costs.time_unit,
        budget_bytes=None if plan is None else plan.budget_bytes,
        reserved_bytes=0 if plan is None else plan.reserved_bytes,
    )
