"""Every method by its name: what it accepts, and what it promises.

Importing it is cheap: the solvers load numpy and numba when they run.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from solvers.chain import binomial, brute, frontier, greedy, single_level, uniform
from solvers.chain.problem import Chain
from solvers.methods import Limits, Method
from solvers.schedule import Items
from solvers.solution import Solution

_Solver = Callable[[Chain, int], Solution[Items]]


def optimal(
    chain: Chain, budget: int, *, max_points: int | None = None, memory_limit: int | None = None
) -> Solution[Items]:
    """Method "optimal": `frontier.solve`, with its own default where a limit is None."""
    limit = frontier.MEMORY_LIMIT if memory_limit is None else memory_limit
    return frontier.solve(chain, budget, max_points=max_points, memory_limit=limit)


def _optimal(chain: Chain, budget: int, limits: Limits) -> Solution[Items]:
    return optimal(chain, budget, max_points=limits.max_points, memory_limit=limits.memory_limit)


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
            _method(
                "single-level",
                single_level.solve,
                _ANY,
                "The fastest plan that fits whose checkpoints keep everything when recomputed.",
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
                _optimal,
                _ANY,
                "The fastest persistent plan that fits, proven, or within a certified gap where "
                "a limit on points or memory is reached.",
                (Chain,),
                frozenset({"max_points", "memory_limit"}),
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
