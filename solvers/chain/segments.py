"""Single-level plans given as segments, evaluated with prefix sums.

A segment is a checkpoint whose body keeps everything; layers between segments are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from solvers.chain.problem import Chain
from solvers.schedule import Checkpoint, Item, Items, Keep
from solvers.solution import Infeasible, Solution

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.int64]

Segments: TypeAlias = "tuple[tuple[int, int], ...]"


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
        Worst bytes of a first forward that keeps nothing, its input included.
    at_first, again
        Working memory on top in a layer's first forward, in one that runs again.
    ending
        By how much a forward needs more, or less, that keeps and ends a segment.
    backward
        Worst bytes of a backward beyond what layers before it hold, without parameter gradients.
    beside, group
        `Chain.beside`, and which of the layers that must be kept, or the first, made it.
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

    def __init__(self, chain: Chain) -> None:
        import numpy as np

        def column(field: str) -> Array:
            return np.array([getattr(layer, field) for layer in chain.layers], dtype=np.int64)

        self.made = column("output_bytes")
        self.read = np.concatenate(([chain.input_bytes], self.made[:-1])).astype(np.int64)
        self.saved = column("saved_bytes")
        self.input_saved = column("input_saved").astype(np.bool_)
        self.output_saved = column("output_saved").astype(np.bool_)
        # An activation between two kept layers stays when either of them saves it.
        stays = self.output_saved[:-1] | self.input_saved[1:]
        between = np.where(stays, self.made[:-1], 0)
        self.before = _sums(self.saved[:-1] + between)
        self.first = self.saved + self.made + column("forward_transient_bytes")
        self.later = self.first + self.read
        self.later[1:] -= between  # `before` counts it already
        self.at_first = column("first_transient_bytes")
        self.again = column("again_transient_bytes")
        whole = [ways[0] for ways in chain.ways]
        self.ending = np.array(
            [way.ending_transient_bytes - way.forward_transient_bytes for way in whole]
        )
        self.sweep = self.read + self.made + column("drop_transient_bytes") + self.at_first
        held = self.saved + np.where(self.output_saved, self.made, 0) + self.made + self.read
        working = column("backward_transient_bytes") - column("backward_overlap_bytes")
        self.backward = held + working
        self.after = _sums(column("gradient_bytes")[::-1])[::-1]
        self.forward = _sums(column("forward_time"))
        self.ends = column("recompute_time")
        self.once = chain.least_time
        self.beside = np.array(chain.beside, dtype=np.int64)
        self.group = np.cumsum(~column("recomputable").astype(np.bool_))


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
    beside, free = _beside(t, starts & ~kept)
    held += beside
    forward = held + free + swept + t.first + t.at_first + t.made[-1]
    backward = held + t.backward + t.after[:-1]
    peak = max(int(forward[kept].max(initial=0)), int(backward[kept].max(initial=0)))
    time = t.once
    if segments:
        at = np.flatnonzero(starts)
        lasts = np.append(at[1:], n) - 1
        again, sweep = t.again.copy(), t.sweep.copy()
        again[lasts] = t.ending[lasts]
        inner = t.before + again + t.later
        inner[at] = t.before[at] + again[at] + t.first[at]
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


def _beside(t: Tables, again: NDArray[np.bool_]) -> tuple[Array, Array]:
    """What is there beside inputs at each layer, of which `again` start again.

    What those up to it hold; and what nobody holds yet while it runs forward.
    """
    import numpy as np

    at = np.flatnonzero(again)
    groups, first = np.unique(t.group[at], return_index=True)
    holders = np.full(t.group[-1] + 1, len(t.group))
    holders[groups] = at[first]
    held = np.zeros_like(t.beside)
    held[at[first]] = t.beside[at[first]]
    return np.cumsum(held), np.where(np.arange(len(t.group)) < holders[t.group], t.beside, 0)


def fastest(chain: Chain, candidates: list[Segments], budget: int) -> Solution[Items]:
    """What `best_fitting` gives of the plans of `candidates`, in far less time.

    Keep-all is one of them, always, and where the chain ends with a layer that must be kept, so
    is each candidate with its last segment kept: no other segment gains as little.
    """
    t = Tables(chain)
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
