"""Every method by its name: what it accepts, and what it promises.

Importing it is cheap: the solvers load numpy and numba when they run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from solvers.chain import binomial, brute, greedy, uniform
from solvers.chain.exact import optimum
from solvers.chain.problem import Chain
from solvers.methods import Limits, Method
from solvers.schedule import Items
from solvers.solution import Solution

_Solver = Callable[[Chain, int], Solution[Items]]


def single_level(chain: Chain, budget: int, **limits: Any) -> Solution[Items]:
    """The fastest plan within `budget` bytes whose checkpoints keep everything in their bodies.

    This is all that `checkpoint_sequential` and the flags of training frameworks can express. Its
    bound is keep-all's time, which holds for every plan: the search is exact in its class, but a
    nested plan may be faster. `limits` are fields of `Limits`.

    Raises
    ------
    Infeasible
        No single-level plan fits; carries the one with the smallest peak.
    Unsuitable
        There are too many layers for `memory_limit`.
    """
    best = optimum.solve(chain, budget, nested=False, **limits)
    return replace(best, lower_bound_time=chain.least_time)


def _of(limits: Limits, *names: str) -> dict[str, Any]:
    """The limits of these names, and who looks on."""
    return {name: getattr(limits, name) for name in (*names, "report", "interrupted")}


def _method(name: str, solver: _Solver, accepts: str, promises: str) -> Method:
    """A method that takes no limits."""
    return Method(name, lambda chain, budget, _: solver(chain, budget), accepts, promises, (Chain,))


_ANY = "Any chain."

METHODS = MappingProxyType(
    {
        method.name: method
        for method in (
            _method(
                "keep-all",
                uniform.solve_keep_all,
                _ANY,
                "Recomputes nothing: no plan is faster, and it needs the most memory of all.",
            ),
            _method(
                "every-layer",
                uniform.solve_every_layer,
                _ANY,
                "A checkpoint around each layer but the last, whatever the budget.",
            ),
            _method(
                "uniform-sqrt",
                uniform.solve_sqrt,
                _ANY,
                "Segments of √L layers, the closed form for equal sizes, whatever the budget.",
            ),
            _method(
                "uniform-ratio",
                uniform.solve_ratio,
                _ANY,
                "Segments of √(L·c/a) layers for boundaries of c bytes and interiors of a, "
                "whatever the budget.",
            ),
            _method(
                "uniform",
                uniform.solve,
                _ANY,
                "The fastest plan of equally long segments that fits, over every length.",
            ),
            _method(
                "greedy",
                greedy.solve,
                _ANY,
                "The fastest plan that fits of Chen's walk, over a grid of thresholds.",
            ),
            Method(
                "single-level",
                lambda chain, budget, limits: single_level(
                    chain, budget, **_of(limits, "memory_limit", "time_limit")
                ),
                _ANY,
                "The fastest plan that fits whose checkpoints keep everything when recomputed.",
                (Chain,),
                frozenset({"memory_limit", "time_limit"}),
            ),
            _method(
                "binomial",
                binomial.solve,
                "Identical layers, with an input of the size of every output.",
                "Griewank and Walther's closed form, the fewest forwards for a number of "
                "snapshots, over every number.",
            ),
            Method(
                "optimal",
                lambda chain, budget, limits: optimum.solve(
                    chain, budget, **_of(limits, "max_points", "memory_limit", "time_limit")
                ),
                _ANY,
                "The fastest persistent plan that fits, proven, or within a certified gap where "
                "a limit on points, memory or time is reached.",
                (Chain,),
                frozenset({"max_points", "memory_limit", "time_limit"}),
            ),
            _method(
                "brute",
                brute.solve,
                f"Chains of at most {brute.MOST_PLANS:,} nested plans.",
                "The fastest of all nested plans that fits, by trying each.",
            ),
        )
    }
)
"""Methods by name, baselines first."""
