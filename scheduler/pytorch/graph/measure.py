"""Run one layer of a graph by itself, as a plan runs it, and see what it keeps and needs."""

from __future__ import annotations

from statistics import median

import torch

from scheduler.pytorch.graph.layer import Task, back, drop, keep
from scheduler.pytorch.graph.tensors import Gradients, Key, Table
from scheduler.pytorch.observe.clock import Clock
from scheduler.pytorch.observe.peaks import Peaks
from scheduler.pytorch.observe.tracker import MemoryTracker, storage_bytes, unique_bytes


def see_task(task: Task, table: Table, earlier: frozenset[Key], first: bool, clock: Clock) -> Peaks:
    """Profile one layer.

    Parameters
    ----------
    task
        The layer.
    table
        Holds what it reads; not changed.
    earlier
        What already has a gradient, from later layers, when its backward begins.
    first
        It reads no other layer: the gradients of the model's inputs are its input's.
    clock
        Times it.
    """
    forward_time, backward_time = _times(task, table, clock)
    tracker = MemoryTracker()
    with tracker:
        with tracker.tag("drop"):
            output = drop(task, table)
        drop_peak, output_bytes = tracker.peak("drop"), storage_bytes(output)
        del output
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
        facts = kept.input_read, kept.output_read
        back(kept, task.output, gradients, own)
        backward_peak = tracker.peak_bytes - others
    stay = [
        gradient
        for key, gradient in gradients.items()
        if key not in earlier and (isinstance(key, str) or (key < 0 and not first))
    ]
    return Peaks(
        input_bytes=sum(storage_bytes(table.get(key)) for key in task.inputs if _layer(key)),
        output_bytes=output_bytes,
        saved_bytes=saved,
        input_saved=facts[0],
        output_saved=facts[1],
        forward_peak=forward_peak,
        drop_peak=drop_peak,
        backward_peak=backward_peak,
        gradient_bytes=unique_bytes(stay),
        forward_time=forward_time,
        recompute_time=forward_time,
        backward_time=backward_time,
    )


def _copy(task: Task, table: Table, own: Table) -> None:
    for key in task.inputs:
        own.put(key, table.get(key).clone())


def _times(task: Task, table: Table, clock: Clock) -> tuple[float, float]:
    """Medians of the forward and the backward, in ms."""
    own = Table()
    for key in task.inputs:
        own.put(key, table.get(key))

    def run() -> tuple[float, float]:
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
    return median(forwards), median(backwards)


def _layer(key: Key) -> bool:
    return isinstance(key, int) and key >= 0
