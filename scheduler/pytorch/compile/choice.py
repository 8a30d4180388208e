"""What a compiled training step keeps for its backward: the choice, and what it costs.

`torch.compile` splits one joint graph into a forward and a backward. Every forward operation that
the backward needs is either kept, its outputs live from the forward to their last use, or runs
once more, right before the first backward operation that needs it. Nothing runs three times and
nothing is dropped and fetched again: that is all that torch's partitioner can express, and the
class in which an optimum is meant here. `play` is the definition of the peak and the time of a
choice, operation by operation in the order in which torch runs both graphs
(`torch._functorch.partitioners.reordering_to_mimic_autograd_engine`). No torch in here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

__all__ = ["Answer", "JointOperation", "StepChoice", "StepGraph", "front", "ladder", "play"]

_WIDTH = 24  # operations that one step of the descent tries
_WORK = 2_000_000  # operations that all of its plays run


@dataclass(frozen=True)
class JointOperation:
    """One operation of the joint graph that touches memory; views are folded into who reads them.

    Attributes
    ----------
    name
        Of the node.
    time
        In femtoseconds, at least 1.
    reads, makes
        Buffers, by index, ascending.
    fixed
        "keep": it must not run twice. "again": it is never kept, or it is no part of the forward.
        None: free.
    forward
        Is it a part of the forward graph?
    """

    name: str
    time: int
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    fixed: Literal["keep", "again"] | None = None
    forward: bool = True


@dataclass(frozen=True)
class StepGraph:
    """The joint graph of a forward and a backward.

    Attributes
    ----------
    early
        What stands before the first backward operation, in order: these may run again.
    late
        The backward operations, in order: each runs once.
    sizes
        Bytes of each buffer; 0 for what is counted in `held` or not at all (parameters).
    outputs
        Buffers that the forward returns to its caller.
    gradients
        Buffers that the backward returns.
    held
        Bytes that are there all the time: the inputs.
    held_backward
        Bytes that are there from the end of the forward on besides: gradients of the outputs.
    outputs_held
        Does the caller hold the outputs during the backward?
    """

    early: tuple[JointOperation, ...]
    late: tuple[JointOperation, ...]
    sizes: tuple[int, ...]
    outputs: frozenset[int]
    gradients: frozenset[int]
    held: int = 0
    held_backward: int = 0
    outputs_held: bool = True

    @cached_property
    def maker(self) -> dict[int, int]:
        """The early operation that makes a buffer."""
        return {buffer: i for i, op in enumerate(self.early) for buffer in op.makes}

    @cached_property
    def must_keep(self) -> frozenset[int]:
        """Early operations that are kept where they are needed."""
        return frozenset(i for i, op in enumerate(self.early) if op.fixed == "keep")

    @cached_property
    def free(self) -> tuple[int, ...]:
        """Early operations that are a choice, ascending."""
        return tuple(i for i, op in enumerate(self.early) if op.fixed is None and op.makes)

    @cached_property
    def forward_time(self) -> int:
        """Femtoseconds of the forward."""
        return sum(op.time for op in self.early if op.forward)


@dataclass(frozen=True)
class StepChoice:
    """A choice, played.

    Attributes
    ----------
    kept
        Early operations whose outputs live on, ascending; only such as the backward reads.
    again
        Early operations of the forward that run again in the backward, in the order they do.
    peak_bytes
        Most bytes live at once, forward and backward.
    again_time
        Femtoseconds of what runs again.
    set_by
        What runs at the peak, as part of a sentence.
    """

    kept: tuple[int, ...]
    again: tuple[int, ...]
    peak_bytes: int
    again_time: int
    set_by: str


@dataclass(frozen=True)
class Answer:
    """What was chosen, and what is known of it.

    Attributes
    ----------
    choice
        It fits the budget.
    proven
        No choice within the budget runs less again.
    least_time
        Femtoseconds that every choice within the budget runs again, proven; `choice.again_time`
        where that is proven the best.
    """

    choice: StepChoice
    proven: bool
    least_time: int


def play(graph: StepGraph, keep: Iterable[int]) -> StepChoice:
    """Run both graphs with the early operations `keep` kept, and count.

    What must be kept and is not in `keep` is added; what is in `keep` and never read is left out.
    """
    keeping = (frozenset(keep) | graph.must_keep) - {
        i for i, op in enumerate(graph.early) if op.fixed == "again"
    }
    backward = list(_backward(graph, keeping))
    read = {buffer for op, _ in backward for buffer in op.reads} | graph.gradients
    kept = tuple(sorted(i for i in keeping if read.intersection(graph.early[i].makes)))
    again = tuple(i for op, i in backward if i >= 0 and op.forward)
    forward = [op for op in graph.early if op.forward]
    order = [*forward, *(op for op, _ in backward)]
    border = len(forward)
    last: dict[tuple[int, bool], int] = {}  # of a buffer as made in the forward, or in the backward
    held = {buffer for i in kept for buffer in graph.early[i].makes if buffer in read}
    for at, op in enumerate(order):
        for buffer in (*op.reads, *op.makes):
            last[buffer, at >= border and buffer not in held] = at
    for buffer in graph.outputs:
        end = len(order) if graph.outputs_held else border - 1
        last[buffer, False] = max(last.get((buffer, False), 0), end)
    for buffer in graph.gradients:
        last[buffer, buffer not in held] = len(order)
    frees: dict[int, int] = {}
    for (buffer, _), at in last.items():
        frees[at] = frees.get(at, 0) + graph.sizes[buffer]
    live, peak, worst = graph.held, graph.held, -1
    for at, op in enumerate(order):
        if at == border:
            live += graph.held_backward
        live += sum(graph.sizes[buffer] for buffer in op.makes)
        if live > peak:
            peak, worst = live, at
        live -= frees.get(at, 0)
    return StepChoice(
        kept,
        again,
        peak,
        sum(graph.early[i].time for i in again),
        _place(order, border, worst, backward),
    )


def _place(
    order: Sequence[JointOperation],
    border: int,
    at: int,
    backward: Sequence[tuple[JointOperation, int]],
) -> str:
    if at < 0:
        return "the inputs"
    if at < border:
        return f"{order[at].name!r} of the forward"
    kind = "recomputed" if backward[at - border][1] >= 0 else "computed"
    return f"{order[at].name!r}, {kind} in the backward"


def _backward(graph: StepGraph, keeping: frozenset[int]) -> Iterator[tuple[JointOperation, int]]:
    """The backward graph in its order: operations, with the index of an early one, else -1."""
    done = set(keeping)
    for op in graph.late:
        missing: set[int] = set()
        stack = list(op.reads)
        while stack:
            i = graph.maker.get(stack.pop(), -1)
            if i >= 0 and i not in done and i not in missing:
                missing.add(i)
                stack.extend(graph.early[i].reads)
        for i in sorted(missing):
            done.add(i)
            yield graph.early[i], i
        yield op, -1


def ladder(graph: StepGraph, steps: int = 24) -> list[StepChoice]:
    """Choices from keep-all to keep-as-little-as-possible, by peak; more peak means less time.

    They do not depend on a budget, so that the quickest of those that fit one never gets slower
    as the budget grows. Operations are let go in a few plain orders: by time for a byte, by size,
    from the first on, from the last on, and all but every second, fourth, ... one; and one at a
    time, each the cheapest for what the peak loses.
    """
    sizes = {i: sum(graph.sizes[b] for b in graph.early[i].makes) for i in graph.free}
    orders = [
        sorted(graph.free, key=lambda i: (graph.early[i].time / max(sizes[i], 1), i)),
        sorted(graph.free, key=lambda i: (-sizes[i], i)),
        list(graph.free),
        list(reversed(graph.free)),
    ]
    needed = [i for i in orders[0] if sizes[i]]
    orders += [
        sorted(needed, key=lambda i: (graph.free.index(i) % (len(needed) // k) == 0, i))
        for k in (2, 4, 8, 16)
        if len(needed) >= 2 * k
    ]
    found: dict[tuple[int, ...], StepChoice] = {}
    for order in orders:
        for k in range(steps + 1):
            choice = play(graph, order[len(order) * k // steps :])
            found[choice.kept] = choice
    for choice in _descent(graph, sizes):
        found[choice.kept] = choice
    return front(found.values())


def front(choices: Iterable[StepChoice]) -> list[StepChoice]:
    """Those that no other one equals or beats in peak and in time, by peak."""
    best: list[StepChoice] = []
    for choice in sorted(choices, key=lambda c: (c.peak_bytes, c.again_time, c.kept)):
        if not best or choice.again_time < best[-1].again_time:
            best.append(choice)
    return best


def _descent(graph: StepGraph, sizes: dict[int, int]) -> Iterator[StepChoice]:
    """From keep-all down, the operation that costs the least for a byte of peak; some come back."""
    plays = _WORK // (2 * len(graph.early) + len(graph.late))
    returns = dict.fromkeys(graph.free, 2)
    now = play(graph, graph.free)
    while plays > 0:
        yield now
        kept = [i for i in now.kept if sizes.get(i)]
        kept.sort(key=lambda i: (graph.early[i].time / sizes[i], i))
        best: tuple[tuple[bool, float], StepChoice] | None = None
        for i in kept[:_WIDTH]:
            choice = play(graph, set(now.kept) - {i})
            gain = now.peak_bytes - choice.peak_bytes
            cost = choice.again_time - now.again_time
            key = (gain <= 0, cost / (gain if gain > 0 else sizes[i]))
            if best is None or key < best[0]:
                best = key, choice
        plays -= len(kept[:_WIDTH])
        if best is None:
            return
        now = best[1]
        slow = sorted(now.again, key=lambda i: (-graph.early[i].time, i))
        for i in [i for i in slow if returns.get(i)][:_WIDTH]:
            plays -= 1
            choice = play(graph, {*now.kept, i})
            if choice.peak_bytes <= now.peak_bytes and choice.again_time < now.again_time:
                returns[i] -= 1
                now = choice
