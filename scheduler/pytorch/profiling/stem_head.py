"""Profile what a model does before its blocks and after them, with the blocks left out."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from statistics import median
from typing import Any

import torch
from torch import nn

from scheduler.common.errors import UnsupportedModel
from scheduler.pytorch.model.call import Call
from scheduler.pytorch.model.calls import (
    CalledBlock,
    call_around,
    instead,
    own_parameters,
    used_outside,
)
from scheduler.pytorch.model.step import clear_gradients, loss_of
from scheduler.pytorch.observe.autograd import Aside, Join, Source, gate, nodes_below
from scheduler.pytorch.observe.clock import Clock
from scheduler.pytorch.observe.dispatch import tensors_of
from scheduler.pytorch.observe.peaks import Peaks
from scheduler.pytorch.observe.tracker import MemoryTracker, storage_bytes, unique_bytes
from scheduler.pytorch.profiling.marks import Ends, Forward, Side, Start, Turn

Loss = Callable[[Any], Any] | None


def see_ends(
    model: nn.Module, inputs: Any, loss_fn: Loss, blocks: list[CalledBlock], clock: Clock
) -> Ends:
    """Profile what runs before and after the blocks, with the blocks themselves left out.

    Also notes in each block which of its other arguments it passes a gradient to (its `sides`).

    Raises `UnsupportedModel` where what runs after the blocks reads more than the last block's
    output, or the loss has no gradient.
    """

    def step(tracked: bool) -> _Run:
        return _Run(model, inputs, loss_fn, blocks, clock, tracked=tracked)

    timed = clock.repeated(lambda: step(tracked=False).times)
    return step(tracked=True).ends([median(times) for times in zip(*timed, strict=True)])


class _Run:
    """One step of the model in which the blocks pass on what they are given."""

    start: Start
    forward: Forward
    turn: Turn | None = None
    _head_begins: Any  # the mark when the last block has passed on
    _into_blocks: Any  # the node that lets a gradient into the blocks
    _output_held: bool  # is the first activation still there when the last block is reached?
    _trained_after: list[torch.Tensor]

    def __init__(
        self,
        model: nn.Module,
        inputs: Any,
        loss_fn: Loss,
        blocks: list[CalledBlock],
        clock: Clock,
        *,
        tracked: bool,
    ) -> None:
        self.model, self.inputs = model, inputs
        self.blocks = blocks
        self.clock = clock
        self.tracker = MemoryTracker(self._see)
        self.side_bytes: dict[int, int] = {}  # of the blocks' other arguments, by storage
        self.sides: list[Side] = []
        self._given = False  # is the first activation one of the inputs?
        self._output: weakref.ref[Any] | None = None  # the storage of the first activation
        self._output_handed = False  # do blocks get it beside their own activation?
        self._after = False  # are we in the forward of what comes after the blocks?
        self._missed = dict.fromkeys(block.name for block in blocks)  # not called so far
        self._together = 0
        clear_gradients(model, inputs)
        with self.tracker if tracked else nullcontext(), ExitStack() as self._tags:
            self._step(loss_fn)
        clear_gradients(model, inputs)

    def _step(self, loss_fn: Loss) -> None:
        tracker, clock = self.tracker, self.clock
        begin = clock.mark()
        self._tags.enter_context(tracker.tag("before"))
        with instead(self.blocks, self._block):
            output = call_around(self.model, self.inputs)
            self._check_called()
            loss = loss_of(output, loss_fn)
            del output
        self._after = False
        self.forward = Forward(loss, self.start, tracker, clock)
        self._check(loss)
        with tracker.tag("sink"):
            root = torch.ones_like(loss)  # held, or it would be freed between the two backwards
        tracker.reset_peak()
        backward = clock.mark()
        loss.backward(root)
        finish = clock.mark()
        self._tags.close()
        if self.turn is None:  # nothing below the head is trained
            self._turn_around(None)
            passed = finish
        else:
            passed = self.turn.mark
        assert self.turn is not None
        # A weight that head and embedding share has one gradient, made anew from the two: what is
        # freed of the head's is taken off here.
        self.before_backward_peak = tracker.peak_bytes - self.turn.base - self.turn.side_gradients
        self.before_gradient = (
            tracker.live_bytes - self.turn.base - (0 if self._upstream else self.turn.kept)
        )
        del loss, root
        self.times = [
            clock.between(begin, self.start.mark),
            clock.between(self._head_begins, self.forward.mark),
            clock.between(backward, passed),
            clock.between(passed, finish),
        ]

    @property
    def _upstream(self) -> bool:
        """Whether a gradient goes from the blocks into what comes before them."""
        return self.start.needs_grad or bool(self.sides)

    def _check_called(self) -> None:
        for name in self._missed:
            raise UnsupportedModel(
                f"block {name!r} is called in one step and left out in another, so the blocks are "
                "no chain; where the model leaves out blocks at random, set the rate of it to 0"
            )

    def _check(self, loss: torch.Tensor) -> None:
        if not loss.requires_grad:
            raise UnsupportedModel("the loss does not depend on any parameter that requires grad")
        nodes = set(nodes_below(loss.grad_fn, self._into_blocks))
        goals = {node for node in (self.start.node, *(side.node for side in self.sides)) if node}
        if goals & nodes:
            raise UnsupportedModel(
                "what runs after the blocks also reads what runs before them, around all of them, "
                "so the model is not a chain"
            )
        leaves = [node for node in nodes if type(node).__name__ == "AccumulateGrad"]
        self._trained_after = [node.variable for node in leaves]

    def _see(self, *operation: Any) -> None:
        # What the model's own code still refers to is there while the head runs forward, too.
        if self._after:
            now = self.tracker.live("before") + self.tracker.live("after")
            self._together = max(self._together, now)

    def _turn_around(self, gradient: torch.Tensor | None) -> None:
        """Between the backward of what comes after the blocks and of what comes before them."""
        mark = self.clock.mark()
        there = {id(parameter) for parameter in self._trained_after}
        earlier = [p for p in used_outside(self.model, self.blocks) if id(p) not in there]
        self.turn = Turn(mark, gradient, earlier, self.start, self.sides, self.tracker)

    def _block(self, block: CalledBlock, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tracker = self.tracker
        self._missed.pop(block.name, None)
        call = Call.of(block.name, args, kwargs)
        others = call.others
        if self._output is None:
            self._output = weakref.ref(call.activation.untyped_storage())
        block.sides = self._aside(others)
        if block is self.blocks[0]:
            self.start = Start(call.activation, tracker, self.clock)
            given = {id(tensor.untyped_storage()) for tensor in tensors_of(self.inputs)}
            self._given = id(call.activation.untyped_storage()) in given
        passed = torch.empty(0, device=call.activation.device)
        del call, args, kwargs  # or this would be what still refers to the activation
        if block is not self.blocks[-1]:
            return block.rebuild(passed, others)
        self._check_called()
        assert block.output is not None
        self._output_held = self.start.storage() is not None
        self._tags.close()
        with tracker.tag("link"):
            # A copy, so that nothing but the head can keep it alive.
            link = block.output.clone()
        trained = any(own_parameters(b.module) for b in self.blocks)
        if self._upstream or trained:
            with tracker.tag("sink"):
                door = self._door(link.device)
            # A gate of our own would keep a gradient, which would count as one of the model's.
            source = Source if self._upstream else Aside
            link = source.apply(door, [link], self._turn_around)
        self._tags.enter_context(tracker.tag("after"))
        self._head_begins, self._into_blocks = self.clock.mark(), link.grad_fn
        self._after = True
        return block.rebuild(link, others)

    def _aside(self, others: Sequence[Any]) -> dict[int, int]:
        """Take note of a block's other arguments; the places of those that take a gradient."""
        known = [side.tensor for side in self.sides]
        places = {}
        for place, leaf in enumerate(others):
            if not isinstance(leaf, torch.Tensor):
                continue
            if self._output is not None and self._output() is leaf.untyped_storage():
                self._output_handed = True  # held as what it is: an activation, to the end
            elif size := self.tracker.disown(leaf):
                self.side_bytes[id(leaf.untyped_storage())] = size
            if not leaf.requires_grad or leaf.is_leaf:
                continue
            if all(leaf is not tensor for tensor in known):
                with self.tracker.tag("sink"):
                    self.sides.append(Side(leaf))
                known.append(leaf)
            places[place] = next(i for i, tensor in enumerate(known) if tensor is leaf)
        return places

    def _door(self, device: torch.device) -> torch.Tensor:
        """A scalar whose backward goes on into all that comes before the blocks."""
        scalars = [self.start.scalar] if self.start.needs_grad else []
        scalars += [side.scalar for side in self.sides]
        if not scalars:
            return gate(device)
        door: torch.Tensor = scalars[0] if len(scalars) == 1 else Join.apply(*scalars)
        return door

    def ends(self, times: list[float]) -> Ends:
        """What the tracked run has seen, with times from others."""
        start, forward, turn = self.start, self.forward, self.turn
        last = self.blocks[-1].output
        assert last is not None
        assert turn is not None
        side = sum(self.side_bytes.values())
        held = unique_bytes(self.inputs) + side + forward.loss_bytes
        after = Peaks(
            input_bytes=storage_bytes(last),
            output_bytes=forward.loss_bytes,
            saved_bytes=max(forward.after_live - forward.loss_bytes, 0),
            input_saved=forward.after_input_saved,
            output_saved=False,
            forward_peak=max(self._together - forward.before_kept, forward.after_peak),
            drop_peak=None,
            backward_peak=turn.after_peak,
            gradient_bytes=max(turn.after_live - forward.loss_bytes, 0),
            forward_time=times[1],
            recompute_time=times[1],
            backward_time=times[2],
        )
        # An activation that is an input is held by the caller, and not of what is made here.
        made = 0 if self._given else start.output_bytes
        kept = forward.before_output_kept and not self._given
        saved = forward.before_kept - (made if kept else 0)
        local = start.live_bytes - made - saved
        before = None
        if self._given and not self.sides:
            # Nothing is computed before the blocks, but the model may have made masks and such.
            held += saved
        else:
            output_saved = kept or self._output_handed
            if self._output_held and not output_saved:
                local += made
            before = Peaks(
                input_bytes=held,
                output_bytes=start.output_bytes,
                saved_bytes=saved,
                input_saved=True,
                output_saved=output_saved,
                forward_peak=start.forward_peak - side,
                drop_peak=None,
                # With the root of the backward, which a block that is run by itself has, too.
                backward_peak=self.before_backward_peak + forward.loss_bytes,
                gradient_bytes=max(self.before_gradient, 0),
                forward_time=times[0],
                recompute_time=times[0],
                backward_time=times[3],
            )
        return Ends(
            before, after, held, side, local, start.needs_grad, self._trained_after, turn.layout
        )
