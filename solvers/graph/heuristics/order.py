"""Orders of a graph's nodes with a small peak: for graphs that are not training graphs.

Every node is computed once; only the order is free. Small graphs, and larger ones with few ways
through, are solved exactly; the others by simulated annealing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from solvers.graph.heuristics.anneal import annealed
from solvers.graph.problem import ComputeGraph
from solvers.graph.schedule import Nodes
from solvers.problem import InvalidProblem

__all__ = ["EXACT_NODES", "original_schedule", "reorder", "reordered"]

EXACT_NODES = 16
"""Up to so many nodes the order found is the best of all."""

_MOST_STEPS = EXACT_NODES * 2 ** (EXACT_NODES - 1)  # from a set to one with a node more
_MOST_BITS = 20_000_000  # of the sets that these steps lead to

Order = tuple[int, ...]


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
    peaks = [graph.replay(Nodes(order)).peak_bytes for order in starts]
    peak = min(peaks)
    best = starts[peaks.index(peak)]
    if peak <= goal or asked():
        return best
    proven, better = _exact(graph, goal, peak, asked)
    if proven:
        return better or best
    return annealed(graph, starts, best, goal, seed, rounds, asked)


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
