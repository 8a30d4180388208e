"""The fastest plan within one budget, with a bound at any moment (method "optimal").

Far fewer points are made than for the whole frontier. `bounds` says what any plan loses at least,
from a relaxation in which the bodies of checkpoints take no memory. Plans that lose at most a
little more than that are then all there is to look at: only points that one of them can use are
made, of spans that one of them can have in a checkpoint. Where there is none, the bound is higher
by that little, and what is looked at grows. The first plan that is found is optimal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from solvers.chain import binomial, greedy, uniform
from solvers.chain.exact.bounds import Bounds
from solvers.chain.exact.tables import FIT, Tables
from solvers.chain.problem import Chain
from solvers.methods import Limits
from solvers.problem import LIMIT
from solvers.schedule import Items
from solvers.solution import Infeasible, Progress, Solution, Unsuitable

_FIRST = 10
_FACTOR = 2
"""Looked at first is a tenth of a layer's mean time beyond the bound; then so many times more."""

_NARROW = 64
"""Bodies of more layers are looked at when there is a plan without."""

_OFTEN = 100
_COARSE = ((4, 64), (512, 256))
"""Where layers are equal to so many on average there is a first plan from few and coarse sets: of
bodies of so many layers at most, and of so many points."""

_SHORT = 100
"""Fewer layers are solved at once: nobody waits."""

_T = TypeVar("_T")


def solve(chain: Chain, budget: int, *, nested: bool = True, **limits: Any) -> Solution[Items]:
    """The fastest persistent plan (or single-level one) whose peak is at most `budget` bytes.

    Parameters
    ----------
    chain
        The problem.
    budget
        Bytes, the chain's input included.
    nested
        False: only single-level plans, where the body of a checkpoint keeps everything.
    **limits
        Fields of `Limits`: `max_points`, `memory_limit`, `time_limit`, `report`, `interrupted`.

    Raises
    ------
    Infeasible
        No plan fits; carries the fastest plan of the smallest peak. Or none was found in time.
    Unsuitable
        There are too many layers for `memory_limit`.
    """
    return _Search(chain, budget, nested, Limits(**limits)).solution()


class _OutOfTime(Exception):
    """A limit came while something was under way that is of no use half done."""


