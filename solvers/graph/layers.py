"""Layer graphs: their costs, and the one judge of their schedules.

As in a compute graph nothing is dropped by an action: an output is freed right after its last use,
and a run makes a fresh one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from solvers.chain.problem import Chain
from solvers.graph.edges import Edged, Edges, freed_after
from solvers.graph.schedule import Actions, LayerAction
from solvers.problem import OF_CHAINS, InvalidProblem, Layer, Layered, check_quantity, check_sum
from solvers.replay import Moment, Replay, Role
from solvers.schedule import Backward, Forward, IllegalPlan
from solvers.solution import PlanClass


@dataclass(frozen=True)
class LayerGraph(Layered, Edged):
    """Layers with costs and edges; the lowering to operations is `solvers.graph.lowering`.

    Attributes
    ----------
    layers
        At least one, in a topological order. Their options, ``recompute_time`` and
        ``ending_transient_bytes`` belong to chains: all forwards of a layer are alike here.
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
        self.check_edges()
        for i, layer in enumerate(self.layers):
            # The same checks of one layer, which is not a first one.
            Chain((replace(layer, options=(), recomputable=True),), self.input_bytes_of(i))
            if layer.options:
                raise InvalidProblem(
                    f"layer {layer.name!r} has options, which a graph with edges cannot use; "
                    "remove them"
                )
            if given := [field for field in OF_CHAINS if getattr(layer, field)]:
                raise InvalidProblem(
                    f"layer {layer.name!r} has {given[0]}, which only chains can use; add it to "
                    "its transients, or to input_bytes"
                )
        check_sum("the times", 2 * (len(self) + 1) * self.least_time)
        check_sum("the sizes", self.input_bytes + sum(self._sizes(i) for i in range(len(self))))

    what: ClassVar[str] = "layers with edges"
    """What a message calls such problems."""
    floor_class: ClassVar[PlanClass] = PlanClass.STAGED
    """Where nothing fits below the floor: the order of backwards sets which gradients are live."""
    is_training: ClassVar[bool] = True
    """Whether it has a backward part."""

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
        steps = schedule.steps
        for step, action in enumerate(steps):
            if not 0 <= action.layer < len(self):
                raise IllegalPlan(f"step {step} names layer {action.layer} of {len(self)}")
        freed = freed_after(
            [action.layer if isinstance(action, Forward) else None for action in steps],
            (_reads(self, action) for action in steps),
            lambda step, u: (
                f"{_said(self, steps[step])} runs while the output of {self.layers[u].name!r}"
            ),
        )
        machine = _Machine(self, freed)
        moments = [machine.run(step, action) for step, action in enumerate(steps)]
        for i, layer in enumerate(self.layers):
            if i not in machine.done:
                raise IllegalPlan(f"the plan ends before the backward of {layer.name!r}")
        return Replay.of(moments)

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
                + self.backward_bytes(i)
                + gradients
            )
        worst = max(range(2 * n), key=needs.__getitem__)
        return self.input_bytes + needs[worst], worst

    def input_bytes_of(self, i: int) -> int:
        """Bytes of everything that layer `i` reads."""
        if not self.inputs[i]:
            return self.input_bytes
        return sum(self.layers[u].output_bytes for u in self.inputs[i])

    def backward_bytes(self, i: int) -> int:
        """Bytes that the backward of layer `i` needs above what is live before it."""
        layer = self.layers[i]
        working = layer.backward_transient_bytes - layer.backward_overlap_bytes
        return self.input_bytes_of(i) + layer.gradient_bytes + working

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


def _reads(graph: LayerGraph, action: LayerAction) -> list[int]:
    """Layers whose outputs an action reads."""
    i = action.layer
    if isinstance(action, Forward):
        return list(graph.inputs[i])
    read = list(graph.inputs[i]) if graph.layers[i].input_saved else []
    return [*read, i] if graph.layers[i].output_saved else read


def _said(graph: LayerGraph, action: LayerAction) -> str:
    kind = "forward" if isinstance(action, Forward) else "backward"
    return f"the {kind} of {graph.layers[action.layer].name!r}"


class Gradients:
    """Those of outputs and of parameters: how many bytes of them are live, with the graph's input.

    Live from the start: those of the layers that no other layer reads.
    """

    def __init__(self, graph: LayerGraph) -> None:
        self.graph = graph
        self._live = {i for i in range(len(graph)) if not graph.consumers[i]}  # of whose outputs
        self.bytes = graph.input_bytes + sum(graph.layers[i].output_bytes for i in self._live)

    def after(self, i: int) -> None:
        """The backward of layer `i` has run."""
        graph, layer = self.graph, self.graph.layers[i]
        if graph.inputs[i]:
            new = set(graph.inputs[i]) - self._live
            self._live |= new
            self.bytes += sum(graph.layers[u].output_bytes for u in new)
        elif -1 not in self._live:
            self._live.add(-1)
            self.bytes += graph.input_bytes
        self.bytes += layer.gradient_bytes - layer.output_bytes


class _Machine:
    """What is live while the actions of a layer graph run."""

    def __init__(self, graph: LayerGraph, freed: list[list[int]]) -> None:
        self.graph, self.freed = graph, freed
        self.gradients = Gradients(graph)
        self.live = 0  # bytes of outputs and saved sets
        self.saved: set[int] = set()
        self.done: set[int] = set()
        self.ran: set[int] = set()

    def run(self, step: int, action: LayerAction) -> Moment:
        role: Role = "back"
        if isinstance(action, Forward):
            role = "again" if action.layer in self.ran else "first"
            during, ticks = self._forward(action)
        else:
            during, ticks = self._backward(action)
        self.live -= sum(self.graph.layers[u].output_bytes for u in self.freed[step])
        return Moment(action, role, ticks, during, self.live + self.gradients.bytes)

    def _forward(self, action: Forward) -> tuple[int, int]:
        i, layer = action.layer, self.graph.layers[action.layer]
        if i in self.done:
            raise IllegalPlan(f"{_said(self.graph, action)} runs after its backward")
        if i in self.ran and not layer.recomputable:
            raise IllegalPlan(f"the plan recomputes {layer.name!r}, which must be kept")
        self.ran.add(i)
        self.live += layer.output_bytes
        on_top = layer.drop_transient_bytes
        if action.keep:
            if i in self.saved:
                raise IllegalPlan(f"{_said(self.graph, action)} keeps what is already kept")
            self.saved.add(i)
            self.live += layer.saved_bytes
            on_top = layer.forward_transient_bytes
        return self.live + self.gradients.bytes + on_top, layer.forward_time

    def _backward(self, action: Backward) -> tuple[int, int]:
        graph, i = self.graph, action.layer
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
        during = self.live + self.gradients.bytes + graph.backward_bytes(i)
        self.gradients.after(i)
        self.saved.discard(i)
        self.live -= graph.layers[i].saved_bytes
        return during, graph.layers[i].backward_time
