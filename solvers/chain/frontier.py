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

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from solvers.chain import binomial, greedy, uniform
from solvers.chain.arrays import (
    MEMORY_LIMIT,
    POINT_BYTES,
    TABLE_BYTES,
    arrays,
    check_memory,
    same_spans,
)
from solvers.chain.problem import Chain
from solvers.chain.savings import guess, room
from solvers.problem import LIMIT
from solvers.schedule import Checkpoint, Item, Items, Keep
from solvers.solution import Infeasible, Solution, Unsuitable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    _Sets: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]  # the kernel's table and pool

FIT = -1
"""Thin as much as it takes to stay within the memory limit (to the kernel: any negative)."""


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
        self._tables = _Tables(chain, nested, memory_limit)
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
        known = list(_quick_plans(self.chain, budget, nested=self._of_one_level is not None))
        if self._of_one_level is not None and self._of_one_level.points[0][0] <= budget:
            known.append(self._of_one_level.solution(budget))
        best = _faster([best, *known])
        bound = [time for peak, time in self.lower_points if peak <= budget][-1]
        return replace(best, lower_bound_time=min(bound, best.time))


def solve(
    chain: Chain,
    budget: int,
    *,
    nested: bool = True,
    max_points: int | None = None,
    memory_limit: int | None = None,
) -> Solution[Items]:
    """The fastest persistent plan (or single-level one) whose peak is at most `budget` bytes.

    One budget needs far fewer points than the frontier: those above the budget, and those that no
    plan within a guessed time can use, are not made. Too small a guess finds no plan, and is
    raised until one is found; what is found is then optimal, whatever the guess.

    Parameters
    ----------
    chain, nested, max_points, memory_limit
        As for `Frontier`.
    budget
        Bytes, the chain's input included.

    Raises
    ------
    Infeasible
        No plan fits; carries the fastest plan of the smallest peak.
    Unsuitable
        There are too many layers for `memory_limit`.
    """
    tables = _Tables(chain, nested, memory_limit)
    smallest = tables.build(most=1)
    assert smallest is not None  # one point a span
    peak = tables.points(smallest)[0][0]
    if peak > budget:
        best = solve(chain, peak, nested=nested, max_points=max_points, memory_limit=memory_limit)
        raise Infeasible.of(chain, best.schedule)
    base = chain.least_time
    most = max_points or 0
    excess = guess(chain, budget)
    raise_by = max(excess // 50, base // 1000 + 1)
    while True:
        sets = tables.build(budget, excess, most)
        if sets is None:
            most = FIT
        elif tables.points(sets):
            break
        else:
            excess = LIMIT if excess > base else excess + raise_by
            raise_by *= 3
    best = Solution.of(chain, Items(tables.plan(sets, budget)))
    if not tables.thinned:
        return best
    del sets  # room for those that follow
    known = list(_quick_plans(chain, budget, nested=nested))
    if nested:
        with suppress(Infeasible):
            known.append(solve(chain, budget, nested=False, memory_limit=memory_limit))
    best = _faster([best, *known])
    # Nothing slower than the plan in hand matters any more: that may already fit.
    tight = None if max_points else tables.build(budget, best.time - base, 0)
    tight = tight or tables.build(budget, best.time - base, most)
    if tight is not None and tables.points(tight):
        best = _faster([best, Solution.of(chain, Items(tables.plan(tight, budget)))])
    if tight is not None and not tables.thinned:
        return replace(best, lower_bound_time=best.time)
    lower = tables.build(budget, best.time - base, most, down=True)
    bound = max(base, tables.points(lower)[-1][1]) if lower else base
    return replace(best, lower_bound_time=min(bound, best.time))


def _quick_plans(chain: Chain, budget: int, *, nested: bool) -> Iterable[Solution[Items]]:
    """Plans within `budget` bytes of all methods that make no sets; `nested`: or of one level."""
    for solve in (uniform.solve, greedy.solve, *([binomial.solve] if nested else [])):
        try:
            yield solve(chain, budget)
        except (Infeasible, Unsuitable):
            continue


def _faster(solutions: Iterable[Solution[Items]]) -> Solution[Items]:
    """The fastest, ties to the smaller peak."""
    return min(solutions, key=lambda each: (each.time, each.peak_bytes))


def _falling(points: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The Pareto set of these pairs (peak, time), peak ascending."""
    falling: list[tuple[int, int]] = []
    for peak, time in sorted(points):
        if not falling or time < falling[-1][1]:
            falling.append((peak, time))
    return falling


class _Tables:
    """A chain as arrays, and what the kernel makes of them."""

    def __init__(self, chain: Chain, nested: bool, memory_limit: int | None) -> None:
        limit = MEMORY_LIMIT if memory_limit is None else memory_limit
        length = len(chain)
        check_memory(length, length, limit)
        self.chain = chain
        self.costs, self.ways = arrays(chain)
        self.same, distinct = same_spans(chain)
        check_memory(length, distinct, limit)
        self.nested = nested
        self.pool = (limit - TABLE_BYTES * length**2) // POINT_BYTES
        self.most = 0
        self.thinned = False

    def build(
        self, budget: int = LIMIT, excess: int = LIMIT, most: int = 0, *, down: bool = False
    ) -> _Sets | None:
        """All sets within the caps, or None when they take more points than the pool."""
        from solvers.chain import kernel

        cap = budget - self.chain.input_bytes if budget < LIMIT else LIMIT
        complete, thinned, *sets = kernel.build(
            self.costs,
            self.ways,
            self.same,
            self.nested,
            cap,
            excess,
            room(self.chain, cap, excess),
            most,
            down,
            self.pool,
        )
        if not complete:
            return None
        self.most, self.thinned = most, thinned
        return sets[0], sets[1]

    def points(self, sets: _Sets) -> list[tuple[int, int]]:
        """The answer of `sets`: pairs (peak bytes with the chain's input, time)."""
        from solvers.chain import kernel

        table, pool = sets
        start, count = table[kernel.H_START, 0, -1], table[kernel.H_COUNT, 0, -1]
        peaks, times = pool[:, start : start + count]
        return list(zip((peaks + self.chain.input_bytes).tolist(), times.tolist(), strict=True))

    def plan(self, sets: _Sets, budget: int) -> tuple[Item, ...]:
        """The fastest plan of `sets` within `budget` bytes; empty when there is none."""
        from solvers.chain import kernel

        within = [peak for peak, _ in self.points(sets) if peak <= budget]
        if not within:
            return ()
        limit = within[-1] - self.chain.input_bytes  # not the budget: the least peak of that time
        levels: list[list[Item]] = [[]]
        opened: list[tuple[int, int]] = []
        for kind, first, second, _ in kernel.read_back(
            self.costs, self.ways, *sets, limit
        ).tolist():
            if kind == kernel.KEEP:
                options = self.chain.layers[first].options
                levels[-1].append(Keep(first, options[second - 1].name if second else None))
            elif kind == kernel.OPEN:
                opened.append((first, second))
                levels.append([])
            else:
                body = tuple(levels.pop())
                levels[-1].append(Checkpoint(*opened.pop(), body))
        return tuple(levels[0])
