"""A traced model: its layers in order, what each reads, and all that is needed to run them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import TreeSpec, tree_map_only, tree_unflatten

from scheduler.common.errors import UnsupportedModel
from scheduler.pytorch.graph.layer import Task
from scheduler.pytorch.graph.tensors import Key, Table
from scheduler.pytorch.graph.tracing.fx import Arguments, OtherValues, run_node
from scheduler.pytorch.observe.autograd import Source
from scheduler.pytorch.observe.tracker import unique_bytes

_CHECKED = {"value", "shape"}

Program = tuple[fx.Node, ...]
"""Nodes that are run as one, in order; the last makes the result."""


@dataclass(frozen=True)
class GraphNode:
    """One layer.

    Attributes
    ----------
    name
        That of its module or operation, with a number where it is there already; several names
        where several are run as one.
    modules
        Names of the modules it calls: none for an operation.
    program
        The views it takes of what it reads, and itself.
    reads
        Layers it reads, by the node that makes their output.
    arguments
        Positions, among the model's input tensors, of those it reads that require a gradient.
    copies
        Its result is a view, and is copied so as to have a gradient of its own.
    parameters
        Names of those it reads that need a gradient.
    several
        Keys of what more than one edge of its autograd graph leads to.
    input_saved, output_saved
        Does its backward read its inputs, its output?
    recomputable
        False: its forward changes a buffer, so that a plan must keep it.
    """

    name: str
    modules: tuple[str, ...]
    program: Program
    reads: Mapping[fx.Node, int]
    arguments: tuple[int, ...] = ()
    copies: bool = False
    parameters: tuple[str, ...] = ()
    several: frozenset[Key] = frozenset()
    input_saved: bool = False
    output_saved: bool = False
    recomputable: bool = True

    @property
    def inputs(self) -> tuple[int, ...]:
        """Layers it reads, ascending."""
        return tuple(sorted(set(self.reads.values())))


@dataclass(frozen=True)
class Held:
    """Something that needs no gradient and is made once, in its turn, and held, or a check.

    `before`: the layer ahead of which it runs. `frees`: others like it that nothing reads later.
    """

    program: Program
    before: int
    frees: tuple[fx.Node, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class TracedGraph:
    """A model as a graph of layers, for calls with arguments of one form.

    Attributes
    ----------
    nodes
        The layers, in the order in which they run.
    edges
        Pairs (u, v): layer v reads the output of layer u.
    held
        What runs beside them without a gradient.
    output, spec
        Program that makes the leaves of what the model returns; how they are put together.
    others
        Layers whose outputs it returns beside that of the last.
    graded
        Nodes of the output's program, and those it reads, that a gradient could come to.
    inputs
        The placeholder of each input tensor.
    constants
        Tensors that depend on no tensor of the model, by name; made once, by the trace.
        Like buffers they stay between steps, and are not in the peak that a plan promises.
    through
        Names of the modules whose parts are layers.
    form, state
        What a call's arguments, and the model, must look like for the trace to hold.
    """

    kind: str
    nodes: tuple[GraphNode, ...]
    held: tuple[Held, ...]
    output: Program
    spec: TreeSpec
    others: tuple[int, ...]
    graded: frozenset[fx.Node]
    inputs: tuple[fx.Node, ...]
    constants: dict[str, torch.Tensor]
    through: tuple[str, ...]
    form: tuple[Any, ...]
    state: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        return f"<TracedGraph of {self.kind}: {len(self)} layers, {len(self.edges)} edges>"

    def __deepcopy__(self, memo: dict[int, Any]) -> TracedGraph:
        return self  # nothing in it changes or belongs to one model

    def holds(self, model: nn.Module, arguments: Arguments) -> bool:
        """Whether the values of this batch lead to this graph, as far as chance has no part in it.

        What is looked at is made here, and once more in the step.
        """
        known = {place: t.detach() for place, t in zip(self.inputs, arguments.tensors, strict=True)}
        needed: set[fx.Node] = set()
        checks = [held.program for held in self.held if held.program[-1].meta.keys() & _CHECKED]
        todo = [node for program in checks for node in program]
        while todo:
            node = todo.pop()
            if node not in needed:
                needed.add(node)
                todo += node.all_input_nodes
        random: set[fx.Node] = set()
        for held in self.held:
            for node in held.program:
                if node.meta.get("random") or random & {*node.all_input_nodes}:
                    random.add(node)
                if node not in needed or node in random or node in known:
                    continue
                try:
                    known[node] = run_node(node, model, self.constants, known.__getitem__)
                except OtherValues:
                    return False
        return True

    @property
    def names(self) -> tuple[str, ...]:
        """The layers' names, in order."""
        return tuple(node.name for node in self.nodes)

    @property
    def constant_bytes(self) -> int:
        """Bytes of the constants, which whoever fills a device to the brim sets aside."""
        return unique_bytes(self.constants)

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Pairs (u, v), ascending: layer v reads the output of layer u."""
        return tuple(sorted((u, v) for v, node in enumerate(self.nodes) for u in node.inputs))


class Session:
    """One call of a traced model: the tensors it was given, and those that are live.

    The `table` has the live outputs of layers, and the inputs that require a gradient.
    """

    def __init__(self, graph: TracedGraph, model: nn.Module, arguments: Arguments) -> None:
        self.graph = graph
        self.model = model
        self.table = Table(graph.names)
        self._over = False  # the forward, so that nothing is to be returned any more
        self._held = list(graph.held)
        self._parameters = dict(model.named_parameters())
        self._fixed: dict[fx.Node, Any] = {}
        self._others: dict[int, torch.Tensor] = {}
        for k, (place, tensor) in enumerate(zip(graph.inputs, arguments.tensors, strict=True)):
            self._fixed[place] = tensor.detach()
            if tensor.requires_grad:
                self.table.put(-1 - k, tensor.detach())

    def advance(self, i: int) -> None:
        """Make what is held and runs before layer `i`."""
        while self._held and self._held[0].before <= i:
            held = self._held.pop(0)
            result = self._run(held.program, {})
            fixed = result.detach() if isinstance(result, torch.Tensor) else result
            self._fixed[held.program[-1]] = fixed
            for node in held.frees:
                del self._fixed[node]

    def put(self, i: int, output: torch.Tensor) -> None:
        """Hold the output of layer `i`."""
        self.table.put(i, output)
        if i in self.graph.others and not self._over:
            self._others[i] = output

    def task(self, i: int) -> Task:
        """Layer `i`, ready to run."""
        node, graph = self.graph.nodes[i], self.graph

        def run(handed: Mapping[Key, torch.Tensor]) -> torch.Tensor:
            values: dict[fx.Node, Any] = {place: handed[u] for place, u in node.reads.items()}
            values |= {graph.inputs[k]: handed[-1 - k] for k in node.arguments}
            tensor: torch.Tensor = self._run(node.program, values)
            return tensor.clone() if node.copies else tensor

        return Task(
            node.name,
            run,
            i,
            (*node.inputs, *(-1 - k for k in node.arguments)),
            {name: self._parameters[name] for name in node.parameters},
            node.several,
        )

    def result(self, last: torch.Tensor, door: torch.Tensor) -> Any:
        """What the model returns, around the output of its last layer.

        The outputs of other layers are in it as they are, but no gradient may come to them; `door`,
        a scalar that requires one, makes them say so.
        """
        *program, end = self.graph.output
        values = {self.graph.nodes[i].program[-1]: self._others[i] for i in self.graph.others}
        trained = {self.graph.nodes[-1].program[-1]: last}

        def plain(node: fx.Node) -> Any:
            return values[node] if node in values else self._fixed[node]

        def handed(node: fx.Node) -> Any:
            if node in trained or node not in self.graph.graded:
                return trained[node] if node in trained else plain(node)
            return tree_map_only(
                torch.Tensor, lambda t: Source.apply(door, [t], self._refuse), plain(node)
            )

        for node in program:
            if any(other in trained for other in node.all_input_nodes):
                trained[node] = run_node(node, self.model, self.graph.constants, handed)
            else:
                with torch.no_grad():
                    values[node] = run_node(node, self.model, self.graph.constants, plain)
        leaves: Any = fx.map_arg(end.args[0], handed)
        return tree_unflatten(leaves, self.graph.spec)

    def end_forward(self) -> None:
        """Hold no longer what is only returned."""
        self._others.clear()
        self._over = True

    def _refuse(self, gradient: torch.Tensor) -> None:
        raise UnsupportedModel(
            f"a gradient comes to one of {len(self.graph.others) + 1} tensors that "
            f"{self.graph.kind} returns, and the plan is for that of "
            f"{self.graph.names[-1]!r} alone; use only that for the loss"
        )

    def held(self) -> list[Any]:
        """All that is held beside the layers' outputs."""
        return list(self._fixed.values())

    def close(self) -> None:
        """Let go of everything."""
        self.table.clear()
        self._fixed.clear()

    def _run(self, program: Program, values: dict[fx.Node, Any]) -> Any:
        def lookup(node: fx.Node) -> Any:
            return values[node] if node in values else self._fixed[node]

        use = {other: node for node in program for other in node.all_input_nodes}
        for node in program[:-1]:
            values[node] = run_node(node, self.model, self.graph.constants, lookup)
            for other in node.all_input_nodes:
                if use[other] is node:
                    values.pop(other, None)
        return run_node(program[-1], self.model, self.graph.constants, lookup)


def state_of(model: nn.Module) -> tuple[Any, ...]:
    """Equal as long as a trace of the model holds: modules, modes, what requires a gradient."""
    modules = tuple((name, type(part), part.training) for name, part in model.named_modules())
    return modules, tuple((name, p.requires_grad) for name, p in model.named_parameters())
