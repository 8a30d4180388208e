"""Orders of a graph's nodes with a small peak: for graphs that are not training graphs.

Every node is computed once; only the order is free. Small graphs, and larger ones with few ways
through, are solved exactly; the others by simulated annealing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from solvers.graph.problem import ComputeGraph
from solvers.graph.replay import replay_schedule
from solvers.problem import InvalidProblem

__all__ = ["EXACT_NODES", "original_schedule", "reorder", "reordered"]

EXACT_NODES = 16
"""Up to so many nodes the order found is the best of all."""

_MOST_STEPS = EXACT_NODES * 2 ** (EXACT_NODES - 1)  # from a set to one with a node more
_MOST_BITS = 20_000_000  # of the sets that these steps lead to
_CYCLES = 8
_CHUNK = 50_000  # moves between two questions whether to stop
_HOT, _COLD = 2.0, 0.02  # temperatures, in mean sizes of a node

Order = tuple[int, ...]
Ints = NDArray[np.int64]
_F = TypeVar("_F", bound=Callable[..., Any])


def reorder(
    graph: ComputeGraph,
    budget: int | None = None,
    *,
    seed: int = 0,
    rounds: int | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> Order:
    """Return a topological order whose peak, every node computed once, is small.

    It is never larger than that of the given order, and the least there is on graphs of up to
    `EXACT_NODES` nodes. The same arguments give the same order.

    Parameters
    ----------
    graph
        Its nodes stand in the order to begin with.
    budget
        Bytes at which a peak is small enough: the search ends there. None: the smaller the better.
    seed
        Of the annealing.
    rounds
        Moves of the annealing; default: two million, fewer beyond 1,000 nodes and edges, so that
        one core is done in some ten seconds.
    interrupted
        Asked now and then; once it says True the best order so far is returned.

    Raises
    ------
    ValueError
        `rounds` is negative.
    """
    if rounds is None:
        rounds = min(2_000_000, 2_000_000_000 // (len(graph) + len(graph.edges)))
    if rounds < 0:
        raise ValueError(f"rounds must not be negative, got {rounds}")
    goal = max(graph.floor[0], budget or 0)
    asked = interrupted or (lambda: False)
    starts = _starts(graph)
    peaks = [replay_schedule(graph, order).peak_bytes for order in starts]
    peak = min(peaks)
    best = starts[peaks.index(peak)]
    if peak <= goal or asked():
        return best
    proven, better = _exact(graph, goal, peak, asked)
    if proven:
        return better or best
    return _annealed(graph, starts, best, goal, seed, rounds, asked)


def reordered(graph: ComputeGraph, order: Sequence[int]) -> ComputeGraph:
    """Return `graph` with node `order[k]` at place k.

    Raises
    ------
    InvalidProblem
        `order` is not a topological order of the nodes.
    """
    place = {v: k for k, v in enumerate(order)}
    if len(order) != len(graph) or set(place) != set(range(len(graph))):
        raise InvalidProblem(f"an order of {len(graph)} nodes must name each of them once")
    return ComputeGraph(
        tuple(graph.nodes[v] for v in order),
        tuple((place[u], place[v]) for u, v in graph.edges),
    )


def original_schedule(order: Sequence[int], schedule: Sequence[int]) -> tuple[int, ...]:
    """Return a schedule of ``reordered(graph, order)`` as one of ``graph``."""
    return tuple(order[k] for k in schedule)


class _Frontier:
    """A set of nodes that are computed, one after the other: what is live, what can come next."""

    def __init__(self, graph: ComputeGraph) -> None:
        self.graph = graph
        self.size = [node.bytes for node in graph.nodes]
        self.missing = [len(row) for row in graph.inputs]  # inputs that are not computed yet
        self.readers = [len(row) for row in graph.consumers]  # consumers to come
        self.ready = {v for v, count in enumerate(self.missing) if count == 0}

    def change(self, v: int) -> int:
        """Bytes that stay live beyond those live before, once `v` is computed."""
        freed = sum(self.size[u] for u in self.graph.inputs[v] if self.readers[u] == 1)
        return (self.size[v] if self.readers[v] else 0) - freed

    def compute(self, v: int) -> list[int]:
        """Compute `v`; return what became ready."""
        self.ready.remove(v)
        for u in self.graph.inputs[v]:
            self.readers[u] -= 1
        opened = []
        for w in self.graph.consumers[v]:
            self.missing[w] -= 1
            if self.missing[w] == 0:
                opened.append(w)
        self.ready.update(opened)
        return opened


def _starts(graph: ComputeGraph) -> list[Order]:
    """The given order, the one of the least live memory next, and depth first."""
    greedy, frontier = [], _Frontier(graph)
    while frontier.ready:
        v = min(frontier.ready, key=lambda v: (frontier.change(v), frontier.size[v], v))
        frontier.compute(v)
        greedy.append(v)
    deep, frontier = [], _Frontier(graph)
    stack = sorted(frontier.ready, reverse=True)
    while stack:
        v = stack.pop()
        stack += sorted(frontier.compute(v), key=lambda w: (-frontier.size[w], -w))
        deep.append(v)
    return [tuple(range(len(graph))), tuple(greedy), tuple(deep)]


def _exact(
    graph: ComputeGraph, goal: int, peak: int, asked: Callable[[], bool]
) -> tuple[bool, Order | None]:
    """Search over the sets of computed nodes, those with the smallest peak so far first.

    What is live depends on the set alone. Returns whether the search came to its end, and the
    order of the least peak, or the first within `goal`; None: none has a peak below `peak`.
    """
    n = len(graph)
    inputs = [sum(1 << u for u in row) for row in graph.inputs]
    consumers = [sum(1 << w for w in row) for row in graph.consumers]
    size = [node.bytes for node in graph.nodes]
    came: dict[int, tuple[int, int]] = {}  # set -> peak on the best way there, last node
    ready = sum(1 << v for v in range(n) if not inputs[v])
    # The larger sets first among equals: the first complete one then ends the search.
    heap = [(goal, n, 0, 0, ready, -1)]
    steps, most = 0, min(_MOST_STEPS, _MOST_BITS // n)
    while heap:
        worst, missing, done, live, ready, last = heapq.heappop(heap)
        if done in came:
            continue
        came[done] = (worst, last)
        if missing == 0:
            return True, _way_back(came, done)
        rest = ready
        while rest:
            bit = rest & -rest
            rest ^= bit
            v = bit.bit_length() - 1
            during, after = live + size[v], done | bit
            if during >= peak or after in came:
                continue
            freed = sum(size[u] for u in graph.inputs[v] if not consumers[u] & ~after)
            left = during - freed - (0 if consumers[v] else size[v])
            opened = sum(1 << w for w in graph.consumers[v] if not inputs[w] & ~after)
            entry = (max(worst, during), missing - 1, after, left, ready ^ bit | opened, v)
            heapq.heappush(heap, entry)
            steps += 1
        if steps > most or asked():
            return False, None
    return True, None


def _way_back(came: dict[int, tuple[int, int]], done: int) -> Order:
    order = []
    while done:
        last = came[done][1]
        order.append(last)
        done ^= 1 << last
    return tuple(reversed(order))


def _annealed(
    graph: ComputeGraph,
    starts: list[Order],
    best: Order,
    goal: int,
    seed: int,
    rounds: int,
    asked: Callable[[], bool],
) -> Order:
    """Cool down several times, from each start in turn and then from the best order."""
    tables = _tables(graph)
    mean = max(1.0, sum(node.bytes for node in graph.nodes) / len(graph))
    record = np.array(best, dtype=np.int64)
    peak = replay_schedule(graph, best).peak_bytes
    each = rounds // _CYCLES + 1
    chunks = -(-each // _CHUNK)
    for cycle in range(_CYCLES):
        order = np.array(starts[cycle], np.int64) if cycle < len(starts) else record.copy()
        for chunk in range(chunks):
            if peak <= goal or asked():
                return tuple(record.tolist())
            heat = [mean * _HOT * (_COLD / _HOT) ** ((chunk + k) / chunks) for k in (0, 1)]
            draws = (seed * _CYCLES + cycle) * chunks + chunk
            moves = min(_CHUNK, each - chunk * _CHUNK)
            peak = _anneal(order, record, *tables, peak, goal, moves, heat[0], heat[1], draws)
    return tuple(record.tolist())


def _tables(graph: ComputeGraph) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Sizes, and inputs and consumers, each as the beginnings of the rows and the rows."""
    tables = [np.array([node.bytes for node in graph.nodes], dtype=np.int64)]
    for rows in (graph.inputs, graph.consumers):
        tables.append(np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64))
        tables.append(np.array([v for row in rows for v in row], dtype=np.int64))
    size, first_input, inputs, first_consumer, consumers = tables
    return size, first_input, inputs, first_consumer, consumers


