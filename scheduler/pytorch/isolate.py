"""Run one layer by itself, forward and backward, and see what it keeps and needs.

Everything is read off from what is alive, not from what autograd says it saves: after the forward,
whatever storages are alive and were made by the layer are its saved set, whoever holds them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.batchnorm import _BatchNorm

from scheduler.errors import UnsupportedModel
from scheduler.layers import LayerCost
from scheduler.pytorch.blocks import clear_gradients
from scheduler.pytorch.clock import Clock
from scheduler.pytorch.tracker import MemoryTracker, storage_bytes


class Source(torch.autograd.Function):
    """Make a tensor the input of a graph, and see its gradient go by.

    ``Source.apply(gate, [tensor], seen)``: the gate is any scalar that requires grad. ``seen`` is
    called with the gradient, which goes no further; the gate's own graph, if it has one, is run
    backward next. A plain leaf will not do: it would be held to the end, and its gradient might be
    copied.
    """

    @staticmethod
    def forward(
        ctx: Any, gate: torch.Tensor, box: list[Any], seen: Callable[[torch.Tensor], Any]
    ) -> torch.Tensor:
        """Return the tensor in the box."""
        ctx.seen = seen
        ctx.device = gate.device
        tensor: torch.Tensor = box.pop()
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Show the gradient."""
        ctx.seen(grad_outputs[0])
        return torch.ones((), device=ctx.device), None, None


class Sink(torch.autograd.Function):
    """Make a scalar whose backward sends the gradient in the box into ``tensor``'s graph."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, box: list[Any]) -> torch.Tensor:
        """Return a scalar; hold on to nothing."""
        ctx.box = box
        return torch.zeros((), device=tensor.device)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Hand over the gradient, without keeping it."""
        return ctx.box.pop(), None


def gate(device: torch.device) -> torch.Tensor:
    """Return a leaf that requires grad, to open a graph with."""
    return torch.zeros((), device=device, requires_grad=True)


@dataclass(frozen=True)
class Peaks:
    """Bytes seen while a layer ran by itself; times in ms.

    `repeatable`: running its forward again changes nothing else.
    """

    input_bytes: int
    output_bytes: int
    saved_bytes: int
    input_saved: bool
    output_saved: bool
    forward_peak: int
    drop_peak: int | None
    backward_peak: int
    gradient_bytes: int
    forward_time: float
    recompute_time: float
    backward_time: float
    repeatable: bool = True

    @property
    def spare_bytes(self) -> int:
        """Bytes by which the backward's peak is above every forward's, with the same layers below.

        A plan holds for the layers below at least as much during the backward as during the first
        forward, so this much more may be live in the first forward without setting the peak.
        """
        forward = max(self.forward_peak, self.drop_peak or 0)
        return self.backward_peak - forward - (0 if self.input_saved else self.input_bytes)

    def cost(self, name: str, *, held_bytes: int = 0, recomputable: bool = True) -> LayerCost:
        """Express the peaks as the cost model does, as transients above what it counts.

        `held_bytes` are booked as saved beside what the layer saves itself.
        """
        x, w = self.output_bytes, self.saved_bytes + held_bytes
        held = w + x * (2 if self.output_saved else 1)
        made = self.input_bytes + self.gradient_bytes
        above = self.backward_peak - held - made
        transient, overlap = max(above, 0), max(-above, 0)
        return LayerCost(
            name,
            forward_time=self.forward_time,
            backward_time=self.backward_time,
            recompute_time=min(self.recompute_time, self.forward_time),
            output_bytes=x,
            saved_bytes=w,
            forward_transient_bytes=max(self.forward_peak - x - w, 0),
            drop_transient_bytes=None if self.drop_peak is None else max(self.drop_peak - x, 0),
            backward_transient_bytes=transient,
            backward_overlap_bytes=min(overlap, held, made),
            gradient_bytes=self.gradient_bytes,
            input_saved=self.input_saved,
            output_saved=self.output_saved,
            recomputable=recomputable and self.repeatable,
        )


Forward = Callable[[torch.Tensor], torch.Tensor]


