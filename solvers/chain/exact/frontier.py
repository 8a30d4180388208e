"""The exact frontier of nested plans of a chain (method "optimal").

Two sets per span, of pairs (m, c), m the peak while doing layers s..t with the gradient of t's
output live and counted, c the time. H(s, t): the input of s is held by somebody else and is not
counted. R(s, t): it is counted and let go as early as the replay allows. With L layers, x, w, tf,
td, ta, tb, o, g, r as in `problem.Layer`, and G(i, j) = g_i + ... + g_j:

    next(s,t)  H(s+1,t) + w_s + x_s if the output is saved, else R(s+1,t) + w_s; (0, 0) when s = t
    fwd        x_t + w_s + x_s + tf_s + ta_s
    bwd        x_s + [x_s if the output is saved] + w_s + x_{s-1} + tb_s - o_s + G(s,t)
    keep s     (m, c) in next:  H gets max(m, fwd, bwd);  R gets that + x_{s-1} if the input is
               saved, else max(m, fwd + x_{s-1}, bwd);  c + f_s + b_s (r_s for f_s when s = t < L-1)
    s..j       (m1, c1) in R(j+1,t), (m2, c2) in H(s,j):  H gets
               max(m1, m2 + G(j+1,t), x_t + max_i([x_{i-1} if i > s] + x_i + td_i + ta_i));
               R that + x_{s-1};  c1 + c2 + f_s + ... + f_j
    answer     H(0, L-1) + x_{-1}

Where t < L-1 the span is in a body, and its forwards run again: tr stands for ta, and te for both
tf and ta where a kept s = t ends it. An option is one more way to keep s, with its own w, tf, te,
tb, o, its own answer to what is saved, and its own time; but bwd has the full w_s, and twice x_s
where the full set or the option saves the output. It is the optimum among *persistent* plans: a
stored value stays until its backward.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from solvers.chain.exact.optimum import faster, quick_plans
from solvers.chain.exact.tables import FIT, Tables
from solvers.chain.problem import Chain
from solvers.schedule import Item, Items
from solvers.solution import Infeasible, Solution


class Frontier:
    """Every optimal (peak, time) of a chain, and the plans that reach them.

    Parameters
    ----------
    chain
        The problem.
    nested
        False: only single-level plans, where the body of a checkpoint keeps everything.
    max_points
        Points a set may keep, about, at least 16; larger sets are thinned evenly in time.
        None: no limit but memory.
    memory_limit
        Bytes for tables and all sets, `MEMORY_LIMIT` where it is None. Where exact sets would take
        more, they are thinned to fit.

    Attributes
    ----------
    points
        Pairs (peak bytes, time), peak ascending, time descending, each reached by a plan.
    exact
        Nothing was thinned: `points` is the whole Pareto set.
    """

    def __init__(
        self,
        chain: Chain,
        *,
        nested: bool = True,
        max_points: int | None = None,
        memory_limit: int | None = None,
    ) -> None:
        self.chain = chain
        self._tables = Tables(chain, nested, memory_limit)
        sets = self._tables.build(most=max_points or 0) or self._tables.build(most=FIT)
        assert sets is not None  # what is made to fit does
        self._sets = sets
        self.points = self._tables.points(sets)
        self.exact = not self._tables.thinned
        self._of_one_level: Frontier | None = None
        if not self.exact and nested:
            self._of_one_level = Frontier(chain, nested=False, memory_limit=memory_limit)
            self.points = _falling([*self.points, *self._of_one_level.points])

    @cached_property
    def lower_points(self) -> list[tuple[int, int]]:
        """A lower bound in the same form: no plan of the class lies below this step function."""
        if self.exact:
            return self.points
        sets = self._tables.build(most=self._tables.most, down=True)
        floor = self.chain.least_time
        return self._tables.points(sets) if sets else [(self.points[0][0], floor)]

    def plan(self, budget: int) -> tuple[Item, ...]:
        """The fastest plan with a peak of at most `budget` bytes, without solving again.

        Raises
        ------
        Infeasible
            The budget is below the first point's peak.
        """
        return self.solution(budget).schedule.items

    def solution(self, budget: int) -> Solution[Items]:
        """`plan` with its certificate."""
        items = self._tables.plan(self._sets, budget)
        if not items:
            smallest = self._tables.plan(self._sets, self.points[0][0])
            raise Infeasible.of(self.chain, Items(smallest))
        best = Solution.of(self.chain, Items(items))
        if self.exact:
            return best
        known = list(quick_plans(self.chain, budget, nested=self._of_one_level is not None))
        if self._of_one_level is not None and self._of_one_level.points[0][0] <= budget:
            known.append(self._of_one_level.solution(budget))
        best = faster([best, *known])
        bound = [time for peak, time in self.lower_points if peak <= budget][-1]
        return replace(best, lower_bound_time=min(bound, best.time))


def _falling(points: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The Pareto set of these pairs (peak, time), peak ascending."""
    falling: list[tuple[int, int]] = []
    for peak, time in sorted(points):
        if not falling or time < falling[-1][1]:
            falling.append((peak, time))
    return falling
