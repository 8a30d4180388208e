"""From a model to a graph of layers: trace it, see what each node is, and what its backward reads.

A node that only takes a view (reshape, chunk, an identity) becomes part of every layer that reads
it. What needs no gradient is made once and held. Every other node is a layer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_unflatten

from scheduler.common.errors import InvalidPlan, UnsupportedModel
from scheduler.export.standalone.state import named_state
from scheduler.pytorch.graph.layer import keep
from scheduler.pytorch.graph.tensors import Key
from scheduler.pytorch.graph.traced import GraphNode, Session, TracedGraph
from scheduler.pytorch.graph.tracing.classify import see_kinds
from scheduler.pytorch.graph.tracing.fx import Arguments, FxTrace, Untraceable, cast, casting
from scheduler.pytorch.graph.tracing.layers import build
from scheduler.pytorch.graph.tracing.leaves import Leaves
from scheduler.pytorch.graph.tracing.record import CallRecorder
from scheduler.pytorch.model.find import find_blocks, is_pattern
from scheduler.pytorch.model.replace import check_unplanned
from scheduler.pytorch.model.settings import check_skips
from scheduler.pytorch.model.step import prepared
from scheduler.pytorch.model.wrappers import bare
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
        "auto": the blocks of the model's stacks, and what is outside of them, as coarse as can be.

    Returns
    -------
    TracedGraph
        Holds for arguments of this form, and for this model in this mode.

    Raises
    ------
    UnsupportedModel
        The model does something that a plan cannot honour.
    """
    model = bare(model, sharded=False)
    check_skips(model)
    return find_layers(model, Arguments.of(model, inputs), leaves)


def find_layers(
    model: nn.Module,
    arguments: Arguments,
    leaves: Iterable[str] | None = "auto",
    *,
    wanted: Iterable[str] = (),
    loss_fn: Callable[[Any], Any] | None = None,
    ends: Iterable[str] = (),
) -> TracedGraph:
    """`trace`, for the loss that `loss_fn` makes of what the model returns, or a layer of `ends`.

    `wanted` are names that automatic leaves are to be among.
    """
    for name, module in model.named_modules():
        check_unplanned(module, repr(name or type(model).__name__))
    inputs = tree_unflatten(arguments.leaves, arguments.spec)
    with prepared(model, inputs), cast(casting(arguments.tensors)):
        if leaves != "auto":
            graph = _once(model, arguments, _named(model, leaves or ()), loss_fn, ends)
        else:
            graph = _mended(model, arguments, Leaves(model, wanted), loss_fn, ends)
        nodes = []
        for i, session in walk(graph, model, arguments):
            nodes.append(_look_inside(graph.nodes[i], session, i))
        return replace(graph, nodes=tuple(nodes))


def trace_for(model: nn.Module, arguments: Arguments, layers: Sequence[str]) -> TracedGraph:
    """The graph of a plan with these layers, the last of which may be a loss outside the model.

    Raises `InvalidPlan` where the model has other layers.
    """
    modules = dict(model.named_modules())
    parts = dict.fromkeys(part for layer in layers for part in parts_of(layer))
    wanted = [part for part in parts if part in modules]
    for leaves in ("auto", wanted):
        graph = find_layers(model, arguments, leaves, wanted=wanted, ends=layers[-2:])
        if graph.names in (tuple(layers), tuple(layers[:-1])):
            return graph
    other = next((n for n in graph.names if n not in layers), layers[0])
    raise InvalidPlan(
        f"the plan's layers are not those of this {type(model).__name__} for such a batch "
        f"({other!r} is only in one of them); profile it, and solve, for each kind of batch"
    )


def is_traced(layer: str, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a layer's name is made of modules and operations as a trace names them."""
    return all(part in modules or part.strip("()").isidentifier() for part in parts_of(layer))


def parts_of(layer: str) -> list[str]:
    """Names of the modules and operations that a layer is made of."""
    return [re.sub(r"(#\d+|\[\d+\])*$", "", part) for part in layer.split("+")]


def _named(model: nn.Module, leaves: Iterable[str]) -> list[str]:
    names: list[str] = []
    for name in leaves:
        names += find_blocks(model, name if is_pattern(name) else [name])
    return names


def _mended(
    model: nn.Module,
    arguments: Arguments,
    leaves: Leaves,
    loss_fn: Callable[[Any], Any] | None,
    ends: Iterable[str],
) -> TracedGraph:
    while True:
        try:
            return _once(model, arguments, leaves.names, loss_fn, ends, whole=leaves.may_open)
        except Untraceable as error:
            if not leaves.mend(error):
                raise


def _once(
    model: nn.Module,
    arguments: Arguments,
    leaves: Iterable[str],
    loss_fn: Callable[[Any], Any] | None,
    ends: Iterable[str],
    whole: Callable[[str], bool] | None = None,
) -> TracedGraph:
    found = _record(model, arguments, leaves, loss_fn, check=whole is None)
    kinds = see_kinds(found, model, arguments)
    for name in kinds.pieces:
        if whole is not None and whole(name):
            raise Untraceable(f"{name!r} hands over tensors that are entangled", leaf=name)
    return build(found, kinds, model, arguments, ends)


def _record(
    model: nn.Module,
    arguments: Arguments,
    leaves: Iterable[str],
    loss_fn: Callable[[Any], Any] | None,
    *,
    check: bool,
) -> FxTrace:
    """Record a call; a leaf that hands over several tensors is looked into after all."""
    opened: frozenset[str] = frozenset()
    while True:
        recorder = CallRecorder(model, frozenset(leaves), opened)
        before = _marks(model)
        found = recorder.run(arguments, loss_fn)
        _check_state(model, before, recorder.called - recorder.through)
        if not recorder.several:
            break
        opened |= recorder.several
    for name in leaves if check else ():
        if name not in recorder.called:
            raise UnsupportedModel(
                f"leaf {name!r} is never called by the model; name modules whose forward runs"
            )
    return found


def _marks(model: nn.Module) -> dict[str, Any]:
    """Something for all that a forward may change, which is another where it has."""
    return {
        name: (id(value), value._version) if isinstance(value, torch.Tensor) else repr(value)
        for name, value in named_state(model).items()
    }


def _check_state(model: nn.Module, before: dict[str, Any], leaves: Collection[str]) -> None:
    """Raise `Untraceable` where code that no layer runs changes something: no plan would."""
    modules = dict(model.named_modules())
    now = _marks(model)
    for name in {**before, **now}:
        parts = name.split(".")
        above = [".".join(parts[:n]) for n in reversed(range(len(parts)))]
        if before.get(name) != now.get(name) and not any(path in leaves for path in above):
            owner = next(path for path in above if path in modules)
            raise Untraceable(
                f"the forward of {owner or type(model).__name__!r} changes {name!r}, and a plan "
                "of a graph runs its parts without it; name it in leaves, or change that elsewhere",
                inside=(owner,) if owner else (),
            )


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
