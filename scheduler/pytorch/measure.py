"""Measure a training step: its peak, the forwards of each block, its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from scheduler.pytorch.blocks import (
    Replaced,
    call_model,
    clear_gradients,
    find_blocks,
    loss_of,
    without_cache,
)
from scheduler.pytorch.fake import faked, is_fake
from scheduler.pytorch.profile import device_of, untouched
from scheduler.pytorch.tracker import MemoryTracker, unique_bytes


@dataclass(frozen=True)
class Measurement:
    """One training step, forward and backward.

    Attributes
    ----------
    peak_bytes
        Most bytes live at once of everything but parameters, buffers and optimizer state: inputs,
        activations, gradients, temporaries. What a plan's ``peak_bytes`` predicts.
    forwards
        How often each block's forward was entered, by module name.
    seconds
        Time of one step, not slowed down by measuring; None on fake tensors.
    """

    peak_bytes: int
    forwards: dict[str, int]
    seconds: float | None


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
    training loop that keeps it (and with it the logits) needs more.

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
    names = find_blocks(model, blocks)
    with ExitStack() as stack:
        faking = is_fake(model) if fake is None else fake
        if faking:
            model, inputs = stack.enter_context(faked(model, inputs))
        stack.enter_context(untouched(model, inputs))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(without_cache(model))
        device = device_of(model, inputs)
        seconds = None
        if not faking:
            seconds = _seconds(model, inputs, loss_fn, device)
        with _counted(model, names) as forwards:
            if device.type == "cuda" and not faking:
                peak = _allocator_peak(model, inputs, loss_fn, device)
            else:
                peak = _tracked_peak(model, inputs, loss_fn)
        return Measurement(peak, forwards, seconds)


def _step(model: nn.Module, inputs: Any, loss_fn: Callable[[Any], Any] | None) -> None:
    clear_gradients(model, inputs)
    torch.clear_autocast_cache()  # a step under autocast makes its own
    loss_of(call_model(model, inputs), loss_fn).backward()


def _tracked_peak(model: nn.Module, inputs: Any, loss_fn: Callable[[Any], Any] | None) -> int:
    tracker = MemoryTracker()
    with tracker:
        for leaf in tree_leaves(inputs):
            if isinstance(leaf, torch.Tensor):
                tracker.count(leaf)
        _step(model, inputs, loss_fn)
    return tracker.peak_bytes


def _allocator_peak(
    model: nn.Module, inputs: Any, loss_fn: Callable[[Any], Any] | None, device: torch.device
) -> int:
    clear_gradients(model, inputs)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    _step(model, inputs, loss_fn)
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before + unique_bytes(inputs)


def _seconds(
    model: nn.Module,
    inputs: Any,
    loss_fn: Callable[[Any], Any] | None,
    device: torch.device,
) -> float:
    best = float("inf")
    for _ in range(2):  # the first warms up
        start = time.perf_counter()
        _step(model, inputs, loss_fn)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return best


@contextmanager
def _counted(model: nn.Module, names: list[str]) -> Iterator[dict[str, int]]:
    """Count entries into each block's own forward, recomputations included."""
    counts = dict.fromkeys(names, 0)

    def counting(name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return forward(*args, **kwargs)

        return run

    undo: list[partial[None]] = []
    for name in names:
        module = model.get_submodule(name)
        forward = module.__dict__.get("forward")
        if isinstance(forward, Replaced):  # a recomputation enters only what the plan replaced
            original = forward.original
            forward.original = counting(name, original)
            undo.append(partial(setattr, forward, "original", original))
        elif forward is None:
            module.forward = counting(name, module.forward)
            undo.append(partial(delattr, module, "forward"))
        else:
            module.forward = counting(name, forward)
            undo.append(partial(setattr, module, "forward", forward))
    try:
        yield counts
    finally:
        for step in undo:
            step()
