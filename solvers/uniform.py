"""Segments of equal length: the √L rule, its relatives, and the two trivial plans.

The rule is Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016). The segment that
ends the chain is kept: recomputing what was just computed gains nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from solvers.problem import Chain
from solvers.schedule import Checkpoint, Item, Keep, keep_all
from solvers.solution import Solution, best_fitting

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.int64]
    Flags: TypeAlias = NDArray[np.bool_]

Segments: TypeAlias = "tuple[tuple[int, int], ...]"


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


@dataclass(frozen=True, slots=True)
class Tables:
    """A chain as arrays, with the sums that every single-level plan is made of.

    Attributes
    ----------
    read, made
        Bytes of each layer's input and output.
    saved, input_saved, output_saved
        The layers' fields.
    first, later
        Worst bytes of a keeping forward beyond the span's input: for the layer that starts a
        span, and (on top of `before`) for one within it.
    sweep
        Worst bytes of a forward that keeps nothing, its input included.
    backward
        Worst bytes of a backward beyond what layers before it hold, without parameter gradients.
    before
        Bytes that keep-all holds of the layers before each one (a prefix sum).
    after
        Parameter gradients of each layer and all after it (a suffix sum, one longer).
    forward
        Forward time of all layers before each one (a prefix sum, one longer).
    ends
        Time to recompute each layer where it ends a segment.
    """

    read: Array
    made: Array
    saved: Array
    input_saved: Flags
    output_saved: Flags
    first: Array
    later: Array
    sweep: Array
    backward: Array
    before: Array
    after: Array
    forward: Array
    ends: Array


def tables(chain: Chain) -> Tables:
    """The arrays of `chain`."""
    import numpy as np

    layers = chain.layers
    made = np.array([la.output_bytes for la in layers], dtype=np.int64)
    read = np.concatenate(([chain.input_bytes], made[:-1])).astype(np.int64)
    saved = np.array([la.saved_bytes for la in layers], dtype=np.int64)
    transient = np.array([la.forward_transient_bytes for la in layers], dtype=np.int64)
    drop = np.array([la.drop_transient_bytes for la in layers], dtype=np.int64)
    working = [la.backward_transient_bytes - la.backward_overlap_bytes for la in layers]
    out_held = np.array([la.output_saved for la in layers])
    in_held = np.array([la.input_saved for la in layers])
    # An activation between two kept layers stays when either of them saves it.
    between = np.where(out_held[:-1] | in_held[1:], made[:-1], 0)
    before = _sums(saved[:-1] + between)
    first = saved + made + transient
    later = first + read
    later[1:] -= between  # `before` counts it already
    gradients = np.array([la.gradient_bytes for la in layers], dtype=np.int64)
    return Tables(
        read=read,
        made=made,
        saved=saved,
        input_saved=in_held,
        output_saved=out_held,
        first=first,
        later=later,
        sweep=read + made + drop,
        backward=saved + np.where(out_held, made, 0) + made + read + np.array(working, np.int64),
        before=before,
        after=_sums(gradients[::-1])[::-1],
        forward=_sums(np.array([la.forward_time for la in layers], dtype=np.int64)),
        ends=np.array([la.recompute_time for la in layers], dtype=np.int64),
    )


def _sums(values: Array) -> Array:
    """Prefix sums that start at zero: one longer than `values`."""
    import numpy as np

    total: Array = np.concatenate((np.zeros(1, np.int64), np.cumsum(values, dtype=np.int64)))
    return total


def segment_peaks(t: Tables, start: int, stop: int) -> Array:
    """Peak of checkpointing `start` .. j for each j < `stop`, without what earlier layers hold.

    The larger of the sweep that drops, under the gradient of the chain's output, and of the
    body's forwards and backwards, under the gradient of the segment's output and the parameter
    gradients of all layers after it. The segment's own input is not counted.
    """
    import numpy as np

    span, rest = slice(start, stop), slice(start + 1, stop + 1)
    base = t.before[start]
    sweep = t.sweep[span].copy()
    sweep[0] -= t.read[start]
    forward = t.before[span] + t.later[span] - base
    forward[0] = t.first[start]
    backward = t.before[span] + t.backward[span] + t.after[span] - base
    highest = np.maximum.accumulate
    body = np.maximum(highest(forward) + t.made[span] + t.after[rest], highest(backward))
    peaks: Array = np.maximum(body, highest(sweep) + t.made[-1])
    return peaks


def runs(chain: Chain) -> Segments:
    """The maximal runs of recomputable layers, as (first, last)."""
    found: list[tuple[int, int]] = []
    for i, layer in enumerate(chain.layers):
        if not layer.recomputable:
            continue
        if found and found[-1][1] == i - 1:
            found[-1] = (found[-1][0], i)
        else:
            found.append((i, i))
    return tuple(found)


def plan_of(length: int, segments: Segments) -> tuple[Item, ...]:
    """The plan that checkpoints `segments`, each body keeping everything, and keeps the rest."""
    items: list[Item] = []
    at = 0
    for first, last in (*segments, (length, length)):
        items.extend(Keep(i) for i in range(at, first))
        if first < length:
            body = tuple(Keep(i) for i in range(first, last + 1))
            items.append(Checkpoint(first, last, body))
        at = last + 1
    return tuple(items)


def evaluate(chain: Chain, t: Tables, segments: Segments) -> tuple[int, int]:
    """Peak and time of `plan_of(len(chain), segments)`: its replay, in a few array operations."""
    import numpy as np

    n = len(chain)
    kept, starts = np.ones(n, np.bool_), np.ones(n, np.bool_)
    for first, last in segments:
        kept[first : last + 1] = False
        starts[first + 1 : last + 1] = False
    # Activations held from the forward to the backward of what follows them.
    holds = (kept & t.output_saved)[:-1] | (kept & t.input_saved)[1:] | (starts & ~kept)[1:]
    between = np.where(holds, t.made[:-1], 0)
    held = _sums(np.where(kept[:-1], t.saved[:-1], 0) + between)
    swept = t.read.copy()  # the sweep's hold on a layer's input, where nobody else holds it
    swept[0] = 0
    swept[1:] -= between
    forward = held + swept + t.first + t.made[-1]
    backward = held + t.backward + t.after[:-1]
    peak = max(int(forward[kept].max(initial=0)), int(backward[kept].max(initial=0)))
    time = sum(layer.forward_time + layer.backward_time for layer in chain.layers)
    if segments:
        at = np.flatnonzero(starts)
        lasts = np.append(at[1:], n) - 1
        inner, sweep = t.before + t.later, t.sweep.copy()
        inner[at] = t.before[at] + t.first[at]
        sweep[at] -= t.read[at]
        highest = np.maximum.reduceat
        body = np.maximum(
            highest(inner, at) + t.made[lasts] + t.after[lasts + 1],
            highest(t.before + t.backward + t.after[:-1], at),
        )
        segment = np.maximum(body - t.before[at], highest(sweep, at) + t.made[-1]) + held[at]
        again = t.forward[lasts] - t.forward[at] + t.ends[lasts]
        peak = max(peak, int(segment[~kept[at]].max()))
        time += int(again[~kept[at]].sum())
    return peak + chain.input_bytes, time


def fastest(chain: Chain, candidates: list[Segments], budget: int) -> Solution:
    """The fastest of the plans of `candidates` that fits `budget`, ties to the smaller peak.

    Raises
    ------
    Infeasible
        None fits; carries the plan with the smallest peak.
    """
    t = tables(chain)
    distinct = list(dict.fromkeys(candidates))
    costs = [evaluate(chain, t, segments) for segments in distinct]
    fitting = [(time, peak, n) for n, (peak, time) in enumerate(costs) if peak <= budget]
    best = min(fitting)[2] if fitting else min((*cost, n) for n, cost in enumerate(costs))[2]
    return best_fitting(chain, [plan_of(len(chain), distinct[best])], budget)


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


def solve(chain: Chain, budget: int) -> Solution:
    """The fastest uniform plan that fits `budget`, over every segment length k.

    Raises
    ------
    Infeasible
        None fits; carries the uniform plan with the smallest peak.
    """
    longest = max((last - first + 1 for first, last in runs(chain)), default=1)
    return fastest(chain, [uniform_segments(chain, k) for k in range(1, longest + 1)], budget)


def solve_sqrt(chain: Chain, budget: int) -> Solution:
    """The classic closed form alone: k = √L, rounded, over the L recomputable layers.

    Raises
    ------
    Infeasible
        That plan does not fit; carries it.
    """
    layers = sum(layer.recomputable for layer in chain.layers)
    k = max(1, round(sqrt_rule(layers)))
    return best_fitting(chain, [uniform_plan(chain, k)], budget)


def solve_ratio(chain: Chain, budget: int) -> Solution:
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


def kept_bytes(chain: Chain, i: int) -> int:
    """What keeping layer `i` holds: its saved set, with its output where that is saved."""
    layer = chain.layers[i]
    return layer.saved_bytes + (layer.output_bytes if layer.output_saved else 0)


def solve_keep_all(chain: Chain, budget: int) -> Solution:
    """The plan that recomputes nothing.

    Raises
    ------
    Infeasible
        It does not fit; carries it.
    """
    return best_fitting(chain, [keep_all(len(chain))], budget)


def solve_every_layer(chain: Chain, budget: int) -> Solution:
    """A checkpoint around each recomputable layer but the chain's last.

    Raises
    ------
    Infeasible
        That plan does not fit; carries it.
    """
    return best_fitting(chain, [uniform_plan(chain, 1)], budget)
