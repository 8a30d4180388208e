"""The plans of quick methods: what an answer from thinned sets must not be worse than."""

from __future__ import annotations

from collections.abc import Iterable

from solvers.chain import binomial, greedy, uniform
from solvers.chain.problem import Chain
from solvers.schedule import Items
from solvers.solution import Infeasible, Solution, Unsuitable


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
