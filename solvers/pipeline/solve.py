"""The least time of a pipeline over all cuts and nested plans of its stages, with a proof."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from solvers.methods import Limits
from solvers.pipeline.problem import Pipeline
from solvers.pipeline.stages import Stages
from solvers.problem import LIMIT
from solvers.schedule import Item
from solvers.solution import Status, Unsuitable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Solution:
    """Cuts and plans, with what is proven.

    Attributes
    ----------
    cuts
        The first layer of each stage, and the number of layers behind them.
    plans
        Of each stage, of a chain that has only its layers.
    time
        Of one step.
    lower_bound_time
        No cuts and plans within the budgets take less.
    """

    cuts: tuple[int, ...]
    plans: tuple[tuple[Item, ...], ...]
    time: int
    lower_bound_time: int

    @property
    def status(self) -> Status:
        """`OPTIMAL` only when the bound proves it."""
        return Status.OPTIMAL if self.time <= self.lower_bound_time else Status.FEASIBLE


def encoded(pipeline: Pipeline) -> NDArray[np.int64]:
    """The orders as the kernel reads them: m forward, ~m backward."""
    import numpy as np

    return np.array(
        [[m if kind == "F" else ~m for kind, m in order] for order in pipeline.orders], np.int64
    )


class Infeasible(Exception):
    """No cuts have plans within the budgets.

    Attributes
    ----------
    missing
        Bytes by which every budget must be raised at least for cuts to have plans; None: the search
        was ended before it was known whether there are any, or the cuts were given.
    stage, first, last
        The stage that needs so much more, and its layers, by the cuts that need least.
    """

    def __init__(self, missing: int | None, stage: int = 0, first: int = 0, last: int = 0) -> None:
        super().__init__(f"nothing fits: {missing} bytes are missing")
        self.missing, self.stage, self.first, self.last = missing, stage, first, last


def solve(
    pipeline: Pipeline, limits: Limits | None = None, cuts_given: Sequence[int] | None = None
) -> Solution:
    """The fastest cuts and plans of all, or the fastest plans with the cuts that are given.

    Raises
    ------
    Infeasible
        There are none within the budgets.
    Unsuitable
        There are too many layers for the memory limit.
    """
    import numpy as np

    from solvers.pipeline import kernel

    search = _Search(pipeline, limits or Limits())
    orders = encoded(pipeline)
    each = pipeline.chain.least_time // pipeline.stages
    lower, time_cap = 0, each + each // 4
    while True:
        stages = search.stages(time_cap=time_cap)
        if cuts_given is not None:
            _allow(stages.times, cuts_given)
        progress = np.array([LIMIT, 0])
        cuts = search.run(
            partial(
                kernel.best_cuts,
                stages.times,
                stages.forward,
                orders,
                pipeline.communication_time,
                progress,
                search.stop,
            )
        )
        best, found = progress.tolist()
        # A stage that takes a microbatch longer takes that for all of them.
        lower = max(lower, min(found, pipeline.microbatches * (time_cap + 1)))
        if best <= lower or search.stop[0]:
            break
        if best < LIMIT:
            time_cap = max((best - 1) // pipeline.microbatches, time_cap)
        elif time_cap >= LIMIT:
            break
        else:
            longest = pipeline.chain.least_time * len(pipeline.chain)
            time_cap = 2 * time_cap + 1 if time_cap < longest else LIMIT
    if best >= LIMIT:
        unknown = search.stop[0] or cuts_given is not None
        raise Infeasible(None) if unknown else _infeasible(pipeline, search)
    spans = zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)
    plans = tuple(stages.plan(p, i, e - 1) for p, (i, e) in enumerate(spans))
    return Solution(tuple(cuts.tolist()), plans, best, min(lower, best))


def _allow(times: NDArray[np.int64], cuts: Sequence[int]) -> None:
    """Leave of all spans those between the cuts."""
    kept = [
        (p, end - first - 1, first, int(times[p, end - first - 1, first]))
        for p, (first, end) in enumerate(pairwise(cuts))
    ]
    times[:] = LIMIT
    for p, n, first, takes in kept:
        times[p, n, first] = takes


class _Search:
    """What is done in a thread of its own, which the caller's limits end."""

    def __init__(self, pipeline: Pipeline, limits: Limits) -> None:
        import numpy as np

        self._pipeline, self._limits = pipeline, limits
        self._start = time.monotonic()
        self.stop = np.zeros(1, np.bool_)

    def run(self, work: Callable[[], _T]) -> _T:
        """See `Limits.run`."""
        return self._limits.run(work, self.stop, self._start)

    def stages(self, cap: int | None = None, time_cap: int = LIMIT) -> Stages:
        """The stages; `Infeasible` where there was no time to make them."""
        memory = self._limits.memory_limit
        try:
            return self.run(lambda: Stages(self._pipeline, memory, self.stop, cap, time_cap))
        except Unsuitable:
            if self.stop[0]:
                raise Infeasible(None) from None
            raise


def _infeasible(pipeline: Pipeline, search: _Search) -> Infeasible:
    """What is missing least, over all cuts."""
    needs = search.stages(cap=LIMIT).least_bytes()
    length = len(pipeline.chain)
    # Of stages 0 .. p - 1 over layers 0 .. e - 1: bytes missing, where the last begins.
    least: dict[tuple[int, int], tuple[int, int]] = {(0, 0): (-LIMIT, 0)}
    for p, budget in enumerate(pipeline.budgets):
        for e in range(p + 1, length + 1):
            options = [
                (max(least[p, i][0], int(needs[p, e - i - 1, i]) - budget), i)
                for i in range(max(p, e - needs.shape[1]), e)
                if (p, i) in least
            ]
            if options:
                least[p + 1, e] = min(options)
    missing, e = least[pipeline.stages, length][0], length
    for p in range(pipeline.stages, 0, -1):
        i = least[p, e][1]
        if int(needs[p - 1, e - i - 1, i]) - pipeline.budgets[p - 1] == missing:
            return Infeasible(missing, p - 1, i, e - 1)
        e = i
    raise AssertionError("no stage needs what is missing")
