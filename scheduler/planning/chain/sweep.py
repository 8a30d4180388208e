"""What the frontiers of chains are made of: all trades at once, or those of some budgets.

One budget needs far fewer points than the frontier: a chain of 340 uneven layers is exact in
seconds at one, where its frontier takes minutes, or large gaps where it is thinned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from scheduler.planning.request import Budget
from scheduler.planning.sweep import Sweep, Swept, Trades
from scheduler.plans.plan import Plan
from solvers.chain.exact.frontier import Frontier as Points
from solvers.chain.methods import METHODS
from solvers.chain.problem import Chain
from solvers.methods import Limits
from solvers.schedule import Items
from solvers.solution import Infeasible, Solution

STEPS = 10
"""Even parts of keep-all's peak that a curve has a point for, where a plan fits."""

Optimum = Solution[Items]
Refusal = Callable[[Infeasible, Budget], Exception]
"""The error for a budget that no plan fits."""


class WholeFrontier(Trades):
    """All trades of a chain."""

    def __init__(self, chain: Chain, limits: Limits, refusal: Refusal) -> None:
        self._solved = Points(chain, max_points=limits.max_points, memory_limit=limits.memory_limit)
        self._refusal = refusal
        self.points = self._solved.points
        self.exact = self._solved.exact
        self.points_are = "optimal plans" if self.exact else "near-optimal plans"
        if not self.exact:
            self.remarks = (
                "The points are thinned: each is a plan, but faster ones may exist. How far the "
                "optimum at a peak is known is said below.",
            )

    def find(self, size: Budget) -> Swept:
        """The fastest plan within a budget, without solving again."""
        start = time.perf_counter()
        try:
            solution = self._solved.solution(size.available)
        except Infeasible as error:
            raise self._refusal(error, size) from None
        return Swept(size.asked, solution, "optimal", time.perf_counter() - start)


class ChainSweep:
    """The optimum of one budget after the other, the larger and easier ones first.

    Parameters
    ----------
    chain
        The problem.
    run
        Does some work in at most so many seconds, or raises `TimeoutError`.
    seconds
        For all budgets together.

    Attributes
    ----------
    solved
        The solution of each budget, in bytes.
    missing
        How many budgets there was no time for.
    """

    def __init__(
        self,
        chain: Chain,
        run: Callable[[Callable[[], Optimum], float], Optimum],
        seconds: float,
    ) -> None:
        self.missing = 0
        self.solved: dict[int, Optimum] = {}
        self._chain = chain
        self._run = run
        self._end = time.monotonic() + seconds

    def know_plan(self, plan: Plan, budget: int) -> None:
        """Take a plan that was proven optimal for the budget, which saves solving for it."""
        if plan.status == "optimal":
            self.solved[budget] = Solution.of(self._chain, plan.schedule)

    def optima(self, budgets: Sequence[int]) -> Mapping[int, Optimum]:
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
        top = self._chain.replay(self._chain.keep_all()).peak_bytes
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
            optimal = METHODS["optimal"]
            self.solved[budget] = self._run(lambda: optimal.solve(self._chain, budget), left)

    def trades(self) -> Sweep:
        """What is solved so far."""
        proven = all(each.status.value == "optimal" for each in self.solved.values())
        remark = "Each point was solved for its own budget; between two there are more."
        if self.missing:
            remark += (
                f" {self.missing} smaller budgets were left out for lack of time; a larger "
                "time limit has more of them."
            )
        return Sweep(
            self._chain,
            [Swept(budget, each, "optimal", None) for budget, each in sorted(self.solved.items())],
            points_are="optimal plans of a sweep" if proven else "plans of a sweep",
            remarks=(remark,),
        )
