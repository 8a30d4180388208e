"""What frontiers are made of: all trades at once, or those of some budgets and what follows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from scheduler.common.errors import NoPlanFound
from scheduler.common.text import format_both, format_smallest
from scheduler.planning.request import Budget
from solvers.problem import Problem
from solvers.solution import PlanClass, Solution

_WIDTH = {each: width for width, each in enumerate(PlanClass)}


class Swept(NamedTuple):
    """What was found for one budget, by which method, and in how many seconds."""

    budget: int
    solution: Solution[Any]
    method: str
    seconds: float | None


class Trades(ABC):
    """What a frontier is made of: all trades of a problem, or those of some budgets.

    Attributes
    ----------
    points
        Pairs (peak bytes, ticks), peak ascending, ticks descending.
    exact
        There are no others.
    points_are
        What a picture calls the points: "optimal plans".
    remarks
        How far they can be trusted, as sentences.
    swept
        Of a sweep what was found for each budget, ascending; else nothing.
    failed
        Pairs (budget in bytes, sentence) of the budgets without a plan, and why.
    interrupted
        Did it end early? It went from the tightest budget up.
    """

    points: Sequence[tuple[int, int]]
    exact: bool = False
    points_are: str = "plans of a sweep"
    remarks: Sequence[str] = ()
    swept: Sequence[Swept] = ()
    failed: Sequence[tuple[int, str]] = ()
    interrupted: bool = False

    @abstractmethod
    def find(self, size: Budget) -> Swept:
        """The fastest within a budget; errors as of `scheduler.planning.frontier.Frontier.plan`."""


class Sweep(Trades):
    """Some budgets, ascending, each with what was found.

    Parameters
    ----------
    problem
        What was solved.
    swept
        Budgets ascending.
    below
        The error for a budget that is less than what every plan needs; None: it is not.
    told
        Other attributes of `Trades`.
    """

    def __init__(
        self,
        problem: Problem[Any],
        swept: Sequence[Swept],
        below: Callable[[Budget], Exception | None] = lambda size: None,
        **told: Any,
    ) -> None:
        self._problem = problem
        self._below = below
        self.swept = swept
        vars(self).update(told)

    @property
    def points(self) -> list[tuple[int, int]]:  # type: ignore[override]
        """Those of the budgets that are faster than all below them."""
        points: list[tuple[int, int]] = []
        for each in self.swept:
            if not points or each.solution.time < points[-1][1]:
                points.append((each.solution.peak_bytes, each.solution.time))
        return points

    def find(self, size: Budget) -> Swept:
        """The fastest that fits, with the bound of the next larger budget.

        Raises
        ------
        InfeasibleBudget, NoPlanFound
            None fits.
        """
        fitting = [each for each in self.swept if each.solution.peak_bytes <= size.available]
        if not fitting:
            smallest = size.smallest(min(each.solution.peak_bytes for each in self.swept))
            raise self._below(size) or NoPlanFound(
                f"the sweep has no plan within a budget of {format_both(size.asked)}: its smallest "
                f"needs {format_smallest(smallest)}; solve for this budget"
            )
        best = min(fitting, key=lambda each: (each.solution.time, each.solution.peak_bytes))
        above = [each.solution for each in self.swept if each.budget >= size.available]
        bound = _bound(best.solution, above, self._problem.least_time)
        return best._replace(solution=replace(best.solution, lower_bound_time=bound))


def lowered(found: Sequence[Swept]) -> list[Swept]:
    """Budgets ascending, each with the best bound of those not below it."""
    solutions: list[Solution[Any]] = []
    for each in reversed(found):
        bound = _bound(each.solution, solutions, each.solution.lower_bound_time)
        solutions.append(replace(each.solution, lower_bound_time=bound))
    return [
        each._replace(solution=solution)
        for each, solution in zip(found, reversed(solutions), strict=True)
    ]


def _bound(solution: Solution[Any], others: Sequence[Solution[Any]], least: int) -> int:
    """The best bound for the class of `solution` among those of `others`, `least` at least.

    A bound holds for a narrower class too; and classes other than "any" are those of one order.
    """
    bounds = [
        other.lower_bound_time
        for other in others
        if other.plan_class is PlanClass.ANY
        or (
            _WIDTH[other.plan_class] >= _WIDTH[solution.plan_class]
            and other.schedule.order == solution.schedule.order
        )
    ]
    return max([least, *bounds])
