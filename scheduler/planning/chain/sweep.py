"""The optimum of a long chain at some budgets, each solved on its own, within a time limit.

One budget needs far fewer points than the frontier: a chain of 340 uneven layers is exact in
seconds at one, where its frontier takes minutes, or large gaps where it is thinned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from scheduler.costs.costgraph import CostGraph
from scheduler.planning.frontier import Frontier
from scheduler.plans.graphplan import GraphPlan
from scheduler.plans.plan import Plan
from solvers.chain import methods as registry
from solvers.replay import replay
from solvers.schedule import keep_all
from solvers.solution import Infeasible, Solution

__all__ = ["ChainFrontier", "ChainSweep", "Run"]

STEPS = 10
"""Even parts of keep-all's peak that a curve has a point for, where a plan fits."""

Run = Callable[[Callable[[], Solution], float], Solution]
"""Does some work in at most so many seconds, or raises `TimeoutError`."""


class ChainSweep:
    """The optimum of one budget after the other, the larger and easier ones first.

    Parameters
    ----------
    costs
        Of a chain.
    run
        Does the work.
    seconds
        For all budgets together.

    Attributes
    ----------
    solved
        The solution of each budget, in bytes.
    missing
        How many budgets there was no time for.
    """

    def __init__(self, costs: CostGraph, run: Run, seconds: float) -> None:
        self.missing = 0
        self.solved: dict[int, Solution] = {}
        self._costs = costs
        self._chain = costs.to_chain()
        self._run = run
        self._end = time.monotonic() + seconds
        everything = replay(self._chain, keep_all(len(self._chain)))
        self._everything = everything

    def know_plan(self, plan: Plan, budget: int) -> None:
        """Take a plan that was proven optimal for the budget, which saves solving for it."""
        if plan.status != "optimal" or isinstance(plan, GraphPlan):
            return
        done = replay(self._chain, plan.items)
        self.solved[budget] = Solution(plan.items, done.peak_bytes, done.time, done.time)

    def optima(self, budgets: Sequence[int]) -> Mapping[int, Solution]:
        """What is solved of these and of the even budgets: the first one, then the larger ones.

        Raises
        ------
        Infeasible
            No plan fits the first.
        TimeoutError
            There was no time for the first.
        """
        first, *others = budgets
        self._solve(first)
        top = self._everything.peak_bytes
        even = [top * part // STEPS for part in range(1, STEPS + 1)]
        todo = sorted({*even, *others} - self.solved.keys(), reverse=True)
        for done, budget in enumerate(todo):
            try:
                self._solve(budget)
            except Infeasible:
                break  # it is one of the even budgets, and so are those that follow
            except TimeoutError:
                self.missing = len(todo) - done
                break
        return self.solved

    def _solve(self, budget: int) -> None:
        if budget not in self.solved:
            left = self._end - time.monotonic()
            self.solved[budget] = self._run(lambda: registry.optimal(self._chain, budget), left)

    def frontier(self) -> ChainFrontier:
        """What is solved so far, as a curve."""
        return ChainFrontier(self._costs, self.solved, self.missing)


class ChainFrontier(Frontier):
    """Optimal pairs of peak bytes and time at some budgets; made by `ChainSweep.frontier`.

    It is read like a `Frontier`, but between two points there are others, so `exact` is false.

    Attributes
    ----------
    proven
        Are all points optimal ones?
    missing
        How many smaller budgets there was no time for.
    """

    def __init__(self, costs: CostGraph, solved: dict[int, Solution], missing: int) -> None:
        self.costs = costs
        self.time_unit = costs.time_unit
        self.missing = missing
        chain, ticks = costs.to_chain(), costs.ticks_per_unit
        everything = replay(chain, keep_all(len(chain)))
        self.keep_all_peak_bytes = everything.peak_bytes
        self.keep_all_time = everything.time / ticks
        self.exact = False
        self.proven = all(each.status.value == "optimal" for each in solved.values())
        points: list[tuple[int, float]] = []
        for each in sorted(solved.values(), key=lambda each: (each.peak_bytes, each.time)):
            if not points or each.time / ticks < points[-1][1]:
                points.append((each.peak_bytes, each.time / ticks))
        self.points = tuple(points)
        self._bounds = [
            (budget, each.lower_bound_time / ticks) for budget, each in sorted(solved.items())
        ]

    @property
    def points_are(self) -> str:
        """What the points are, as the legend of a picture says it."""
        return "optimal plans of a sweep" if self.proven else "plans of a sweep"

    @property
    def bounds(self) -> Sequence[tuple[int, float]]:
        """Pairs (budget in bytes, time that no persistent plan within it beats), ascending."""
        return self._bounds