def see_layer(
    forward: Forward,
    template: torch.Tensor,
    needs_grad: bool,
    clock: Clock,
    module: nn.Module,
) -> Peaks:
    """Profile one layer.

    Parameters
    ----------
    forward
        Runs the layer: a tensor in, a tensor out.
    template
        A tensor like the layer's input; not changed.
    needs_grad
        Does the layer's input require a gradient?
    clock
        Times it.
    module
        The layer's own, whose gradients are cleared.

    Raises
    ------
    UnsupportedModel
        The layer changes its input in place: what is recomputed from it would be wrong.
    """
    door = gate(template.device) if needs_grad else None
    version, buffers = template._version, buffer_versions(module)
    times = _times(forward, template, door, clock, module)
    if template._version != version:
        raise UnsupportedModel("it changes its input in place; use the version that does not")
    repeatable = buffers == buffer_versions(module)
    clear_gradients(module, ())
    tracker = MemoryTracker()
    with tracker:
        with tracker.tag("drop"), saved_tensors_hooks(lambda tensor: None, _unpack):
            out = forward(_input(door, template, []))
        drop_peak, output_bytes = tracker.peak("drop"), storage_bytes(out)
        own = tracker.disown(out) > 0  # not a view of the input
        del out
        gradients: list[Any] = []
        box: list[Any] = []
        with tracker.tag("input"):
            source = [template.clone()]
        with tracker.tag("layer"):
            out = forward(_input(door, source.pop(), gradients))
            forward_peak = tracker.peak("layer")
            if out.requires_grad:
                box.append(torch.ones_like(out))
            with tracker.tag("sink"):
                scalar = Sink.apply(out, box)
            with_output = tracker.live("layer")
            del out
            saved = tracker.live("layer") - sum(storage_bytes(d) for d in box)
            input_saved = tracker.live("input") > 0
            if own:
                output_saved = with_output == tracker.live("layer") and saved >= output_bytes
            else:
                output_saved = input_saved
            if output_saved and own:
                saved -= output_bytes
            tracker.reset_peak()
            if scalar.requires_grad:
                scalar.backward()
            backward_peak = tracker.peak("layer")
            stays = tracker.live("layer")
            made = sum(tracker.disown(d) for d in gradients if d is not None)
    clear_gradients(module, ())
    return Peaks(
        input_bytes=storage_bytes(template),
        output_bytes=output_bytes,
        saved_bytes=saved,
        input_saved=input_saved,
        output_saved=output_saved,
        forward_peak=forward_peak,
        drop_peak=drop_peak,
        backward_peak=backward_peak,
        gradient_bytes=stays - made if scalar.requires_grad else 0,
        forward_time=times[0],
        recompute_time=times[1],
        backward_time=times[2],
        repeatable=repeatable,
    )


def buffer_versions(module: nn.Module) -> list[Any]:
    """Identity and version of every buffer that a forward must not change to be run again.

    Batch norm's are left out: `apply` sees to them.
    """
    return [
        (id(buffer), buffer._version)
        for part in module.modules()
        if not isinstance(part, _BatchNorm)
        for buffer in part.buffers(recurse=False)
    ]


def _input(door: torch.Tensor | None, tensor: torch.Tensor, gradients: list[Any]) -> torch.Tensor:
    if door is None:
        return tensor.detach()
    result: torch.Tensor = Source.apply(door, [tensor], gradients.append)
    return result


def _times(
    forward: Forward,
    template: torch.Tensor,
    door: torch.Tensor | None,
    clock: Clock,
    module: nn.Module,
) -> tuple[float, float, float]:
    """Medians of the forward, the forward up to the last tensor it saves, the backward, in ms."""
    forwards, ratios, backwards = [], [], []
    for attempt in range(-1, clock.repeats):  # the first run warms up
        clear_gradients(module, ())
        with clock.running():
            start = clock.mark()
            out = forward(_input(door, template, []))
            end = clock.mark()
            box = [torch.ones_like(out)]
            scalar = Sink.apply(out, box)
            del out
            begin = clock.mark()
            if scalar.requires_grad:
                scalar.backward()
            finish = clock.mark()
            # Where torch's recomputation stops: when the last tensor to be saved is packed.
            marks = _saving_marks(forward, _input(door, template, []), clock)
        if attempt >= 0 or clock.repeats == 1:
            forwards.append(clock.between(start, end))
            backwards.append(clock.between(begin, finish))
            whole = clock.between(marks[0], marks[-1])
            ratios.append(clock.between(marks[0], marks[-2]) / whole if whole else 0.0)
    time = median(forwards)
    return time, time * min(median(ratios), 1.0), median(backwards)


def _unpack(packed: Any) -> torch.Tensor:
    raise AssertionError("a forward that saves nothing has no backward")


def _saving_marks(forward: Forward, x: torch.Tensor, clock: Clock) -> list[Any]:
    """Marks at the start of a forward, at each tensor it saves, and at its end."""
    marks = [clock.mark()]
    with saved_tensors_hooks(lambda tensor: marks.append(clock.mark()), _unpack):
        forward(x)
    marks.append(clock.mark())
    return marks
