"""A chain as arrays: its costs, which of its spans are equal, and what tables of them take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from solvers.chain.problem import Chain
from solvers.problem import Layer, Way
from solvers.solution import Unsuitable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MEMORY_LIMIT = 2**30
"""Bytes that tables and sets may take before sets are thinned (sets twice as much as they grow)."""

LEAST_POINTS = 16
"""Smallest meaningful `max_points`."""

POINT_BYTES = 16
TABLE_BYTES = 40  # of each pair of layers: `same_spans`, and the kernel's table


def least_memory(length: int, sets: int) -> int:
    """Bytes without which nothing can be solved: the tables, and a few points a set."""
    return TABLE_BYTES * length**2 + POINT_BYTES * LEAST_POINTS * sets


def arrays(chain: Chain) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The chain as the kernel's arrays: costs, and ways to keep its layers."""
    import numpy as np

    from solvers.chain import kernel as k

    layers, last = chain.layers, len(chain) - 1
    costs = np.empty((k.ROWS, len(layers)), np.int64)
    ways = np.empty((k.WAYS, sum(map(len, chain.ways))), np.int64)
    count = 0
    for i, la in enumerate(layers):
        costs[k.FORWARD, i] = la.forward_time
        costs[k.ENDING, i] = la.recompute_time if i < last else la.forward_time
        costs[k.BACKWARD, i] = la.backward_time
        costs[k.OUTPUT, i] = la.output_bytes
        costs[k.INPUT, i] = chain.input_of(i)
        costs[k.DROP_TRANSIENT, i] = la.drop_transient_bytes
        costs[k.GRADIENT, i] = la.gradient_bytes
        costs[k.FIRST_MORE, i] = la.first_transient_bytes
        costs[k.AGAIN_MORE, i] = la.again_transient_bytes
        costs[k.BESIDE, i] = chain.beside[i]
        costs[k.INPUT_SAVED, i] = all(way.input_saved for way in chain.ways[i])
        costs[k.RECOMPUTABLE, i] = la.recomputable
        costs[k.FIRST_WAY, i] = count
        for way in chain.ways[i]:
            ways[k.SAVED, count] = way.saved_bytes
            ways[k.AGAIN, count] = way.recompute_time
            made = la.output_bytes + way.saved_bytes
            ways[k.AHEAD, count] = made + way.forward_transient_bytes
            ways[k.ENDS, count] = made + way.ending_transient_bytes
            ways[k.BEHIND, count] = _backward_bytes(la, way, chain.input_of(i))
            ways[k.HOLDS_INPUT, count] = way.input_saved
            ways[k.HOLDS_OUTPUT, count] = way.output_saved
            count += 1
        costs[k.LAST_WAY, i] = count - 1
    return costs, ways


def _backward_bytes(layer: Layer, way: Way, input_bytes: int) -> int:
    """Most bytes in the backward beside what other layers hold, without gradients of parameters."""
    outputs = 2 if layer.output_saved or way.output_saved else 1
    live = layer.saved_bytes + outputs * layer.output_bytes + input_bytes
    return live + way.backward_transient_bytes - way.backward_overlap_bytes


def check_memory(length: int, sets: int, limit: int) -> None:
    """Refuse, with `Unsuitable`, so many layers with so many sets at least beyond `limit`."""
    needs = least_memory(length, sets)
    if needs > limit:
        raise Unsuitable(
            f"the sets of the spans of {length:,} layers take at least {needs} bytes "
            f"({needs / 2**30:.2f} GiB), more than the memory_limit of {limit}; give at least that "
            "memory_limit, make fewer and larger layers of these, or ask for method 'uniform' or "
            "'greedy', which make no sets"
        )


def same_spans(chain: Chain) -> tuple[NDArray[np.int64], int]:
    """For each length n and start s, the first start whose span of n layers is equal.

    Equal spans have equal sets. The chain's last layer equals no other: only it is never in a
    body. Shape (L, L), row n - 1; -1 beyond the chain's end. And how many spans are distinct.
    """
    import numpy as np

    length = len(chain)
    seen: dict[object, int] = {}
    ids = np.empty(length, np.int64)
    for i, layer in enumerate(chain.layers):
        # The layer without its name, beside the size of what it reads.
        key = (chain.input_of(i), i == length - 1, *layer.facts)
        ids[i] = seen.setdefault(key, len(seen))
    same = np.full((length, length), -1, np.int64)
    current = np.zeros(length + 1, np.int64)
    distinct = 0
    for n in range(1, length + 1):
        keys = current[: length - n + 1] * (len(seen) + 1) + ids[n - 1 :]
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        current = first[inverse]
        same[n - 1, : len(current)] = current
        distinct += len(first)
    return same, distinct
