"""Chen's greedy walk: a segment ends where the bytes of its layers exceed a threshold.

Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016), algorithm 3, and its search
over thresholds, here on a grid from the largest layer to the whole chain instead of around one
guess; where none of these fits, also on one from the smallest layer to the largest.
"""

from __future__ import annotations

from solvers.chain.problem import Chain
from solvers.chain.segments import Segments, fastest, kept_bytes
from solvers.schedule import Items
from solvers.solution import Infeasible, Solution

GRID = 100
"""Thresholds tried, each a fixed ratio above the one before."""


def greedy_segments(chain: Chain, threshold: float) -> Segments:
    """Segments of one walk: each ends with the layer that takes it above `threshold` bytes.

    A layer that must be kept ends the segment before it; a segment that ends the chain is kept.
    """
    segments: list[tuple[int, int]] = []
    first, total = 0, 0
    for i, layer in enumerate(chain.layers[:-1]):
        if not layer.recomputable:
            if first < i:
                segments.append((first, i - 1))
            first, total = i + 1, 0
            continue
        total += kept_bytes(chain, i)
        if total > threshold:
            segments.append((first, i))
            first, total = i + 1, 0
    last = len(chain) - 1
    if first < last and not chain.layers[last].recomputable:
        segments.append((first, last - 1))
    return tuple(segments)


def thresholds(chain: Chain) -> list[float]:
    """A geometric grid from just below the largest layer, which then fills a segment, to all."""
    sizes = [kept_bytes(chain, i) for i, la in enumerate(chain.layers) if la.recomputable] or [0]
    low, high = max(max(sizes) - 1, 1), max(sum(sizes), 1)
    inner = [low * (high / low) ** (n / (GRID - 1)) for n in range(1, GRID - 1)]
    return [low, *inner, high]  # the ends exactly: rounding must not lose the single segment


def smaller_thresholds(chain: Chain) -> list[float]:
    """From none, where each layer is a segment, to those of `thresholds`: a layer dominates."""
    sizes = [kept_bytes(chain, i) for i, la in enumerate(chain.layers) if la.recomputable] or [0]
    low, high = max(min(sizes), 1), max(sizes)
    return [0, *(low * (high / low) ** (n / (GRID - 1)) for n in range(GRID - 1))]


def solve(chain: Chain, budget: int) -> Solution[Items]:
    """The fastest plan of the walk that fits `budget`, over the grid of thresholds, or keep-all."""
    walks = [greedy_segments(chain, b) for b in thresholds(chain)]
    try:
        return fastest(chain, walks, budget)
    except Infeasible:
        walks += [greedy_segments(chain, b) for b in smaller_thresholds(chain)]
        return fastest(chain, walks, budget)
