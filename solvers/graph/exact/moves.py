"""The steps that the exhaustive search may take on either kind of graph.

A state is a set of live values, which may be dropped at any time, and a number that says what is
done. Sets are bit masks. What a step needs and changes is what their replays say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from solvers.graph.problem import ComputeGraph, LayerGraph
from solvers.graph.schedule import Actions, GraphSchedule, LayerAction, Nodes
from solvers.schedule import Backward, Forward

__all__ = ["RULES", "Move", "Rules", "Stand", "Step"]

Step = int | LayerAction


@dataclass(frozen=True, slots=True)
class Move:
    """One step: what it reads and makes (sets of values as bits), and where it leads."""

    step: Step
    time: int
    reads: int
    makes: int
    on_top: int  # bytes while it runs, above what is live
    after: int


@dataclass(frozen=True, slots=True)
class Stand:
    """What follows from the done part of a state alone."""

    base: int  # bytes that cannot be dropped
    useful: int  # values that a later step may read
    moves: tuple[Move, ...]


class Rules(Protocol):
    """One kind of graph: values that may be dropped, and numbers that say what is done."""

    sizes: list[int]
    end: int

    @property
    def schedule(self) -> Callable[[Any], GraphSchedule]:
        """What makes a schedule of such steps."""

    def stand(self, done: int) -> Stand:
        """What can follow, whatever is live."""

    def bound(self, live: int, done: int) -> int | None:
        """Least time from here; None: there is no way on, whatever the budget."""


class NodeRules:
    """A compute graph: a value is a node's output, done are the nodes computed at least once."""

    schedule = Nodes

    def __init__(self, graph: ComputeGraph) -> None:
        self.graph = graph
        self.sizes = [node.bytes for node in graph.nodes]
        self.end = (1 << len(graph)) - 1
        self.inputs = [_mask(row) for row in graph.inputs]
        self.consumers = [_mask(row) for row in graph.consumers]

    def stand(self, done: int) -> Stand:
        """Nodes whose inputs are done, unless nothing reads their output any more."""
        useful, moves = 0, []
        for v in reversed(range(len(self.sizes))):
            bit = 1 << v
            if self.consumers[v] & (useful | ~done):
                useful |= bit
            elif done & bit:
                continue  # nothing reads it any more
            if self.inputs[v] & ~done == 0:
                time, size = self.graph.nodes[v].time, self.sizes[v]
                moves.append(Move(v, time, self.inputs[v], bit, size, done | bit))
        return Stand(0, useful & done, tuple(moves))

    def bound(self, live: int, done: int) -> int:
        """Time of the nodes that must still be computed."""
        must = time = 0
        for v in reversed(range(len(self.sizes))):
            bit = 1 << v
            if not done & bit or (not live & bit and self.consumers[v] & must):
                must |= bit
                time += self.graph.nodes[v].time
        return time


class LayerRules:
    """A layer graph: a value is a layer's output.

    Done is ``backwards << n | saved``: backwards that have run, and saved sets that are live. They
    say which gradients are live. A layer that cannot be recomputed has run when it is in either,
    for it would be lost if its one run did not keep.
    """

    schedule = Actions

    def __init__(self, graph: LayerGraph) -> None:
        self.graph = graph
        self.sizes = [layer.output_bytes for layer in graph.layers]
        self.end = (1 << len(graph)) - 1 << len(graph)
        self.inputs = [_mask(row) for row in graph.inputs]
        self.consumers = [_mask(row) for row in graph.consumers]
        self.saving = _mask(i for i, layer in enumerate(graph.layers) if layer.input_saved)

    def stand(self, done: int) -> Stand:
        """Forwards that are still of use, and backwards whose consumers' are done."""
        n, graph = len(self.sizes), self.graph
        backwards, saved = done >> n, done & (1 << n) - 1
        base, useful, again = graph.input_bytes, 0, 0
        moves: list[Move] = []
        if any(backwards >> i & 1 and not graph.inputs[i] for i in range(n)):
            base += graph.input_bytes  # the gradient of the input
        for i in reversed(range(n)):
            bit, layer = 1 << i, graph.layers[i]
            if backwards & bit:
                base += layer.gradient_bytes
                continue
            if not graph.consumers[i] or self.consumers[i] & backwards:
                base += layer.output_bytes  # the gradient of the output
            readers = self.consumers[i] & ~backwards
            if layer.output_saved or readers & (self.saving | again):
                useful |= bit
            x, reads = layer.output_bytes, self.inputs[i]
            if not saved & bit:
                again |= bit
                on_top = x + layer.saved_bytes + layer.forward_transient_bytes
                keep, time = Forward(i, True), layer.forward_time
                moves.append(Move(keep, time, reads, bit, on_top, done | bit))
                if layer.recomputable and useful & bit:
                    on_top = x + layer.drop_transient_bytes
                    moves.append(Move(Forward(i, False), time, reads, bit, on_top, done))
                continue
            base += layer.saved_bytes
            if layer.recomputable and useful & bit:
                again |= bit
                on_top, time = x + layer.drop_transient_bytes, layer.forward_time
                moves.append(Move(Forward(i, False), time, reads, bit, on_top, done))
            if self.consumers[i] & ~backwards == 0:
                moves.append(self._backward(i, done))
        return Stand(base, useful, tuple(moves))

    def _backward(self, i: int, done: int) -> Move:
        layer, bit, n = self.graph.layers[i], 1 << i, len(self.sizes)
        reads = (self.inputs[i] if layer.input_saved else 0) | (bit if layer.output_saved else 0)
        on_top = (
            self.graph.input_bytes_of(i)
            + layer.gradient_bytes
            + layer.backward_transient_bytes
            - layer.backward_overlap_bytes
        )
        after = (done | bit << n) & ~bit
        return Move(Backward(i), layer.backward_time, reads, 0, on_top, after)

    def bound(self, live: int, done: int) -> int | None:
        """Time of the operations that must still run; None: one of them cannot run again."""
        n = len(self.sizes)
        backwards, saved = done >> n, done & (1 << n) - 1
        must = time = 0
        for i in reversed(range(n)):
            bit, layer = 1 << i, self.graph.layers[i]
            if backwards & bit:
                continue
            time += layer.backward_time
            readers = self.consumers[i] & ~backwards
            gone = not live & bit and (layer.output_saved or readers & (self.saving | must))
            if not saved & bit or gone:
                if saved & bit and not layer.recomputable:
                    return None
                must |= bit
                time += layer.forward_time
        return time


def _mask(values: Iterable[int]) -> int:
    mask = 0
    for v in values:
        mask |= 1 << v
    return mask


RULES: dict[type[Any], Callable[[Any], Rules]] = {ComputeGraph: NodeRules, LayerGraph: LayerRules}
"""The rules of each kind of graph."""
