"""Layer graphs: their costs, and the one judge of their schedules.

As in a compute graph nothing is dropped by an action: an output is freed right after its last use,
and a run makes a fresh one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

from solvers.chain.problem import Chain
from solvers.graph.edges import Edges, check_edges, check_sum, neighbours
from solvers.graph.schedule import Actions, LayerAction
from solvers.problem import InvalidProblem, Layer, check_quantity
from solvers.replay import Moment, Replay, Role
from solvers.schedule import Backward, Forward, IllegalPlan
from solvers.solution import PlanClass

__all__ = ["LayerGraph"]


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
        check_edges(self.edges, len(self.layers))
        for i, layer in enumerate(self.layers):
            Chain((_without_overlap(layer),), self.input_bytes)  # the same checks of one layer
            if layer.options:
                raise InvalidProblem(
                    f"layer {layer.name!r} has options, which a graph with edges cannot use; "
                    "remove them"
                )
            self._check_overlap(i)
        check_sum("times", 2 * (len(self.layers) + 1) * sum(_times(la) for la in self.layers))
        check_sum("sizes", self.input_bytes + sum(self._sizes(i) for i in range(len(self))))

    what: ClassVar[str] = "layers with edges"
    """What a message calls such problems."""
    floor_class: ClassVar[PlanClass] = PlanClass.STAGED
    """Where nothing fits below the floor: the order of backwards sets which gradients are live."""
    is_training: ClassVar[bool] = True
    """Whether it has a backward part."""

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the layers."""
        return tuple(layer.name for layer in self.layers)

    @property
    def least_time(self) -> int:
        """Time of every forward and backward once: no schedule takes less."""
        return sum(_times(layer) for layer in self.layers)

    def keep_all(self) -> Actions:
        """The schedule that runs everything once, in the order of the graph."""
        n = len(self)
        forwards = tuple(Forward(i, keep=True) for i in range(n))
        return Actions(forwards + tuple(Backward(i) for i in reversed(range(n))))

    def replay(self, schedule: Actions) -> Replay:
        """Execute a schedule.

        Live throughout: the graph's input. Live from the start: the gradients of the layers that
        no other layer reads. The backward of layer i adds a gradient to that of each of its
        inputs: the first addition is the accumulator, a later one needs as much again while it
        runs.

        Raises
        ------
        IllegalPlan
            An action lacks what it needs, or a backward is missing, comes twice or before that of
            a consumer.
        """
        machine = _Machine(self, _freed_after(self, schedule.steps))
        moments = [machine.run(step, action) for step, action in enumerate(schedule.steps)]
        for i, layer in enumerate(self.layers):
            if i not in machine.done:
                raise IllegalPlan(f"the plan ends before the backward of {layer.name!r}")
        return Replay.of(moments)

    @cached_property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """For each layer the layers it reads, ascending; empty: it reads the graph's input."""
        return neighbours(((v, u) for u, v in self.edges), len(self.layers))

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """For each layer the layers that read it, ascending."""
        return neighbours(self.edges, len(self.layers))

    @cached_property
    def floor(self) -> tuple[int, int]:
        """Bytes that some operation needs under any schedule, and that operation's index.

        The operations are the forwards in the order of the layers, then the backwards in reverse:
        the backward of layer i has index 2n - 1 - i.
        """
        n, layers = len(self), self.layers
        needs = [0] * (2 * n)
        below = [0] * n  # all layers after i as bits: their backwards come first
        for i in reversed(range(n)):
            layer, x = layers[i], layers[i].output_bytes
            for j in self.consumers[i]:
                below[i] |= below[j] | 1 << j
            gradients = sum(layers[j].gradient_bytes for j in range(n) if below[i] >> j & 1)
            read = sum(layers[u].output_bytes for u in self.inputs[i])
            needs[i] = read + x + layer.saved_bytes + layer.forward_transient_bytes
            if not self.consumers[i]:
                needs[i] += x  # the gradient of a last output is there from the start
            needs[2 * n - 1 - i] = (
                (read if layer.input_saved else 0)
                + (x if layer.output_saved else 0)
                + x
                + layer.saved_bytes
                + self.input_bytes_of(i)
                + layer.gradient_bytes
                + gradients
                + layer.backward_transient_bytes
                - layer.backward_overlap_bytes
            )
        worst = max(range(2 * n), key=needs.__getitem__)
        return self.input_bytes + needs[worst], worst

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


