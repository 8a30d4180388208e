"""From a model to a graph of layers: trace it, see what each node is, and what its backward reads.

A node that only takes a view (reshape, chunk, an identity) becomes part of every layer that reads
it. What needs no gradient is made once and held. Every other node is a layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)

from scheduler.common.errors import UnsupportedModel
from scheduler.pytorch.graph.layer import keep
from scheduler.pytorch.graph.tensors import Key
from scheduler.pytorch.graph.traced import GraphNode, Held, Program, Session, TracedGraph
from scheduler.pytorch.graph.tracing.classify import see_kinds
from scheduler.pytorch.graph.tracing.fx import Arguments, FxTrace, Kinds, cast, casting
from scheduler.pytorch.graph.tracing.record import CallRecorder
from scheduler.pytorch.model.find import find_blocks, is_pattern
from scheduler.pytorch.model.replace import check_unplanned
from scheduler.pytorch.model.step import prepared
from scheduler.pytorch.observe.autograd import nodes_below


def trace(model: nn.Module, inputs: Any, leaves: Iterable[str] | None = None) -> TracedGraph:
    """Trace a model whose layers form a graph.

    The model is run three times, forward only, once as a whole (where a block hands over several
    tensors, again), and then node by node; it, its gradients, its buffers and the random state are
    left as they were. What a branch depends on is checked in each planned step.

    Parameters
    ----------
    model
        In the mode it will be trained in.
    inputs
        A tensor, a tuple of arguments, or a dict of keyword arguments, of the size to be trained.
    leaves
        Names of modules, or patterns such as ``"decoder.block.*"``, that become one layer each and
        are not looked into. Modules of torch.nn (but `nn.Sequential` and the like) are layers in
        any case, and so are operations between them. One that makes and hands over several tensors
        becomes a layer for each: that of the first has its name, the others ``name[1]`` and so on.

    Returns
    -------
    TracedGraph
        Holds for arguments of this form, and for this model in this mode.

    Raises
    ------
    UnsupportedModel
        The model does something that a plan cannot honour.
    """
    arguments = Arguments.of(model, inputs)
    how = casting(arguments.tensors)
    with prepared(model, inputs), cast(how):
        found = _record(model, arguments, leaves)
        kinds = see_kinds(found, model, arguments)
        graph = _build(found, kinds, model, arguments)
        nodes = []
        for i, session in walk(graph, model, arguments):
            nodes.append(_look_inside(graph.nodes[i], session, i))
        return replace(graph, nodes=tuple(nodes))


def walk(
    graph: TracedGraph, model: nn.Module, arguments: Arguments
) -> Iterator[tuple[int, Session]]:
    """Run the layers forward one by one; yield each when what it reads is live.

    Whoever uses this puts the layer's output into the session's table.
    """
    session = Session(graph, model, arguments)
    last = dict(graph.edges)  # they ascend
    for i in range(len(graph)):
        session.advance(i)
        yield i, session
        for u, end in last.items():
            if end == i:
                session.table.drop(u)


def state_of(model: nn.Module) -> tuple[Any, ...]:
    """Equal as long as a trace of the model holds: modules, modes, what requires a gradient."""
    modules = tuple((name, type(part), part.training) for name, part in model.named_modules())
    return modules, tuple((name, p.requires_grad) for name, p in model.named_parameters())


# --- from a call to nodes -----------------------------------------------------------------------


def _record(model: nn.Module, arguments: Arguments, leaves: Iterable[str] | None) -> FxTrace:
    """Record a call; a leaf that hands over several tensors is looked into after all."""
    names: list[str] = []
    for name in leaves or ():
        names += find_blocks(model, name if is_pattern(name) else [name])
    for name, module in model.named_modules():
        check_unplanned(module, repr(name or type(model).__name__))
    opened: frozenset[str] = frozenset()
    while True:
        recorder = CallRecorder(model, frozenset(names), opened)
        try:
            found = recorder.run(arguments)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise UnsupportedModel(
                f"{type(model).__name__} reads values of tensors ({error}), which fake tensors do "
                "not have; trace and profile it with real ones, or name a block that does so in "
                "leaves"
            ) from error
        if not recorder.several:
            break
        opened |= recorder.several
    for name in names:
        if name not in recorder.called:
            raise UnsupportedModel(
                f"leaf {name!r} is never called by the model; name modules whose forward runs"
            )
    return found


# --- from kinds to layers -----------------------------------------------------------------------


def _build(found: FxTrace, kinds: Kinds, model: nn.Module, arguments: Arguments) -> TracedGraph:
    order = {node: i for i, node in enumerate(found.graph.nodes)}
    layers = [n for n in found.graph.nodes if n in kinds.layers and n not in kinds.joined]
    index = {node: i for i, node in enumerate(layers)}
    programs = [_closure(node, kinds, order) for node in layers]
    names = _names([program for program, _ in programs], kinds, model)
    placeholders = [node for node in found.graph.nodes if node.op == "placeholder"]
    wanted = [k for k, tensor in enumerate(arguments.tensors) if tensor.requires_grad]
    nodes = []
    for node, name, (program, read) in zip(layers, names, programs, strict=True):
        nodes.append(
            GraphNode(
                name,
                tuple(str(part.target) for part in program if part.op == "call_module"),
                program,
                {other: index[other] for other in read if other in index},
                tuple(k for k in wanted if placeholders[k] in read),
                copies=node in kinds.copies,
            )
        )
    output = next(node for node in found.graph.nodes if node.op == "output")
    program, read = _closure(output, kinds, order)
    returned = sorted(index[node] for node in read if node in index)
    used = {u for node in nodes for u in node.inputs} | set(returned[-1:])
    if not used.issuperset(returned) or not returned:
        raise UnsupportedModel(
            f"{type(model).__name__} returns {len(returned)} tensors that need a gradient; a plan "
            "is for a model that returns exactly one, and perhaps others from which it is made"
        )
    for i, node in enumerate(nodes):
        if i not in used:
            raise UnsupportedModel(
                f"the output of {node.name!r} is not used for what the model returns; leave it out"
            )
    return TracedGraph(
        type(model).__name__,
        tuple(nodes),
        _held(found, kinds, order, nodes, program),
        program,
        found.spec,
        tuple(returned[:-1]),
        tuple(placeholders),
        found.constants,
        found.through,
        arguments.form,
        state_of(model),
    )


def _closure(
    node: fx.Node, kinds: Kinds, order: dict[fx.Node, int]
) -> tuple[Program, list[fx.Node]]:
    """A node with the views it takes, in order, and everything else they read."""
    program, read, todo = {node}, set(), [node]
    while todo:
        for other in todo.pop().all_input_nodes:
            if other in kinds.views or other in kinds.joined:
                if other not in program:
                    program.add(other)
                    todo.append(other)
            else:
                read.add(other)
    return tuple(sorted(program, key=order.__getitem__)), sorted(read, key=order.__getitem__)


def _held(
    found: FxTrace,
    kinds: Kinds,
    order: dict[fx.Node, int],
    nodes: list[GraphNode],
    output: Program,
) -> tuple[Held, ...]:
    """What runs without a gradient, each ahead of the first layer after it."""
    programs = [_closure(node, kinds, order)[0] for node in found.graph.nodes if node in kinds.held]
    kept = {
        other
        for program in [*(n.program for n in nodes), output]
        for n in program
        for other in n.all_input_nodes
    }
    last: dict[fx.Node, int] = {program[-1]: i for i, program in enumerate(programs)}
    for i, program in enumerate(programs):
        for node in program:
            last |= {other: i for other in node.all_input_nodes if other in last}
    starts = [order[node.program[-1]] for node in nodes]
    return tuple(
        Held(
            program,
            sum(start < order[program[-1]] for start in starts),
            tuple(node for node, end in last.items() if end == i and node not in kept),
        )
        for i, program in enumerate(programs)
    )


def _names(programs: list[Program], kinds: Kinds, model: nn.Module) -> list[str]:
    modules = dict(model.named_modules())
    names: list[str] = []
    for program in programs:
        parts = []
        for node in program:
            if node in kinds.layers:
                clash = node.op != "call_module" and node.name in modules
                name = str(node.target) if node.op == "call_module" else node.name
                parts.append(f"({name})" if clash else name)
        unique = name = kinds.names.get(program[-1], "+".join(parts))
        count = 2
        while unique in names:
            unique, count = f"{name}#{count}", count + 1
        names.append(unique)
    return names


# --- what a layer's backward reads ----------------------------------------------------------------


def _look_inside(node: GraphNode, session: Session, i: int) -> GraphNode:
    """Run a layer forward and complete what is known of it; its output goes into the table."""
    model, task = session.model, session.task(i)
    output, kept = keep(task, session.table)
    session.put(i, output)
    edges = nodes_below(kept.root.grad_fn)
    names = {id(p): name for name, p in model.named_parameters()}
    counts: dict[Key, int] = {}
    goals = {target.edge.node: target.key for target in kept.targets}
    for end in edges:
        variable = getattr(end, "variable", None)
        if end in goals:
            key: Key = goals[end]
        elif variable is None:
            continue
        elif id(variable) in names:
            key = names[id(variable)]
        elif variable.dim() == 0 and _is_gate(variable, kept):
            continue
        else:
            raise UnsupportedModel(
                f"layer {node.name!r} reads a tensor of shape {tuple(variable.shape)} that "
                "requires a gradient and is neither a parameter nor an input; register it as an "
                "nn.Parameter"
            )
        counts[key] = counts.get(key, 0) + 1
    return replace(
        node,
        parameters=tuple(sorted(key for key in counts if isinstance(key, str))),
        several=frozenset(key for key, count in counts.items() if count > 1),
        input_saved=kept.input_read,
        output_saved=kept.output_read,
    )


def _is_gate(variable: torch.Tensor, kept: Any) -> bool:
    doors = [n for t in kept.targets for n, _ in t.edge.node.next_functions]
    return any(getattr(door, "variable", None) is variable for door in doors)
