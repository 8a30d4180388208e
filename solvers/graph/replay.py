"""The one judge of schedules on graphs: execute them, tensor by tensor.

A copy of a tensor is freed right after its last use; a run makes a fresh copy, which serves every
use until the next run of the same operation. So nothing is ever dropped by an action: drops follow
from the order of the runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from solvers.graph.problem import ComputeGraph, LayerGraph
from solvers.schedule import IllegalPlan

__all__ = ["GraphReplay", "LayerAction", "LayerBackward", "LayerForward", "Moment"]
__all__ += ["replay_actions", "replay_schedule"]


@dataclass(frozen=True, slots=True)
class Moment:
    """One step of a schedule: bytes live at its worst moment, and bytes live after it."""

    during_bytes: int
    after_bytes: int


@dataclass(frozen=True, slots=True)
class GraphReplay:
    """What a schedule does on a graph.

    Attributes
    ----------
    peak_bytes
        The largest number of bytes live at any moment.
    peak_step
        Index of the step during which the peak is first reached.
    time
        Sum over the steps, in the graph's integer unit.
    moments
        One for each step.
    """

    peak_bytes: int
    peak_step: int
    time: int
    moments: tuple[Moment, ...]


@dataclass(frozen=True, slots=True)
class LayerForward:
    """Run the forward of `layer`; `keep`: it also makes the layer's saved set."""

    layer: int
    keep: bool


@dataclass(frozen=True, slots=True)
class LayerBackward:
    """Run the backward of `layer`."""

    layer: int


LayerAction = LayerForward | LayerBackward


def replay_schedule(graph: ComputeGraph, schedule: Sequence[int]) -> GraphReplay:
    """Execute `schedule`, node indices in the order of computation, repeats included.

    While a node is computed, all live outputs and its own count. The output of a node that
    nothing reads is freed at once.

    Raises
    ------
    IllegalPlan
        A node is unknown or never computed, or an input is not live where it is read.
    """
    n = len(graph)
    for v in schedule:
        if not 0 <= v < n:
            raise IllegalPlan(f"the schedule computes node {v}, but there are nodes 0 to {n - 1}")
    missing = set(range(n)).difference(schedule)
    if missing:
        raise IllegalPlan(f"the schedule never computes {graph.nodes[min(missing)].name!r}")
    # For each step, which copies have their last use there.
    last_use = list(range(len(schedule)))  # of the copy that each step makes
    copy: dict[int, int] = {}  # node -> step that made its newest copy
    for step, v in enumerate(schedule):
        for u in graph.inputs[v]:
            if u not in copy:
                raise IllegalPlan(
                    f"{graph.nodes[v].name!r} is computed while its input "
                    f"{graph.nodes[u].name!r} is not live (step {step})"
                )
            last_use[copy[u]] = step
        copy[v] = step
    freed: list[list[int]] = [[] for _ in schedule]
    for made, step in enumerate(last_use):
        freed[step].append(schedule[made])
    live, time, moments = 0, 0, []
    for step, v in enumerate(schedule):
        live += graph.nodes[v].bytes
        during = live
        live -= sum(graph.nodes[u].bytes for u in freed[step])
        time += graph.nodes[v].time
        moments.append(Moment(during, live))
    return _result(moments, time)


def replay_actions(graph: LayerGraph, actions: Sequence[LayerAction]) -> GraphReplay:
    """Execute the forwards and backwards of a layer graph.

    Live throughout: the graph's input. Live from the start: the gradients of the layers that no
    other layer reads. The backward of layer i adds a gradient to that of each of its inputs: the
    first addition is the accumulator, a later one needs as much again while it runs.

    Raises
    ------
    IllegalPlan
        An action lacks what it needs, or a backward is missing, comes twice or before that of a
        consumer.
    """
    machine = _LayerMachine(graph, _freed_after(graph, actions))
    time, moments = 0, []
    for step, action in enumerate(actions):
        during, cost = machine.run(step, action)
        time += cost
        moments.append(Moment(during, machine.live))
    for i, layer in enumerate(graph.layers):
        if i not in machine.done:
            raise IllegalPlan(f"the plan ends before the backward of {layer.name!r}")
    return _result(moments, time)


def _result(moments: list[Moment], time: int) -> GraphReplay:
    peak = max(moment.during_bytes for moment in moments)
    step = next(i for i, moment in enumerate(moments) if moment.during_bytes == peak)
    return GraphReplay(peak, step, time, tuple(moments))


def _reads(graph: LayerGraph, action: LayerAction) -> list[int]:
    """Layers whose outputs an action reads."""
    i = action.layer
    if isinstance(action, LayerForward):
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
        if isinstance(action, LayerForward):
            copy[action.layer] = step
    freed: list[list[int]] = [[] for _ in actions]
    for made, step in enumerate(last_use):
        action = actions[made]
        if isinstance(action, LayerForward):
            freed[step].append(action.layer)
    return freed


def _said(graph: LayerGraph, action: LayerAction) -> str:
    kind = "forward" if isinstance(action, LayerForward) else "backward"
    return f"the {kind} of {graph.layers[action.layer].name!r}"


@dataclass(slots=True)
class _LayerMachine:
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

    def run(self, step: int, action: LayerAction) -> tuple[int, int]:
        if isinstance(action, LayerForward):
            during, time = self._forward(action)
        else:
            during, time = self._backward(action)
        self.live -= sum(self.graph.layers[u].output_bytes for u in self.freed[step])
        return during, time

    def _forward(self, action: LayerForward) -> tuple[int, int]:
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

    def _backward(self, action: LayerBackward) -> tuple[int, int]:
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
