"""What is noted of a step at each of its moments, and what it adds up to for both ends."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch

from scheduler.pytorch.observe.autograd import Sink
from scheduler.pytorch.observe.clock import Clock
from scheduler.pytorch.observe.layer import Layout
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


@dataclass(frozen=True)
class Link:
    """What is seen when the last block has passed on: `node` lets a gradient into the blocks."""

    mark: Any
    output_held: bool
    node: Any


@dataclass(frozen=True)
class Forward:
    """What is seen when the loss is there."""

    mark: Any
    loss_bytes: int
    before_kept: int
    before_output_kept: bool
    after_peak: int
    after_live: int
    after_input_saved: bool


@dataclass(frozen=True)
class Turn:
    """What is seen between the two backwards: of what comes after the blocks, and before them.

    `base` is what is live then and not of what comes before them; `kept` what is.
    """

    mark: Any
    after_peak: int
    after_gradient: int
    base: int
    kept: int
    side_gradients: int
    layout: Layout | None


@dataclass(frozen=True)
class Ends:
    """What a model does before its blocks (None: nothing) and after them.

    Attributes
    ----------
    held_bytes
        What is there from beginning to end: the inputs, the loss, and whatever the blocks are
        handed beside the activation, such as masks and position embeddings: `side_bytes` of it.
    local_bytes
        What the model's own code still refers to while the blocks run forward for the first time,
        and lets go before the backward.
    needs_grad
        Does the first block's input require a gradient?
    trained_after
        Parameters to which what comes after the blocks gives a gradient.
    layout
        Strides of the gradient that it hands to the last block, see `IsolatedLayer`.
    """

    before: Peaks | None
    after: Peaks
    held_bytes: int
    side_bytes: int
    local_bytes: int
    needs_grad: bool
    trained_after: list[torch.Tensor]
    layout: Layout | None
