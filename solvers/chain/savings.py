"""Bytes that layers free for time lost: knapsacks, filled in the order of bytes for time.

A kept layer may be kept in a way that holds less and takes longer, or be dropped and run forward
again. Of its choices those on the upper convex hull of (time, bytes) are taken one after the other,
as steps. All steps by density, and the one that no longer fits whole, free at least as much as any
choice within the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from solvers.chain.problem import Chain
from solvers.problem import LIMIT, Layer
from solvers.schedule import Items, keep_all

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ROOMS = 64
"""Times for which `room` is tabulated, besides none."""


class _Step(NamedTuple):
    """Bytes that a layer frees more when it may lose so much more time."""

    layer: int
    time: int
    freed: int

    @property
    def density(self) -> float:
        return self.freed / self.time if self.time else float("inf")


def guess(chain: Chain, budget: int) -> int:
    """A first guess at the time lost within `budget`: what the bytes that are missing cost."""
    missing = chain.replay(Items(keep_all(len(chain)))).peak_bytes - budget
    if missing <= 0:
        return 0
    steps: list[_Step] = []
    for i, layer in enumerate(chain.layers[:-1]):
        dropped = layer.saved_bytes + layer.output_bytes
        steps += _steps(i, _choices(layer, _held(chain, i), layer.forward_time, dropped))
    steps.sort(key=lambda step: -step.density)
    freed = accumulate(step.freed for step in steps)
    spent = accumulate(step.time for step in steps)
    lost = next((time for size, time in zip(freed, spent, strict=True) if size >= missing), None)
    return LIMIT if lost is None else lost


def room(chain: Chain, cap: int, excess: int) -> NDArray[np.int64]:
    """The kernel's `room`: how high a span's peak may be, given what the layers below it hold.

    While a span runs, a layer below it either holds what its way to be kept leaves, and will lose
    the time that this way takes, or runs forward once more later. So within a given time the
    layers below free at most what the knapsack of them does.
    """
    import numpy as np

    length = len(chain)
    if excess >= LIMIT:
        return np.full((length, 2), LIMIT, np.int64)
    whole = np.empty(length, np.int64)
    steps: list[_Step] = []
    for i, layer in enumerate(chain.layers):
        held = _held(chain, i)
        whole[i] = held[0]
        least = min(layer.forward_time, layer.recompute_time)
        steps += _steps(i, _choices(layer, held, least, held[0]))
    steps.sort(key=lambda step: -step.density)
    of_layer, times, sizes = np.array(steps, np.int64).reshape(-1, 3).T
    allowed = (excess // ROOMS + 1) * np.arange(ROOMS + 1)
    result = np.empty((length, ROOMS + 1), np.int64)
    below = 0
    for s in range(length):
        mine = of_layer < s
        freed = np.concatenate([[0], np.cumsum(sizes[mine])])
        # Everything spent within the time, and one step more; and what rounded densities hide.
        spent = np.searchsorted(np.cumsum(times[mine]), allowed, side="right")
        count = np.minimum(spent + 1, len(freed) - 1)
        result[s] = cap - below + freed[count] + (int(freed[-1]) >> 50)
        below += int(whole[s])
    return result


def _held(chain: Chain, i: int) -> list[int]:
    """Bytes that each way to keep layer `i` holds, the whole saved set first.

    The input is counted where the layer before never holds it, and is no user's.
    """
    layer = chain.layers[i]
    read = 0
    if i and not any(way.output_saved for way in chain.layers[i - 1].ways):
        read = chain.input_of(i)
    return [
        way.saved_bytes + read * way.input_saved + layer.output_bytes * way.output_saved
        for way in layer.ways
    ]


def _choices(
    layer: Layer, held: list[int], again_time: int, dropped_bytes: int
) -> list[tuple[int, int]]:
    """Time lost and bytes freed, under each option and where the layer is dropped."""
    found = [
        (way.recompute_time, held[0] - size)
        for way, size in zip(layer.ways[1:], held[1:], strict=True)
    ]
    return [*found, (again_time, dropped_bytes)] if layer.recomputable else found


def _steps(layer: int, choices: Iterable[tuple[int, int]]) -> list[_Step]:
    """Steps along the upper convex hull of choices (time, bytes) and of none, densities falling."""
    hull = [(0, 0)]
    for time, freed in sorted(choices, key=lambda choice: (choice[0], -choice[1])):
        if freed <= hull[-1][1]:
            continue
        while len(hull) > 1:
            (t0, b0), (t1, b1) = hull[-2:]
            if (b1 - b0) * (time - t0) > (freed - b0) * (t1 - t0):
                break
            hull.pop()
        hull.append((time, freed))
    return [
        _Step(layer, after[0] - before[0], after[1] - before[1]) for before, after in pairwise(hull)
    ]
