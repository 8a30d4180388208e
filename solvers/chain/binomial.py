"""Griewank and Walther's closed form: the nested optimum for identical layers.

"Algorithm 799: revolve" (2000). With c snapshots, the chain's input among them, and no advance
run more than r times, at most C(c+r, c) layers can be reversed. So a chain of L layers needs the
least r that reaches L, and its fewest forwards beyond the one of each layer that is taped are
r·L - C(c+r, c+1).
"""

from __future__ import annotations

from dataclasses import fields
from math import comb

from solvers.chain.problem import Chain
from solvers.chain.segments import best_fitting
from solvers.problem import OF_FORWARDS, Layer
from solvers.schedule import Checkpoint, Item, Items, Keep
from solvers.solution import Solution, Unsuitable


def advances(steps: int, snapshots: int) -> int:
    """Fewest forwards that keep nothing, to reverse `steps` layers with `snapshots` stored.

    Both at least 1: of the activations stored at once the input is one.
    """
    if steps < 1 or snapshots < 1:
        raise ValueError(f"steps and snapshots must be at least 1, got {steps} and {snapshots}")
    repeats = _repeats(steps, snapshots)
    return repeats * steps - comb(snapshots + repeats, snapshots + 1)


def _repeats(steps: int, snapshots: int) -> int:
    """The least r with C(c+r, c) ≥ L."""
    repeats, reach = 0, 1
    while reach < steps:
        repeats += 1
        reach = reach * (snapshots + repeats) // repeats
    return repeats


def _split(steps: int, snapshots: int) -> int:
    """Layers from the input to the first snapshot: the fewest that is optimal.

    With B(c, r) = C(c+r, c), p layers below the snapshot and L - p above it are optimal when
    B(c, r-2) ≤ p ≤ B(c, r-1) and B(c-1, r-1) ≤ L - p ≤ B(c-1, r): both parts then need just the
    repeats they are left with. The largest L - p keeps the segments that are recomputed short.
    """
    if snapshots == 1:
        return steps - 1
    repeats = _repeats(steps, snapshots)
    below = comb(snapshots + repeats - 2, snapshots) if repeats >= 2 else 0
    return max(1, below, steps - comb(snapshots - 1 + repeats, snapshots - 1))


def plan(length: int, snapshots: int) -> tuple[Item, ...]:
    """The optimal nested plan of `length` layers: bodies nest until one layer is kept.

    Its forwards number ``length + advances(length, snapshots)``.
    """
    advances(length, snapshots)  # refuses what has no meaning
    # A plan nests as deep as the chain is long when there is one snapshot: a stack, not recursion.
    done: list[list[Item]] = [[]]
    todo: list[tuple[str, int, int, int]] = [("span", 0, length, snapshots)]
    while todo:
        what, first, count, left = todo.pop()
        if what == "close":
            body = tuple(done.pop())
            done[-1].append(Checkpoint(first, first + count - 1, body))
        elif count == 1:
            done[-1].append(Keep(first))
        else:
            below = _split(count, left)
            above = ("span", first + below, count - below, max(1, left - 1))
            todo += [above, ("close", first, below, 0), ("span", first, below, left)]
            done.append([])
    return tuple(done.pop())


def _peak(layer: Layer, length: int, snapshots: int, known: dict[tuple[int, int], int]) -> int:
    """Peak of `plan(length, snapshots)`, without a replay of its many forwards.

    It is that of the span with its input held by somebody else and not counted; every sub-plan
    is the same wherever it stands, so `known` needs one entry per length and snapshots.
    """
    x, single, last = layer.output_bytes, _single_peak(layer), _last_peak(layer)
    todo = [(length, snapshots)]
    while todo:
        count, left = todo[-1]
        if (count, left) in known:
            todo.pop()
            continue
        if count == 1:
            known[count, left] = single
            continue
        below = _split(count, left)
        parts = ((below, left), (count - below, max(1, left - 1)))
        missing = [part for part in parts if part not in known]
        if missing:
            todo += missing
            continue
        low, high = (known[part] for part in parts)
        # The input of the upper part is counted: a snapshot, or what the last layer holds.
        high = high + x if count - below > 1 else last
        sweep = x + x + layer.drop_transient_bytes + (x if below > 1 else 0)
        known[count, left] = max(high, low + (count - below) * layer.gradient_bytes, sweep)
    return known[length, snapshots]


