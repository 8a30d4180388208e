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
"""Bytes that tables and sets may take before sets are thinned."""

LEAST_POINTS = 16
"""Smallest meaningful `max_points`."""

POINT_BYTES = 16
SPAN_BYTES = 48  # of each span that has tables: `same_spans`, slack, and the kernel's table
LAYER_BYTES = 10_000  # of each layer: `bounds.Bounds`, and what is made of it


def least_memory(length: int, sets: int = 0) -> int:
    """Bytes without which no frontier can be made: the tables, and a few points a set."""
    return (LAYER_BYTES + SPAN_BYTES * length) * length + POINT_BYTES * LEAST_POINTS * sets


def arrays(chain: Chain) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The chain as the kernel's arrays: costs, and ways to keep its layers."""
    import numpy as np

    from solvers.chain.exact import kernel as k

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


def check_memory(length: int, needs: int, limit: int) -> None:
    """Refuse, with `Unsuitable`, a chain of so many layers that needs more bytes than the limit."""
    if needs > limit:
        raise Unsuitable(
            f"the sets of the spans of {length:,} layers take at least {needs} bytes "
            f"({needs / 2**30:.2f} GiB), more than the memory_limit of {limit}; give at least that "
            "memory_limit, make fewer and larger layers of these, or ask for method 'uniform' or "
            "'greedy', which make no sets"
        )


def same_spans(chain: Chain, width: int) -> NDArray[np.int64]:
    """For each length n up to `width` and start s, the first start whose span of n layers is equal.

    Equal spans have equal sets. Spans that end with the chain's last layer are left out: it is
    never in a body. Shape (width, L), row n - 1; -1 beyond the chain's end.
    """
    import numpy as np

    length = len(chain)
    seen: dict[object, int] = {}
    ids = np.empty(length, np.int64)
    for i, layer in enumerate(chain.layers):
        # The layer without its name, beside the size of what it reads.
        ids[i] = seen.setdefault((chain.input_of(i), *layer.facts), len(seen))
    same = np.full((width, length), -1, np.int64)
    current = np.zeros(length, np.int64)
    for n in range(1, min(width, length - 1) + 1):
        keys = current[: length - n] * (len(seen) + 1) + ids[n - 1 : -1]
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        current = first[inverse]
        same[n - 1, : len(current)] = current
    return same
