"""Single-level plans, exactly: the body of every checkpoint keeps everything.

This is all that `checkpoint_sequential` and the flags of training frameworks can express. The
recurrence is that of nested plans with the set of a body replaced by one point, its keep-all.
"""

from __future__ import annotations

from solvers.chain import frontier as nested
from solvers.chain.problem import Chain
from solvers.schedule import Items
from solvers.solution import Solution


def frontier(chain: Chain) -> list[tuple[int, int]]:
    """Every optimal (peak bytes, time) among single-level plans, peak ascending."""
    return nested.Frontier(chain, nested=False).points


def solve(chain: Chain, budget: int) -> Solution[Items]:
    """The fastest single-level plan whose peak is at most `budget` bytes.

    Its bound is keep-all's time, which holds for every plan: the search is exact in its class,
    but a nested plan may be faster.

    Raises
    ------
    Infeasible
        No single-level plan fits; carries the one with the smallest peak.
    """
    best = nested.solve(chain, budget, nested=False)
    return Solution(best.schedule, best.peak_bytes, best.time, chain.least_time)