class _Search:
    """One problem: the best plan so far, the bound, the limits, and who is told."""

    def __init__(self, chain: Chain, budget: int, nested: bool, limits: Limits) -> None:
        self._chain, self._budget, self._nested, self._limits = chain, budget, nested, limits
        self._tables = Tables(chain, nested, limits.memory_limit)
        self._least = chain.least_time
        self._lower = self._least
        self._best: Solution[Items] | None = None
        self._start = time.monotonic()
        self._stage = "bounds"

    def solution(self) -> Solution[Items]:
        """The best plan that is found within the limits, with its certificate."""
        late = False
        try:
            self._search()
        except (_OutOfTime, KeyboardInterrupt):
            late = True
        if self._best is None:
            done = self._chain.replay(self._chain.keep_all())
            raise Infeasible(self._budget, done.peak_action, plan_class=None, out_of_time=late)
        return replace(self._best, lower_bound_time=min(self._lower, self._best.time))

    def _search(self) -> None:
        chain = self._chain
        self._offer(Solution.of(chain, chain.keep_all()))
        with suppress(Infeasible):
            self._offer(greedy.solve(chain, self._budget))
        if self._best is None:
            self._check_feasible()
        self._tell("bounds")
        bounds = Bounds(chain, self._budget - chain.input_bytes)
        self._raise_bound(bounds.least_excess)
        if len(chain) > _OFTEN * self._tables.kinds:
            self._tell("coarse sets")
            for width, most in _COARSE:
                self._look(bounds, self._capped(LIMIT), most, width, sparse=True)
        self._prove(bounds)

    def _check_feasible(self) -> None:
        """Raise `Infeasible` where no plan fits, as far as there is memory to know."""
        self._tell("smallest peak")
        try:
            smallest = self._run(lambda: self._tables.build(most=1))
        except Unsuitable:
            return
        assert smallest is not None  # one point a span
        peak = self._tables.points(smallest)[0][0]
        known = Solution.of(self._chain, Items(self._tables.plan(smallest, peak)))
        del smallest
        self._offer(known)
        if self._best is None:
            of_that = _Search(self._chain, peak, self._nested, self._limits)
            of_that._offer(known)
            raise Infeasible.of(self._chain, of_that.solution().schedule)

    def _prove(self, bounds: Bounds) -> None:
        """Find the best plan, by exact sets as far as memory and the caller allow."""
        self._tell("sets")
        part, width = self._least // (_FIRST * len(self._chain)) + 1, _NARROW
        most = self._limits.max_points or 0
        tables = self._tables
        while True:
            excess = self._capped(bounds.least_excess + part)
            found = self._look(bounds, excess, most, width)
            if found is None:
                if most == FIT:
                    break
                most = FIT
                continue
            exact = tables.whole and not tables.thinned
            if exact:
                # A plan that is found is the best; without one none loses so little.
                lost = self._best.time - self._least if found and self._best else excess + 1
                self._raise_bound(lost)
            if not found and excess < self._capped(LIMIT):
                part *= _FACTOR
            elif exact or self._best is None:
                return
            elif tables.thinned or width >= tables.widest:
                break
            else:
                width *= _FACTOR
        self._bound(bounds)

    def _bound(self, bounds: Bounds) -> None:
        """With a plan from sets that are not exact in hand: what is known of a better one."""
        if self._best is None:
            return
        for each in quick_plans(self._chain, self._budget, nested=self._nested):
            self._offer(each)
        tables = self._tables
        if self._nested:
            with suppress(Infeasible):
                left = self._limits.left(self._start)
                limits = replace(self._limits, max_points=None, time_limit=left)
                level = _Search(self._chain, self._budget, False, limits).solution()
                self._offer(replace(level, lower_bound_time=self._least))
        # Nothing slower than the plan in hand matters any more: that may already fit.
        excess = self._best.time - self._least
        if not self._limits.max_points and tables.whole:
            found = self._look(bounds, excess, 0, tables.widest)
            if found and tables.whole and not tables.thinned:
                self._raise_bound(self._best.time - self._least)
                return
            excess = self._best.time - self._least
        if tables.whole:
            lower = self._run(
                lambda: tables.build_within(bounds, excess, most=tables.most or FIT, down=True)
            )
            points = tables.points(lower) if lower else []
            if points:
                self._raise_bound(points[-1][1] - self._least)

    def _look(
        self, bounds: Bounds, excess: int, most: int, width: int, sparse: bool = False
    ) -> bool | None:
        """Take the best plan of the sets of plans that lose so much; None: no memory for them."""
        build = self._tables.build_within
        sets = self._run(partial(build, bounds, excess, width=width, most=most, sparse=sparse))
        if sets is None:
            return None
        items = self._tables.plan(sets, self._budget)
        if items:
            self._offer(Solution.of(self._chain, Items(items)))
        return bool(items)

    def _capped(self, excess: int) -> int:
        """What a plan may lose that is better than the one in hand, or as good."""
        if self._best is not None:
            return min(excess, self._best.time - self._least)
        return excess if excess <= len(self._chain) * self._least else LIMIT

    def _offer(self, plan: Solution[Items]) -> None:
        if plan.peak_bytes <= self._budget:
            self._best = plan if self._best is None else faster([self._best, plan])
            self._tell()

    def _raise_bound(self, excess: int) -> None:
        self._lower = max(self._lower, self._least + excess)
        self._tell()

    def _tell(self, stage: str = "") -> None:
        self._stage = stage or self._stage
        if self._limits.report is not None:
            time_ = None if self._best is None else self._best.time
            lower = self._lower if time_ is None else min(self._lower, time_)
            seconds = time.monotonic() - self._start
            self._limits.report(Progress(self._stage, time_, lower, seconds))

    def _run(self, work: Callable[[], _T]) -> _T:
        """What `work` returns, in a thread of its own that is ended when a limit comes.

        Raises
        ------
        _OutOfTime
            One has come.
        """
        limits, stop = self._limits, self._tables.stop
        watched = limits.time_limit or limits.report or limits.interrupted
        if not watched and len(self._chain) < _SHORT:
            return work()
        done = limits.run(work, stop, self._start, self._tell)
        if stop[0]:
            raise _OutOfTime
        return done


def quick_plans(chain: Chain, budget: int, *, nested: bool) -> Iterable[Solution[Items]]:
    """Plans within `budget` bytes of all methods that make no sets; `nested`: or of one level."""
    for solve in (uniform.solve, greedy.solve, *([binomial.solve] if nested else [])):
        try:
            yield solve(chain, budget)
        except (Infeasible, Unsuitable):
            continue


def faster(solutions: Iterable[Solution[Items]]) -> Solution[Items]:
    """The fastest, ties to the smaller peak."""
    return min(solutions, key=lambda each: (each.time, each.peak_bytes))
