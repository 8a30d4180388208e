"""Measure a training step: its peak, the forwards of each block, its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from scheduler.common.errors import UnsupportedModel
from scheduler.pytorch.checkpointing.followed import FollowedModel
from scheduler.pytorch.graph.apply import TracingModel
from scheduler.pytorch.model.autocast import Ambient, lifted
from scheduler.pytorch.model.fake import is_fake
from scheduler.pytorch.model.find import find_blocks
from scheduler.pytorch.model.step import (
    arguments_of,
    call_model,
    check_loss,
    clear_gradients,
    device_of,
    loss_of,
    prepared,
)
from scheduler.pytorch.model.wrappers import bare
from scheduler.pytorch.observe.dispatch import tensors_of
from scheduler.pytorch.observe.tracker import MemoryTracker, unique_bytes
from scheduler.pytorch.verification.counts import counted


@dataclass(frozen=True)
class Measurement:
    """One training step, forward and backward.

    Attributes
    ----------
    peak_bytes
        Most bytes live at once of everything but parameters, buffers and optimizer state: inputs,
        activations, gradients, temporaries. What a plan's ``peak_bytes`` predicts.
    forwards
        How often each block ran, by module name, recomputations included, also those by
        checkpoints inside it; of a graph's plan also its layers; empty where no blocks are named
        and the model has no stack.
    seconds
        Time of one step, not slowed down by measuring; None on fake tensors.
    left_bytes
        What a step leaves behind once its gradients are cleared; anything but 0 is kept by the
        model (a buffer that grows, an activation somebody holds).
    """

    peak_bytes: int
    forwards: dict[str, int]
    seconds: float | None
    left_bytes: int = 0


def measure(
    model: nn.Module,
    inputs: Any,
    loss_fn: Callable[[Any], Any] | None = None,
    blocks: str | Iterable[str] = "auto",
    *,
    fake: bool | None = None,
) -> Measurement:
    """Run training steps from empty gradients and measure them; nothing is changed by it.

    The model's output is let go before the backward, as ``loss = model(**batch).loss`` does; a
    training loop that keeps it (and with it the logits) needs more. Where autocast is on, the
    forward and the loss run under it and the backward outside, as torch recommends.

    Parameters
    ----------
    model
        With or without an applied plan.
    inputs, loss_fn, blocks, fake
        As for `profile`.

    Returns
    -------
    Measurement
        On CUDA the peak is the allocator's, on the CPU it is counted tensor by tensor (scratch
        memory inside a kernel is not seen there).
    """
    model = bare(model)
    check_loss(loss_fn)
    faking = is_fake(model) if fake is None else fake
    return measured(model, inputs, loss_fn, blocks, fake=faking, inside=True)


def measured(
    model: nn.Module,
    inputs: Any,
    loss_fn: Callable[[Any], Any] | None,
    blocks: str | Iterable[str],
    *,
    fake: bool,
    inside: bool = False,
) -> Measurement:
    """`measure` of a model without wrapper; for `inside` see `counted`."""
    if isinstance(followed := model.__dict__.get("forward"), FollowedModel):
        args, kwargs = arguments_of(inputs)
        followed.follow(args, kwargs)  # now: what a step changes on the model is put back
    with prepared(model, inputs, fake=fake) as (model, inputs):
        device = device_of(model, inputs)
        with lifted(device) as ambient:
            with ambient.inside(model, cache=False):
                names = _names(model, blocks, inputs)
            step = TrainingStep(model, inputs, loss_fn, ambient)
            seconds = None if fake else _seconds(step, device)
            planned = model.__dict__.get("forward")
            if isinstance(planned, FollowedModel):
                planned = planned.original
            if fake and isinstance(planned, TracingModel):
                step.run()  # the first traces the model
            with counted(model, names, inside=inside) as forwards:
                if device.type == "cuda" and not fake:
                    peak, left = _allocated(step, device)
                else:
                    peak, left = _tracked(step)
            if isinstance(planned, TracingModel):
                forwards |= planned.counts
            return Measurement(peak, forwards, seconds, left)


def _names(model: nn.Module, blocks: str | Iterable[str], inputs: Any) -> list[str]:
    """Of the blocks to be counted; none where the model has no stack, or none is named."""
    if blocks == []:
        return []
    try:
        return find_blocks(model, blocks, inputs)
    except UnsupportedModel:
        if blocks != "auto":
            raise
        return []


@dataclass(frozen=True)
class TrainingStep:
    """A training step up to the optimizer, from empty gradients; its forward under `ambient`."""

    model: nn.Module
    inputs: Any
    loss_fn: Callable[[Any], Any] | None
    ambient: Ambient

    def run(self) -> torch.Tensor:
        """Forward and backward; the loss, without its graph."""
        self.clear()
        torch.clear_autocast_cache()  # a step under autocast makes its own
        loss: torch.Tensor = self.ambient.around(self._loss, cache=True)()
        loss.backward()
        return loss.detach()

    def _loss(self) -> torch.Tensor:
        return loss_of(call_model(self.model, self.inputs), self.loss_fn)

    def clear(self) -> None:
        """Set all gradients to None."""
        clear_gradients(self.model, self.inputs)


def _tracked(step: TrainingStep) -> tuple[int, int]:
    tracker = MemoryTracker()
    with tracker:
        for tensor in tensors_of(step.inputs):
            tracker.count(tensor)
        given = tracker.live_bytes
        step.run()
        step.clear()
    return tracker.peak_bytes, tracker.live_bytes - given


def _allocated(step: TrainingStep, device: torch.device) -> tuple[int, int]:
    step.clear()
    # What is still running would count in the peak.
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step.run()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before + unique_bytes(step.inputs)
    step.clear()
    return peak, torch.cuda.memory_allocated(device) - before


def _seconds(step: TrainingStep, device: torch.device) -> float:
    best = float("inf")
    for _ in range(2):  # the first warms up
        start = time.perf_counter()
        step.run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return best