def _forward_peak(layer: Layer) -> int:
    return 2 * layer.output_bytes + layer.saved_bytes + layer.forward_transient_bytes


def _single_peak(layer: Layer) -> int:
    """Peak of one kept layer, its input not counted."""
    held = layer.saved_bytes + layer.output_bytes * (2 if layer.output_saved else 1)
    working = layer.backward_transient_bytes - layer.backward_overlap_bytes
    backward = held + layer.output_bytes + layer.gradient_bytes + working
    return max(_forward_peak(layer), backward)


def _last_peak(layer: Layer) -> int:
    """Peak of the kept layer that ends a span, its input counted for as long as it is held."""
    single = _single_peak(layer)
    if layer.input_saved:
        return single + layer.output_bytes
    return max(_forward_peak(layer) + layer.output_bytes, single)


def _check_identical(chain: Chain) -> None:
    """Raise `Unsuitable`, naming the first layer that differs and in what."""
    first = chain.layers[0]
    for layer in chain.layers:
        for field in fields(Layer):
            value, wanted = getattr(layer, field.name), getattr(first, field.name)
            if field.name != "name" and value != wanted:
                raise Unsuitable(
                    f"the binomial method needs identical layers: layer {layer.name!r} differs "
                    f"from layer {first.name!r} in {field.name} ({value} instead of {wanted})"
                )
    given = [field for field in OF_FORWARDS if getattr(first, field)]
    if first.ways[0].ending_transient_bytes != first.forward_transient_bytes:
        given.append("ending_transient_bytes")
    if given:
        raise Unsuitable(
            "the binomial method knows one kind of forward: layer "
            f"{first.name!r} has {given[0]}, for which some need more than others"
        )
    if not first.recomputable:
        raise Unsuitable(
            "the binomial method recomputes every layer: layer "
            f"{first.name!r} differs in recomputable (it must be kept)"
        )
    if chain.input_bytes != first.output_bytes:
        raise Unsuitable(
            "the binomial method needs an input of the size of every output: layer "
            f"{first.name!r} reads input_bytes {chain.input_bytes} and makes output_bytes "
            f"{first.output_bytes}"
        )


def solve(chain: Chain, budget: int) -> Solution[Items]:
    """The fastest binomial plan that fits `budget`, over every number of snapshots.

    Raises
    ------
    Unsuitable
        The layers are not identical, or one must not be recomputed.
    Infeasible
        None fits; carries the binomial plan with the smallest peak.
    """
    _check_identical(chain)
    layer, length = chain.layers[0], len(chain)
    known: dict[tuple[int, int], int] = {}

    def peak(snapshots: int) -> int:
        return chain.input_bytes + _peak(layer, length, snapshots, known)

    # Time falls with the number of snapshots; the peak mostly grows, but is known to be no less
    # than at the last layer's backward, when all are stored: few plans need to be looked at.
    last = chain.input_bytes + (_last_peak(layer) if length > 1 else _single_peak(layer))
    stored = {c: last + (c - 1) * layer.output_bytes for c in range(1, max(2, length))}
    extra = {c: layer.forward_time * advances(length, c) for c in stored}
    fitting: list[tuple[int, int, int]] = []
    for c in reversed(stored):
        if fitting and extra[c] > fitting[0][0]:
            break
        if stored[c] <= budget and (found := peak(c)) <= budget:
            fitting.append((extra[c], found, c))
    if fitting:
        best = min(fitting)[2]
    else:
        smallest = (peak(1), extra[1], 1)
        for c in stored:
            if stored[c] > smallest[0]:
                break
            smallest = min(smallest, (peak(c), extra[c], c))
        best = smallest[2]
    return best_fitting(chain, [plan(length, best)], budget)
