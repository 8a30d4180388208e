"""From a traced model to the costs of its layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import nn

from scheduler.common.errors import UnsupportedModel
from scheduler.costs.costgraph import CostGraph
from scheduler.costs.peaks import Peaks
from scheduler.export.standalone.state import Snapshot, is_small
from scheduler.pytorch.graph.layer import Task, back, drop, is_layer, keep
from scheduler.pytorch.graph.tensors import Gradients, Key, Table
from scheduler.pytorch.graph.trace import find_layers, walk
from scheduler.pytorch.graph.traced import Session, TracedGraph
from scheduler.pytorch.graph.tracing.fx import Arguments, cast, casting
from scheduler.pytorch.model.fake import is_fake
from scheduler.pytorch.model.step import device_of, loss_of, prepared
from scheduler.pytorch.model.wrappers import bare
from scheduler.pytorch.observe.autograd import gate
from scheduler.pytorch.observe.clock import Clock, Roofline, RooflineClock, spread
from scheduler.pytorch.observe.layer import Writes
from scheduler.pytorch.observe.tracker import MemoryTracker, storage_bytes, unique_bytes


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
    model = bare(model, sharded=False)
    faking = is_fake(model) if fake is None else fake
    with prepared(model, inputs, fake=faking) as (model, inputs):
        arguments = Arguments.of(model, inputs)
        graph = find_layers(model, arguments, leaves, loss_fn=loss_fn)
        clock = RooflineClock(roofline or Roofline()) if faking else Clock(device_of(model, inputs))
        with cast(casting(arguments.tensors)):
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
        parts = [model.get_submodule(name) for name in graph.nodes[i].modules]
        state = Snapshot(parts, is_small)
        seen.append(_see(task, session.table, earlier, not graph.nodes[i].inputs, state, clock))
        state.put()
        session.put(i, drop(task, session.table))
    end = len(graph) - 1
    output = session.table.get(end)
    loss, edges = output, list(graph.edges)
    run = None if loss_fn is None else _loss_of(session, loss_fn)
    if run is not None:
        # The loss may ask what requires a gradient.
        loss = run({end: output.detach().requires_grad_()}).detach()
    if run is not None and not _is_loss(loss, output):
        task = Task("loss", run, end + 1, (end,), {})
        seen.append(_see(task, session.table, frozenset(), False, Snapshot(()), clock))
        edges.append((end, end + 1))
    elif output.numel() != 1:
        raise UnsupportedModel(
            f"{graph.kind} returns no scalar: give loss_fn=..., which makes one of its output"
        )
    for u in graph.others:  # until the model returns, and the loss is made
        after = dict(graph.edges)[u] + 1  # its last reader
        more = seen[u].output_bytes
        seen[after:] = [one.with_more_in_forward(more) for one in seen[after:]]
    # Whoever trains holds the loss; two more scalars tie the step together.
    scalars = 2 * storage_bytes(torch.zeros((), device=loss.device)) + storage_bytes(loss)
    held = unique_bytes([inputs, session.held()]) + scalars
    held += sum(one.state_bytes for one in seen)  # as it was, until a layer has run again
    # Where it is a chain, too, its plan must be known as one of a trace.
    path = all(v == u + 1 for u, v in edges)
    names = [*graph.names, "(loss)" if path or "loss" in graph.names else "loss"]
    for i, node in enumerate(graph.nodes):
        if not node.inputs:
            seen[i] = replace(seen[i], input_bytes=held)
    again = [*(node.recomputable for node in graph.nodes), False]
    costs = [
        one.cost(name, recomputable=repeated)
        for one, name, repeated in zip(seen, names, again, strict=False)
    ]
    return CostGraph(
        tuple(costs),
        input_bytes=held,
        name=graph.kind,
        time_unit="ms",
        edges=tuple((costs[u].name, costs[v].name) for u, v in edges),
    )


def _see(
    task: Task,
    table: Table,
    earlier: frozenset[Key],
    first: bool,
    state: Snapshot,
    clock: Clock,
) -> Peaks:
    """Run one layer by itself, as a plan runs it, and see what it keeps and needs.

    `table` holds what it reads. `earlier` is what has a gradient already, from later layers, when
    its backward begins. `first`: it reads no other layer, so that the gradients of the model's
    inputs are its input's. Each run begins with the `state` of its modules.
    """
    forward_time, backward_time, share = _times(task, table, state, clock)
    if (lost := state.lost) is not None:
        raise UnsupportedModel(
            f"layer {task.name!r} changes {lost} in place, which a recomputation would do again "
            "and which is not put back; make a small buffer of it, or a new tensor each time"
        )
    state.put()
    writes = Writes(state)
    tracker = MemoryTracker(writes)
    with tracker:
        with tracker.tag("drop"):
            output = drop(task, table)
        drop_peak, output_bytes = tracker.peak("drop"), storage_bytes(output)
        del output
        state.put()
        own = Table()
        with tracker.tag("input"):
            _copy(task, table, own)
        with tracker.tag("layer"):
            output, kept = keep(task, own)
            forward_peak = tracker.peak("layer")
        own.clear()
        pinned = tracker.live("input")  # by something that autograd does not pack
        saved = tracker.live("layer") - output_bytes + pinned
        with tracker.tag("input"):
            _copy(task, table, own)
        gradients = Gradients()
        with tracker.tag("layer"):
            gradients.receive(task.output, torch.ones_like(output))
        if kept.output_read:
            own.put(task.output, output)
        del output
        with tracker.tag("earlier"):
            for key in earlier & {target.key for target in kept.targets}:
                like = task.parameters[key] if isinstance(key, str) else table.get(key)
                gradients.add(key, torch.zeros_like(like), own)
        tracker.reset_peak()
        others = tracker.live_bytes - tracker.live("layer") - pinned
        back(kept, task.output, gradients, own)
        backward_peak = tracker.peak_bytes - others
    stay = [
        gradient
        for key, gradient in gradients.items()
        if key not in earlier and (isinstance(key, str) or (key < 0 and not first))
    ]
    peaks = Peaks(
        input_bytes=sum(storage_bytes(table.get(key)) for key in task.inputs if is_layer(key)),
        output_bytes=output_bytes,
        saved_bytes=saved,
        input_saved=kept.input_read,
        output_saved=kept.output_read,
        forward_peak=forward_peak,
        drop_peak=drop_peak,
        backward_peak=backward_peak,
        gradient_bytes=unique_bytes(stay),
        forward_time=forward_time,
        recompute_time=forward_time,
        backward_time=backward_time,
        time_spread=share,
        state_bytes=writes.copied_bytes,
    )
    return peaks.with_more_in_forward(state.copied_bytes)


def _copy(task: Task, table: Table, own: Table) -> None:
    for key in task.inputs:
        own.put(key, table.get(key).clone())


def _times(task: Task, table: Table, state: Snapshot, clock: Clock) -> tuple[float, float, float]:
    """Medians of the forward and the backward, in ms, and their spread."""
    own = Table()
    for key in task.inputs:
        own.put(key, table.get(key))

    def run() -> tuple[float, float]:
        state.put()
        start = clock.mark()
        output, kept = keep(task, own)
        end = clock.mark()
        gradients = Gradients()
        gradients.receive(task.output, torch.ones_like(output))
        own.put(task.output, output)
        begin = clock.mark()
        back(kept, task.output, gradients, own)
        finish = clock.mark()
        own.drop(task.output)
        return clock.between(start, end), clock.between(begin, finish)

    forwards, backwards = zip(*clock.repeated(run), strict=True)
    return median(forwards), median(backwards), spread(forwards, backwards)


def _loss_of(
    session: Session, loss_fn: Callable[[Any], Any]
) -> Callable[[Mapping[Key, torch.Tensor]], torch.Tensor]:
    end = len(session.graph) - 1

    def run(handed: Mapping[Key, torch.Tensor]) -> torch.Tensor:
        loss = loss_of(session.result(handed[end], gate(handed[end].device)), loss_fn)
        if loss.numel() < handed[end].numel() and _shares(loss, handed[end]):
            return loss.clone()  # it must not lie in what it reads
        return loss

    return run


def _is_loss(loss: torch.Tensor, output: torch.Tensor) -> bool:
    """Whether the model's output is the loss already."""
    return loss.numel() == output.numel() and _shares(loss, output)


def _shares(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage() is other.untyped_storage()
