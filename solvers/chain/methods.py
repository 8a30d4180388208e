"""Every method by its name: what it accepts, and what it promises.

Importing it is cheap: the solvers load numpy and numba when they run.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from solvers.chain import binomial, brute, frontier, greedy, single_level, uniform
from solvers.problem import Chain
from solvers.solution import Solution


class Solver(Protocol):
    """A chain and a budget in bytes in, a plan within it out.

    Raises
    ------
    Infeasible
        No plan of the method fits.
    Unsuitable
        The method does not accept the chain.
    """

    def __call__(self, chain: Chain, budget: int, /) -> Solution: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Method:
    """One way to make a plan.

    Attributes
    ----------
    name
        What a caller asks for.
    solve
        The solver.
    accepts
        Which chains, as a sentence.
    promises
        What is known of its plans, as a sentence.
    """

    name: str
    solve: Solver
    accepts: str
    promises: str


def optimal(
    chain: Chain, budget: int, *, max_points: int | None = None, memory_limit: int | None = None
) -> Solution:
    """Method "optimal": `frontier.solve`, with its own default where a limit is None."""
    limit = frontier.MEMORY_LIMIT if memory_limit is None else memory_limit
    return frontier.solve(chain, budget, max_points=max_points, memory_limit=limit)


_ANY = "Any chain."

METHODS = MappingProxyType(
    {
        method.name: method
        for method in (
            Method(
                "keep-all",
                uniform.solve_keep_all,
                _ANY,
                "Recomputes nothing: no plan is faster, and it needs the most memory of all.",
            ),
            Method(
                "every-layer",
                uniform.solve_every_layer,
                _ANY,
                "A checkpoint around each layer but the last, whatever the budget.",
            ),
            Method(
                "uniform-sqrt",
                uniform.solve_sqrt,
                _ANY,
                "Segments of √L layers, the closed form for equal sizes, whatever the budget.",
            ),
            Method(
                "uniform-ratio",
                uniform.solve_ratio,
                _ANY,
                "Segments of √(L·c/a) layers for boundaries of c bytes and interiors of a, "
                "whatever the budget.",
            ),
            Method(
                "uniform",
                uniform.solve,
                _ANY,
                "The fastest plan of equally long segments that fits, over every length.",
            ),
            Method(
                "greedy",
                greedy.solve,
                _ANY,
                "The fastest plan that fits of Chen's walk, over a grid of thresholds.",
            ),
            Method(
                "single-level",
                single_level.solve,
                _ANY,
                "The fastest plan that fits whose checkpoints keep everything when recomputed.",
            ),
            Method(
                "binomial",
                binomial.solve,
                "Identical layers, with an input of the size of every output.",
                "Griewank and Walther's closed form, the fewest forwards for a number of "
                "snapshots, over every number.",
            ),
            Method(
                "optimal",
                optimal,
                _ANY,
                "The fastest persistent plan that fits, proven, or within a certified gap where "
                "a limit on points or memory is reached.",
            ),
            Method(
                "brute",
                brute.solve,
                f"Chains of at most {brute.MOST_PLANS:,} nested plans.",
                "The fastest of all nested plans that fits, by trying each.",
            ),
        )
    }
)
"""Methods by name, baselines first."""


def get(name: str) -> Method:
    """The method called `name`; `KeyError` when there is none."""
    return METHODS[name]