def _compiled(function: _F) -> _F:
    compiled: Any
    try:
        compiled = numba.njit(cache=True)(function)
    except RuntimeError:  # nowhere to put a cache: compile in every process
        compiled = numba.njit(function)
    return cast(_F, compiled)


@_compiled
def _shift(order: Ints, place: Ints, start: int, end: int) -> None:
    """Move the node at `start` to `end`; those between make room."""
    v = order[start]
    step = 1 if start < end else -1
    for k in range(start, end, step):
        order[k] = order[k + step]
        place[order[k]] = k
    order[end] = v
    place[v] = end


@_compiled
def _anneal(
    order: Ints,
    record: Ints,
    size: Ints,
    first_input: Ints,
    inputs: Ints,
    first_consumer: Ints,
    consumers: Ints,
    peak: int,
    goal: int,
    moves: int,
    hot: float,
    cold: float,
    seed: int,
) -> int:
    """Anneal `order`; keep the best in `record`, of peak `peak`; return its new peak.

    What is made small is the sum, over the places, of the bytes at or above the best peak so far:
    the peak alone would tell nothing about most moves. A move takes one node to another place
    between its inputs and its consumers; only the memory at the places between changes.
    """
    np.random.seed(seed % 2**32)
    n = len(order)
    place = np.empty(n, np.int64)
    for k in range(n):
        place[order[k]] = k
    during, after = np.zeros(n, np.int64), np.zeros(n, np.int64)
    old_during, old_after = np.empty(n, np.int64), np.empty(n, np.int64)
    start = end = low = 0
    high = n - 1
    total = before = 0.0
    for move in range(-1, moves):  # the first only measures the order as it is
        if move >= 0:
            start = np.random.randint(n)
            v = order[start]
            low, high = 0, n - 1
            for a in range(first_input[v], first_input[v + 1]):
                low = max(low, place[inputs[a]] + 1)
            for a in range(first_consumer[v], first_consumer[v + 1]):
                high = min(high, place[consumers[a]] - 1)
            if low == high:
                continue
            end = np.random.randint(low, high)
            end += end >= start
            low, high = min(start, end), max(start, end)
            before = 0.0
            for k in range(low, high + 1):
                old_during[k], old_after[k] = during[k], after[k]
                before += max(0, during[k] - peak + 1)
            _shift(order, place, start, end)
        live = after[low - 1] if low else 0
        now = 0.0
        for k in range(low, high + 1):
            v = order[k]
            live += size[v]
            during[k] = live
            now += max(0, live - peak + 1)
            if first_consumer[v] == first_consumer[v + 1]:
                live -= size[v]
            for a in range(first_input[v], first_input[v + 1]):
                u = inputs[a]
                for b in range(first_consumer[u], first_consumer[u + 1]):
                    if place[consumers[b]] > k:
                        break
                else:
                    live -= size[u]
            after[k] = live
        worse = now - before
        if worse > 0 and move >= 0:
            heat = hot * (cold / hot) ** (move / moves)
            if np.random.random() >= np.exp(-worse / heat):
                _shift(order, place, end, start)
                during[low : high + 1] = old_during[low : high + 1]
                after[low : high + 1] = old_after[low : high + 1]
                continue
        total += worse
        if total < 0.5 and during.max() < peak:
            peak = during.max()
            record[:] = order
            if peak <= goal:
                break
            total = 0.0
            for k in range(n):
                total += max(0, during[k] - peak + 1)
    return peak
