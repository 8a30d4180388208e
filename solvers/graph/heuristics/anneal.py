"""Annealing of topological orders: the search of `order` on large graphs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from solvers.chain.exact.compiled import compiled
from solvers.graph.problem import ComputeGraph
from solvers.graph.schedule import Nodes

_CYCLES = 8
_CHUNK = 50_000  # moves between two questions whether to stop
_HOT, _COLD = 2.0, 0.02  # temperatures, in mean sizes of a node

Order = tuple[int, ...]
Ints = NDArray[np.int64]


def annealed(
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
    peak = graph.replay(Nodes(best)).peak_bytes
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


@compiled
def _shift(order: Ints, place: Ints, start: int, end: int) -> None:
    """Move the node at `start` to `end`; those between make room."""
    v = order[start]
    step = 1 if start < end else -1
    for k in range(start, end, step):
        order[k] = order[k + step]
        place[order[k]] = k
    order[end] = v
    place[v] = end


@compiled
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
