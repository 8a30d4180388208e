"""What is noted of a step at each of its moments, and what it adds up to for both ends."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from scheduler.pytorch.observe.autograd import Sink
from scheduler.pytorch.observe.clock import Clock
from scheduler.pytorch.observe.layer import Layout, layout_of
from scheduler.pytorch.observe.peaks import Peaks
from scheduler.pytorch.observe.tracker import MemoryTracker, storage_bytes


class Side:
    """A tensor beside the activation that takes a gradient from the blocks."""

    tensor: torch.Tensor | None

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.node = tensor.grad_fn
        self.box: list[Any] = []
        self.scalar = Sink.apply(tensor, self.box)

    def let_go(self) -> int:
        """Put a gradient into the box, in place of the tensor; its bytes."""
        assert self.tensor is not None
        self.box.append(torch.ones_like(self.tensor))
        self.tensor = None
        return storage_bytes(self.box[0])


class Start:
    """What is seen when the first block is reached."""

    def __init__(self, activation: torch.Tensor, tracker: MemoryTracker, clock: Clock) -> None:
        self.mark = clock.mark()
        self.shape, self.dtype = activation.shape, activation.dtype
        self.device = activation.device
        self.needs_grad = activation.requires_grad
        self.storage = weakref.ref(activation.untyped_storage())
        self.output_bytes = storage_bytes(activation)
        self.forward_peak = tracker.peak("before")
        self.live_bytes = tracker.live("before")
        self.box: list[Any] = []
        with tracker.tag("sink"):
            self.scalar = Sink.apply(activation, self.box)

    @property
    def node(self) -> Any:
        """What made the activation, in autograd's graph."""
        return self.scalar.grad_fn.next_functions[0][0] if self.needs_grad else None


class Forward:
    """What is seen when the loss is there."""

    def __init__(
        self, loss: torch.Tensor, start: Start, tracker: MemoryTracker, clock: Clock
    ) -> None:
        self.mark = clock.mark()
        self.loss_bytes = storage_bytes(loss)
        self.before_kept = tracker.live("before")
        self.before_output_kept = start.storage() is not None
        self.after_peak = tracker.peak("after")
        self.after_live = tracker.live("after")
        self.after_input_saved = tracker.live("link") > 0


class Turn:
    """What is seen between the two backwards: of what comes after the blocks, and before them.

    `base` is what is live then and not of what comes before them; `kept` what is. `earlier` are
    parameters to which the blocks' own backward has given a gradient by now.
    """

    def __init__(
        self,
        mark: Any,
        gradient: torch.Tensor | None,
        earlier: Iterable[torch.Tensor],
        start: Start,
        sides: list[Side],
        tracker: MemoryTracker,
    ) -> None:
        self.mark = mark
        self.after_peak = tracker.peak("after")
        if gradient is not None:
            tracker.disown(gradient)  # it goes on into the blocks
        self.after_live = tracker.live("after")
        with tracker.tag("sink"):
            for parameter in earlier:
                parameter.grad = torch.zeros_like(parameter)
        self.kept = tracker.live("before")
        self.base = tracker.live_bytes - self.kept
        with tracker.tag("before"):
            if start.needs_grad:
                start.box.append(torch.ones(start.shape, dtype=start.dtype, device=start.device))
            self.side_gradients = sum(side.let_go() for side in sides)
        tracker.reset_peak()
        self.layout = None if gradient is None else layout_of(gradient)


@dataclass(frozen=True)
class Ends:
    """What a model does before its blocks (None: nothing) and after them.

    `held_bytes` are there from beginning to end: the inputs, the loss, and whatever the blocks are
    handed beside the activation, such as masks and position embeddings: `side_bytes` of it.
    `local_bytes` is what the model's own code still refers to while the blocks run forward for the
    first time, and lets go before the backward. `needs_grad`: of the first block's input.
    `trained_after` are parameters to which what comes after the blocks gives a gradient, `layout`
    the strides of the one that it hands to the last block, see `IsolatedLayer`.
    """

    before: Peaks | None
    after: Peaks
    held_bytes: int
    side_bytes: int
    local_bytes: int
    needs_grad: bool
    trained_after: list[torch.Tensor]
    layout: Layout | None