def _reads(graph: LayerGraph, action: LayerAction) -> list[int]:
    """Layers whose outputs an action reads."""
    i = action.layer
    if isinstance(action, Forward):
        return list(graph.inputs[i])
    read = list(graph.inputs[i]) if graph.layers[i].input_saved else []
    return [*read, i] if graph.layers[i].output_saved else read


def _freed_after(graph: LayerGraph, actions: Sequence[LayerAction]) -> list[list[int]]:
    """For each step the layers whose output has its last use there."""
    n = len(graph)
    copy: dict[int, int] = {}
    last_use = list(range(len(actions)))
    for step, action in enumerate(actions):
        if not 0 <= action.layer < n:
            raise IllegalPlan(f"step {step} names layer {action.layer} of {n}")
        for u in _reads(graph, action):
            if u not in copy:
                raise IllegalPlan(
                    f"{_said(graph, action)} runs while the output of "
                    f"{graph.layers[u].name!r} is not live (step {step})"
                )
            last_use[copy[u]] = step
        if isinstance(action, Forward):
            copy[action.layer] = step
    freed: list[list[int]] = [[] for _ in actions]
    for made, step in enumerate(last_use):
        action = actions[made]
        if isinstance(action, Forward):
            freed[step].append(action.layer)
    return freed


def _said(graph: LayerGraph, action: LayerAction) -> str:
    kind = "forward" if isinstance(action, Forward) else "backward"
    return f"the {kind} of {graph.layers[action.layer].name!r}"


@dataclass(slots=True)
class _Machine:
    """What is live while the actions of a layer graph run."""

    graph: LayerGraph
    freed: list[list[int]]
    live: int = 0
    saved: set[int] = field(default_factory=set)
    gradients: set[int] = field(default_factory=set)  # layers whose output's gradient is live
    done: set[int] = field(default_factory=set)
    ran: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        graph = self.graph
        self.live = graph.input_bytes
        for i, layer in enumerate(graph.layers):
            if not graph.consumers[i]:
                self.gradients.add(i)
                self.live += layer.output_bytes

    def run(self, step: int, action: LayerAction) -> Moment:
        role: Role = "back"
        if isinstance(action, Forward):
            role = "again" if action.layer in self.ran else "first"
            during, ticks = self._forward(action)
        else:
            during, ticks = self._backward(action)
        self.live -= sum(self.graph.layers[u].output_bytes for u in self.freed[step])
        return Moment(action, role, ticks, during, self.live)

    def _forward(self, action: Forward) -> tuple[int, int]:
        i, layer = action.layer, self.graph.layers[action.layer]
        if i in self.done:
            raise IllegalPlan(f"{_said(self.graph, action)} runs after its backward")
        if i in self.ran and not layer.recomputable:
            raise IllegalPlan(f"the plan recomputes {layer.name!r}, which must be kept")
        self.ran.add(i)
        self.live += layer.output_bytes
        if not action.keep:
            return self.live + layer.drop_transient_bytes, layer.forward_time
        if i in self.saved:
            raise IllegalPlan(f"{_said(self.graph, action)} keeps what is already kept")
        self.saved.add(i)
        self.live += layer.saved_bytes
        return self.live + layer.forward_transient_bytes, layer.forward_time

    def _backward(self, action: Backward) -> tuple[int, int]:
        graph, i = self.graph, action.layer
        layer = graph.layers[i]
        if i in self.done:
            raise IllegalPlan(f"{_said(graph, action)} runs twice")
        if i not in self.saved:
            raise IllegalPlan(f"{_said(graph, action)} runs while its saved set is not live")
        for j in graph.consumers[i]:
            if j not in self.done:
                raise IllegalPlan(
                    f"{_said(graph, action)} runs before that of {graph.layers[j].name!r}, "
                    "which reads it"
                )
        self.done.add(i)
        during = self.live + (
            graph.input_bytes_of(i)
            + layer.gradient_bytes
            + layer.backward_transient_bytes
            - layer.backward_overlap_bytes
        )
        if graph.inputs[i]:
            new = [u for u in graph.inputs[i] if u not in self.gradients]
            self.gradients.update(new)
            self.live += sum(graph.layers[u].output_bytes for u in new)
        elif -1 not in self.gradients:
            self.gradients.add(-1)
            self.live += graph.input_bytes
        self.live += layer.gradient_bytes - layer.saved_bytes - layer.output_bytes
        self.saved.discard(i)
        return during, layer.backward_time
