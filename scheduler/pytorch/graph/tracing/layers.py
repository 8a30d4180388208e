"""From nodes by kind to the layers of a graph."""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx, nn

from scheduler.common.errors import UnsupportedModel
from scheduler.pytorch.graph.traced import GraphNode, Held, Program, TracedGraph, state_of
from scheduler.pytorch.graph.tracing.fx import Arguments, FxTrace, Kinds


def build(
    found: FxTrace,
    kinds: Kinds,
    model: nn.Module,
    arguments: Arguments,
    ends: Iterable[str],
) -> TracedGraph:
    """The layers of a trace; `ends` are names that the last of them may have."""
    order = {node: i for i, node in enumerate(found.graph.nodes)}
    _put_beside(found, kinds, model, ends)
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
    return TracedGraph(
        type(model).__name__,
        tuple(nodes),
        _held(found, kinds, order, nodes, program),
        program,
        found.spec,
        tuple(returned[:-1]),
        frozenset(kinds.differs.intersection([*program, *read])),
        tuple(placeholders),
        found.constants,
        found.through,
        arguments.form,
        state_of(model),
    )


def _put_beside(found: FxTrace, kinds: Kinds, model: nn.Module, ends: Iterable[str]) -> None:
    """Leave what is returned beside the loss, and whatever is never used, without a backward.

    What is returned is made at the end of the forward. The loss is the output's own, or what is
    returned last; with `ends`, that whose layer has one of these names.
    """
    output = next(node for node in found.graph.nodes if node.op == "output")
    order = {node: i for i, node in enumerate(found.graph.nodes)}
    leaves = list(output.args[0])
    last = {k: _base(leaf, kinds) for k, leaf in enumerate(leaves) if leaf in kinds.differs}
    layers = [n for n in kinds.layers if n not in kinds.joined]
    programs = [_closure(node, kinds, order)[0] for node in layers]
    names = dict(zip(layers, _names(programs, kinds, model), strict=True))
    known = [node for end in ends for node in last.values() if names.get(node) == end]
    latest = sorted(last.values(), key=order.__getitem__)
    chosen = set(known[-1:]) or {last[k] for k in found.trained} or set(latest[-1:])
    if len(chosen) != 1 or not chosen.issubset(kinds.layers):
        raise UnsupportedModel(
            f"{type(model).__name__} returns {len(chosen)} tensors that the loss is made of, and a "
            "plan is for a model that returns one, or the loss itself; make the loss in the model"
        )
    needed, todo = set(chosen), [*chosen]
    while todo:
        for other in todo.pop().all_input_nodes:
            if other not in needed:
                needed.add(other)
                todo.append(other)
    for node in [n for n in kinds.layers if n not in needed]:
        if node.meta["random"]:
            raise UnsupportedModel(
                f"{node.name!r} draws random numbers, and nothing that the loss is made of reads "
                "what it makes; leave it out, or use it for the loss"
            )
        del kinds.layers[node]
        kinds.joined.discard(node)
        kinds.views.add(node)


def _base(node: fx.Node, kinds: Kinds) -> fx.Node:
    """The layer, or argument, that a node is a view of."""
    while node in kinds.views:
        node = next(other for other in node.all_input_nodes if other in kinds.differs)
    return node


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
