"""From a model and a batch to layer costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from scheduler.costs import CostGraph
from scheduler.errors import UnsupportedModel
from scheduler.pytorch.blocks import (
    check_unwrapped,
    find_blocks,
    gradient_holders,
    without_cache,
)
from scheduler.pytorch.capture import Block, find_calls, see_ends
from scheduler.pytorch.clock import Clock, Roofline, RooflineClock
from scheduler.pytorch.fake import faked, is_fake
from scheduler.pytorch.isolate import Peaks, see_layer


def profile(
    model: nn.Module,
    inputs: Any,
    loss_fn: Callable[[Any], Any] | None = None,
    blocks: str | Iterable[str] = "auto",
    *,
    fake: bool | None = None,
    roofline: Roofline | None = None,
) -> CostGraph:
    """Measure what each layer of a model costs in one training step.

    The layers are what runs before the blocks ("embedding"), each block under its module name, and
    what runs after them with the loss ("head"). Each distinct block is run by itself, once for the
    bytes and a few times for the clock, so that the whole step is never in memory. The model, its
    gradients, its buffers and the random state are left as they were.

    Parameters
    ----------
    model
        In the mode it will be trained in.
    inputs
        A tensor, a tuple of arguments, or a dict of keyword arguments, of the size to be trained.
    loss_fn
        ``loss_fn(output)`` gives the scalar to differentiate; default the output's own ``loss``.
    blocks
        "auto" (the children of an `nn.Sequential`, or the model's one stack of equal blocks), or
        the blocks' module names in the order in which they run.
    fake
        True: work on fake tensors, with neither memory nor arithmetic; bytes are exact and times
        come from `roofline`. Default: where the model's tensors are fake or on the meta device.
    roofline
        The machine whose times a fake profile estimates.

    Returns
    -------
    CostGraph
        A chain. Times in ms, sizes in bytes. `input_bytes` holds the inputs and what the blocks
        are handed beside the activation (masks, position embeddings).

    Raises
    ------
    UnsupportedModel
        The blocks cannot be found, are not a chain, or do something a plan cannot honour.
    """
    names = find_blocks(model, blocks)
    check_unwrapped(model, names)
    with ExitStack() as stack:
        if is_fake(model) if fake is None else fake:
            model, inputs = stack.enter_context(faked(model, inputs))
            clock: Clock = RooflineClock(roofline or Roofline())
        else:
            clock = Clock(device_of(model, inputs))
        stack.enter_context(untouched(model, inputs))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(without_cache(model))
        return _profile(model, inputs, loss_fn, names, clock)


def _profile(
    model: nn.Module,
    inputs: Any,
    loss_fn: Callable[[Any], Any] | None,
    names: list[str],
    clock: Clock,
) -> CostGraph:
    found = find_calls(model, inputs, names)
    ends = see_ends(model, inputs, loss_fn, found, clock)
    seen = _see_blocks(found, ends.needs_grad, clock)
    # What the model's code refers to while its blocks run forward matters only where a forward
    # could set the peak. There it is counted until the end: the safe side.
    local = max(ends.local_bytes, 0)
    if all(peaks.spare_bytes >= local + ends.after.output_bytes for peaks in seen):
        local = 0
    layers = []
    if ends.before is not None:
        layers.append(
            ends.before.cost(_free("embedding", model), held_bytes=local, recomputable=False)
        )
        local = 0
    layers.extend(peaks.cost(block.name) for peaks, block in zip(seen, found, strict=True))
    last = "loss" if isinstance(model, nn.Sequential) else "head"
    layers.append(ends.after.cost(_free(last, model), recomputable=False))
    return CostGraph(
        tuple(layers),
        input_bytes=ends.held_bytes + local,
        name=type(model).__name__,
        time_unit="ms",
    )


def _see_blocks(found: list[Block], needs_grad: bool, clock: Clock) -> list[Peaks]:
    """See each block; those of one kind, with or without a gradient to pass on, only once."""
    calls = {block.kind: block.call for block in found if block.call is not None}
    seen: dict[tuple[int, bool], Peaks] = {}
    result = []
    for block in found:
        key = (block.kind, needs_grad)
        if key not in seen:
            call = calls[block.kind]
            assert call is not None

            def forward(x: torch.Tensor, block: Block = block, call: Any = call) -> torch.Tensor:
                output = call.run(block.module.forward, x)
                return output if isinstance(output, torch.Tensor) else output[0]

            try:
                seen[key] = see_layer(forward, call.activation, needs_grad, clock, block.module)
            except UnsupportedModel as error:
                kind = type(block.module).__name__
                raise UnsupportedModel(f"block {block.name!r} ({kind}): {error}") from None
        needs_grad = needs_grad or any(p.requires_grad for p in block.module.parameters())
        result.append(seen[key])
    return result


def _free(name: str, model: nn.Module) -> str:
    return f"({name})" if name in dict(model.named_modules()) else name


def device_of(model: nn.Module, inputs: Any) -> torch.device:
    """Device of the model, or of its inputs if it has no parameters."""
    tensors = [*model.parameters(), *(t for t in tree_leaves(inputs) if torch.is_tensor(t))]
    return next((t.device for t in tensors), torch.device("cpu"))


@contextmanager
def untouched(model: nn.Module, inputs: Any) -> Iterator[None]:
    """Put back gradients, buffers and the random state."""
    gradients = [(tensor, tensor.grad) for tensor in gradient_holders(model, inputs)]
    buffers = [(b, b.detach().clone()) for b in model.buffers()]
    devices = {t.device for t, _ in gradients if t.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
            for tensor, gradient in gradients:
                tensor.grad = gradient
