"""From a traced model to the costs of its layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from scheduler.common.errors import UnsupportedModel
from scheduler.costs.costgraph import CostGraph
from scheduler.pytorch.graph.layer import Task, drop
from scheduler.pytorch.graph.measure import see_task
from scheduler.pytorch.graph.tensors import Key
from scheduler.pytorch.graph.trace import trace, walk
from scheduler.pytorch.graph.traced import Session, TracedGraph
from scheduler.pytorch.graph.tracing.fx import Arguments, cast, casting
from scheduler.pytorch.model.fake import is_fake
from scheduler.pytorch.model.step import device_of, loss_of, prepared
from scheduler.pytorch.observe.autograd import gate
from scheduler.pytorch.observe.clock import Clock, Roofline, RooflineClock
from scheduler.pytorch.observe.peaks import Peaks
from scheduler.pytorch.observe.tracker import storage_bytes, unique_bytes


def profile_graph(
    model: nn.Module,
    inputs: Any,
    loss_fn: Callable[[Any], Any] | None = None,
    leaves: Iterable[str] | None = None,
    *,
    fake: bool | None = None,
    roofline: Roofline | None = None,
) -> CostGraph:
    """Measure what each layer of a model that is a graph costs in one training step.

    Each layer is run by itself, as a plan runs it, once for the bytes and a few times for the
    clock; of the rest only the outputs that later layers read are in memory meanwhile. The model,
    its gradients, its buffers and the random state are left as they were.

    Parameters
    ----------
    model, inputs, leaves
        As for `trace`; the layers are those of the trace.
    loss_fn
        ``loss_fn(output)`` gives the scalar to differentiate; it becomes a last layer, "loss",
        which a plan must keep. None: what the model returns is the scalar, or holds it as its
        only tensor that needs a gradient.
    fake, roofline
        As for `profile`.

    Returns
    -------
    CostGraph
        Times in ms, sizes in bytes. `input_bytes` holds the inputs and whatever needs no gradient.

    Raises
    ------
    UnsupportedModel
        The model cannot be traced, or does something that a plan cannot honour.
    """
    names = None if leaves is None else list(leaves)
    faking = is_fake(model) if fake is None else fake
    with prepared(model, inputs, fake=faking) as (model, inputs):
        graph = trace(model, inputs, names)
        clock = RooflineClock(roofline or Roofline()) if faking else Clock(device_of(model, inputs))
        with cast(casting(Arguments.of(model, inputs).tensors)):
            return _profile(graph, model, inputs, loss_fn, clock)


def _profile(
    graph: TracedGraph,
    model: nn.Module,
    inputs: Any,
    loss_fn: Callable[[Any], Any] | None,
    clock: Clock,
) -> CostGraph:
    # The gradient of each exists from the backward of its last reader on.
    reader: dict[Key, int] = {}
    for i, node in enumerate(graph.nodes):
        keys: list[Key] = [*node.inputs, *(-1 - k for k in node.arguments), *node.parameters]
        reader |= dict.fromkeys(keys, i)
    seen: list[Peaks] = []
    for i, session in walk(graph, model, Arguments.of(model, inputs)):
        task = session.task(i)
        earlier = frozenset(k for k in (*task.inputs, *task.parameters) if reader[k] > i)
        seen.append(see_task(task, session.table, earlier, not graph.nodes[i].inputs, clock))
        session.put(i, drop(task, session.table))
    end = len(graph) - 1
    output = session.table.get(end)
    loss, edges = output, list(graph.edges)
    if loss_fn is not None:
        run = _loss_of(session, loss_fn)
        loss = run({end: output})
        task = Task("loss", run, end + 1, (end,), {})
        seen.append(see_task(task, session.table, frozenset(), False, clock))
        edges.append((end, end + 1))
    elif output.numel() != 1:
        raise UnsupportedModel(
            f"{graph.kind} returns no scalar: give loss_fn=..., which makes one of its output"
        )
    for u in graph.others:  # until the model returns, and the loss is made
        after = max(v for of, v in graph.edges if of == u) + 1
        more = seen[u].output_bytes
        seen[after:] = [one.with_more_in_forward(more) for one in seen[after:]]
    # Whoever trains holds the loss; two more scalars tie the step together.
    scalars = 2 * storage_bytes(torch.zeros((), device=loss.device)) + storage_bytes(loss)
    held = unique_bytes([inputs, session.held()]) + scalars
    names = [*graph.names, "(loss)" if "loss" in graph.names else "loss"]
    kept = [not node.recomputable for node in graph.nodes] + [True]
    first = [not node.inputs for node in graph.nodes] + [False]
    costs = [
        (replace(one, input_bytes=held) if first[i] else one).cost(
            names[i], recomputable=not kept[i]
        )
        for i, one in enumerate(seen)
    ]
    return CostGraph(
        tuple(costs),
        input_bytes=held,
        name=graph.kind,
        time_unit="ms",
        edges=tuple((costs[u].name, costs[v].name) for u, v in edges),
    )


def _loss_of(
    session: Session, loss_fn: Callable[[Any], Any]
) -> Callable[[Mapping[Key, torch.Tensor]], torch.Tensor]:
    end = len(session.graph) - 1

    def run(handed: Mapping[Key, torch.Tensor]) -> torch.Tensor:
        loss = loss_of(session.result(handed[end], gate(handed[end].device)), loss_fn)
        if loss.untyped_storage() is handed[end].untyped_storage():
            return loss.clone()  # the model's output itself: it must not lie in what it reads
        return loss

    return run
