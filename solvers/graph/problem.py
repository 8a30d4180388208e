"""Problems on general graphs: compute graphs, and layer graphs.

In both the nodes stand in a topological order: every edge goes from a lower to a higher index.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from solvers.problem import LIMIT, Chain, InvalidProblem, Layer, check_quantity

__all__ = ["ComputeGraph", "LayerGraph", "Node"]

Edges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One operation of a compute graph.

    Attributes
    ----------
    name
        What a schedule calls it.
    time
        In one integer unit.
    bytes
        Size of its output.
    backward
        Does it belong to the backward part? Class "forward" never computes such a node twice.
    """

    name: str
    time: int
    bytes: int
    backward: bool = False


@dataclass(frozen=True)
class ComputeGraph:
    """Operations with one output each; any output may be dropped and computed again.

    Attributes
    ----------
    nodes
        At least one, in a topological order.
    edges
        Pairs (u, v): v reads the output of u; u < v.

    Raises
    ------
    InvalidProblem
        There is no node, a cost is negative or no integer, sums would overflow, or an edge leads
        nowhere, backward, or twice the same way.
    """

    nodes: tuple[Node, ...]
    edges: Edges = ()

    def __post_init__(self) -> None:
        if not self.nodes:
            raise InvalidProblem("a graph needs at least one node")
        for node in self.nodes:
            for field in ("time", "bytes"):
                check_quantity(f"node {node.name!r}", field, getattr(node, field))
        _check_edges(self.edges, len(self.nodes))
        # A staged schedule computes a node at most once in each of its stages.
        _check_sum("times", (len(self.nodes) + 1) * sum(node.time for node in self.nodes))
        _check_sum("sizes", sum(node.bytes for node in self.nodes))

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """For each node the nodes it reads, ascending."""
        return _neighbours(((v, u) for u, v in self.edges), len(self.nodes))

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """For each node the nodes that read it, ascending."""
        return _neighbours(self.edges, len(self.nodes))

    @cached_property
    def floor(self) -> tuple[int, int]:
        """Bytes that any schedule needs, and the node that needs them: max_v(m_v + Σ inputs)."""
        needs = [
            node.bytes + sum(self.nodes[u].bytes for u in self.inputs[v])
            for v, node in enumerate(self.nodes)
        ]
        worst = max(range(len(needs)), key=needs.__getitem__)
        return needs[worst], worst


@dataclass(frozen=True)
class LayerGraph:
    """Layers with costs and edges; the lowering to operations is `solvers.graph.lowering`.

    Attributes
    ----------
    layers
        At least one, in a topological order. Their options and ``recompute_time`` belong to
        chains: every forward costs ``forward_time`` here.
    edges
        Pairs (u, v): layer v reads the output of layer u; u < v.
    input_bytes
        Size of the graph's input, which its user holds throughout and which every layer without
        an incoming edge reads.

    Raises
    ------
    InvalidProblem
        A cost has no meaning, or an edge leads nowhere, backward, or twice the same way.
    """

    layers: tuple[Layer, ...]
    edges: Edges = ()
    input_bytes: int = 0

    def __post_init__(self) -> None:
        if not self.layers:
            raise InvalidProblem("a graph needs at least one layer")
        check_quantity("the graph", "input_bytes", self.input_bytes)
        _check_edges(self.edges, len(self.layers))
        for i, layer in enumerate(self.layers):
            Chain((_without_overlap(layer),), self.input_bytes)  # the same checks of one layer
            if layer.options:
                raise InvalidProblem(
                    f"layer {layer.name!r} has options, which a graph with edges cannot use; "
                    "remove them"
                )
            self._check_overlap(i)
        _check_sum("times", 2 * (len(self.layers) + 1) * sum(_times(la) for la in self.layers))
        _check_sum("sizes", self.input_bytes + sum(self._sizes(i) for i in range(len(self))))

    def __len__(self) -> int:
        return len(self.layers)

    @cached_property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """For each layer the layers it reads, ascending; empty: it reads the graph's input."""
        return _neighbours(((v, u) for u, v in self.edges), len(self.layers))

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """For each layer the layers that read it, ascending."""
        return _neighbours(self.edges, len(self.layers))

    def input_bytes_of(self, i: int) -> int:
        """Bytes of everything that layer `i` reads."""
        if not self.inputs[i]:
            return self.input_bytes
        return sum(self.layers[u].output_bytes for u in self.inputs[i])

    def _check_overlap(self, i: int) -> None:
        # The backward's peak is at least what is live before it and what is live after it.
        layer = self.layers[i]
        held = layer.saved_bytes + layer.output_bytes * (2 if layer.output_saved else 1)
        made = self.input_bytes_of(i) + layer.gradient_bytes
        most = min(held, made) + layer.backward_transient_bytes
        if layer.backward_overlap_bytes > most:
            raise InvalidProblem(
                f"layer {layer.name!r}: backward_overlap_bytes {layer.backward_overlap_bytes} is "
                f"more than the {most} bytes that can overlap in its backward"
            )

    def _sizes(self, i: int) -> int:
        layer = self.layers[i]
        return (
            3 * layer.output_bytes
            + self.input_bytes_of(i)
            + layer.saved_bytes
            + layer.forward_transient_bytes
            + layer.drop_transient_bytes
            + layer.backward_transient_bytes
            + layer.gradient_bytes
        )


def _times(layer: Layer) -> int:
    return layer.forward_time + layer.backward_time


def _without_overlap(layer: Layer) -> Layer:
    return replace(layer, backward_overlap_bytes=0, options=())


def _check_sum(what: str, total: int) -> None:
    if total >= LIMIT:
        raise InvalidProblem(f"the {what} add up to {total}, beyond 2**62; use a larger unit")


def _check_edges(edges: Edges, n: int) -> None:
    seen: set[tuple[int, int]] = set()
    for u, v in edges:
        if not (0 <= u < n and 0 <= v < n):
            raise InvalidProblem(f"edge {(u, v)} leads outside the graph's nodes 0 to {n - 1}")
        if u >= v:
            raise InvalidProblem(f"edge {(u, v)} goes against the order of the nodes")
        if (u, v) in seen:
            raise InvalidProblem(f"edge {(u, v)} is there twice")
        seen.add((u, v))


def _neighbours(edges: Iterable[tuple[int, int]], n: int) -> tuple[tuple[int, ...], ...]:
    lists: list[list[int]] = [[] for _ in range(n)]
    for u, v in edges:
        lists[u].append(v)
    return tuple(tuple(sorted(row)) for row in lists)
