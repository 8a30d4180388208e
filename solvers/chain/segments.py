"""Single-level plans given as segments, evaluated with prefix sums.

A segment is a checkpoint whose body keeps everything; layers between segments are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from solvers.chain.problem import Chain
from solvers.schedule import Checkpoint, Item, Items, Keep
from solvers.solution import Infeasible, Solution

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.int64]
    Flags: TypeAlias = NDArray[np.bool_]

Segments: TypeAlias = "tuple[tuple[int, int], ...]"


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
    once
        Time of one forward and one backward of every layer.
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
    once: int


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
        once=chain.least_time,
    )


def _sums(values: Array) -> Array:
    """Prefix sums that start at zero: one longer than `values`."""
    import numpy as np

    total: Array = np.concatenate((np.zeros(1, np.int64), np.cumsum(values, dtype=np.int64)))
    return total


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
    time = t.once
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


def fastest(chain: Chain, candidates: list[Segments], budget: int) -> Solution[Items]:
    """The fastest of the plans of `candidates` that fits `budget`, ties to the smaller peak.

    Keep-all is one of them, always, and where the chain ends with a layer that must be kept, so
    is each candidate with its last segment kept: no other segment gains as little.

    Raises
    ------
    Infeasible
        None fits; carries the plan with the smallest peak.
    """
    t = tables(chain)
    shorter = [] if chain.layers[-1].recomputable else [s[:-1] for s in candidates]
    distinct = list(dict.fromkeys([*candidates, *shorter, ()]))
    costs = [evaluate(chain, t, segments) for segments in distinct]
    fitting = [(time, peak, n) for n, (peak, time) in enumerate(costs) if peak <= budget]
    best = min(fitting)[2] if fitting else min((*cost, n) for n, cost in enumerate(costs))[2]
    return best_fitting(chain, [plan_of(len(chain), distinct[best])], budget)


def best_fitting(chain: Chain, candidates: list[tuple[Item, ...]], budget: int) -> Solution[Items]:
    """The fastest of `candidates` whose replay fits `budget` bytes, ties to the smaller peak.

    Raises
    ------
    Infeasible
        None fits; carries the candidate with the smallest peak.
    """
    found = [Solution.of(chain, Items(items), chain.least_time) for items in candidates]
    fitting = [each for each in found if each.peak_bytes <= budget]
    if not fitting:
        smallest = min(found, key=lambda each: (each.peak_bytes, each.time))
        raise Infeasible.of(chain, smallest.schedule)
    return min(fitting, key=lambda each: (each.time, each.peak_bytes))


def kept_bytes(chain: Chain, i: int) -> int:
    """What keeping layer `i` holds: its saved set, with its output where that is saved."""
    layer = chain.layers[i]
    return layer.saved_bytes + (layer.output_bytes if layer.output_saved else 0)
