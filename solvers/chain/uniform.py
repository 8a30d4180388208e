"""Segments of equal length: the √L rule, its relatives, and the two trivial plans.

The rule is Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016). A segment that ends
the chain is kept: recomputing what was just computed gains nothing.
"""

from __future__ import annotations

import math

from solvers.chain.problem import Chain
from solvers.chain.segments import Segments, best_fitting, fastest, kept_bytes, plan_of, runs
from solvers.schedule import Item, Items, keep_all
from solvers.solution import Solution


def sqrt_rule(layers: int) -> float:
    """Best segment length k* = √L of the rule that counts a boundary and a layer alike.

    Segments of k layers hold L/k boundaries, and one segment at a time is whole again, k layers:
    m(k) = L/k + k. Its derivative 1 - L/k² is zero at k = √L.
    """
    return math.sqrt(layers)


def sqrt_peak(layers: int) -> float:
    """The rule's least memory m(k*) = L/√L + √L = 2√L, in units of one layer's activations."""
    return 2 * math.sqrt(layers)


def sqrt_saving(layers: int) -> float:
    """How many times less than keep-all: L / (2√L) = √L/2 (4.47 at L = 80, not √80 = 8.9)."""
    return math.sqrt(layers) / 2


def integer_peak(layers: int, k: int) -> int:
    """m(k) with whole segments: ⌈L/k⌉ boundaries and the k layers of one segment."""
    return -(-layers // k) + k


def best_integer_k(layers: int) -> list[int]:
    """All k that reach the least `integer_peak`, in order (8, 9, 10 for L = 80: 18)."""
    least = min(integer_peak(layers, k) for k in range(1, layers + 1))
    return [k for k in range(1, layers + 1) if integer_peak(layers, k) == least]


def ratio_rule(layers: int, boundary_bytes: float, interior_bytes: float) -> float:
    """Best segment length k* = √(L·c/a) where a boundary is c bytes and an interior a bytes.

    m(k) = c·L/k + a·k has the derivative a - c·L/k². Infinite when interiors cost nothing; when
    boundaries cost nothing either, every k is as good and √L is returned.
    """
    if not interior_bytes:
        return math.inf if boundary_bytes else sqrt_rule(layers)
    return math.sqrt(layers * boundary_bytes / interior_bytes)


def ratio_peak(layers: int, k: int, boundary_bytes: float, interior_bytes: float) -> float:
    """c·⌈L/k⌉ + a·k: boundaries of c bytes, and one segment whole at a bytes a layer."""
    return boundary_bytes * -(-layers // k) + interior_bytes * k


def uniform_segments(chain: Chain, k: int) -> Segments:
    """Segments of `k` layers in each run of recomputable layers, but not the chain's last."""
    cut = (
        (at, min(at + k - 1, last))
        for first, last in runs(chain)
        for at in range(first, last + 1, k)
    )
    return tuple(segment for segment in cut if segment[1] < len(chain) - 1)


def uniform_plan(chain: Chain, k: int) -> tuple[Item, ...]:
    """Segments of `k` layers over each run of recomputable layers; the last may be shorter."""
    return plan_of(len(chain), uniform_segments(chain, k))


def solve(chain: Chain, budget: int) -> Solution[Items]:
    """The fastest uniform plan that fits `budget`, over every segment length k, or keep-all.

    Raises
    ------
    Infeasible
        None fits; carries the uniform plan with the smallest peak.
    """
    longest = max((last - first + 1 for first, last in runs(chain)), default=1)
    return fastest(chain, [uniform_segments(chain, k) for k in range(1, longest + 1)], budget)


def solve_sqrt(chain: Chain, budget: int) -> Solution[Items]:
    """The classic closed form alone: k = √L, rounded, over the L recomputable layers.

    Raises
    ------
    Infeasible
        That plan does not fit; carries it.
    """
    layers = sum(layer.recomputable for layer in chain.layers)
    k = max(1, round(sqrt_rule(layers)))
    return best_fitting(chain, [uniform_plan(chain, k)], budget)


def solve_ratio(chain: Chain, budget: int) -> Solution[Items]:
    """The closed form for boundaries and interiors of different size, k = √(L·c/a), rounded.

    c is the mean output and a the mean of what a kept layer holds, over recomputable layers.

    Raises
    ------
    Infeasible
        That plan does not fit; carries it.
    """
    layers = [layer for layer in chain.layers if layer.recomputable]
    boundary = sum(layer.output_bytes for layer in layers)
    interior = sum(kept_bytes(chain, i) for i, la in enumerate(chain.layers) if la.recomputable)
    k = min(len(layers), ratio_rule(len(layers), boundary, interior))  # the ratio of the means
    return best_fitting(chain, [uniform_plan(chain, max(1, round(k)))], budget)


def solve_keep_all(chain: Chain, budget: int) -> Solution[Items]:
    """The plan that recomputes nothing.

    Raises
    ------
    Infeasible
        It does not fit; carries it.
    """
    return best_fitting(chain, [keep_all(len(chain))], budget)


def solve_every_layer(chain: Chain, budget: int) -> Solution[Items]:
    """A checkpoint around each recomputable layer but the chain's last.

    Raises
    ------
    Infeasible
        That plan does not fit; carries it.
    """
    return best_fitting(chain, [uniform_plan(chain, 1)], budget)
