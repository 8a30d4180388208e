"""Segments that the model runs block by block: what is open between two of their blocks.

A checkpoint is torch's frame: pack and unpack hooks around what it drops, and a function that runs
it again. `torch.utils.checkpoint.checkpoint` puts the hooks around one call. Here they are put
around each block that the model calls by itself, so that every block runs in its place, with its
own arguments and hooks; between two blocks nothing is open, whatever the model does there.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.utils.checkpoint as of_torch
from torch.autograd.graph import saved_tensors_hooks

from scheduler.common.errors import UnsupportedModel
from scheduler.export.standalone.state import Snapshot
from scheduler.pytorch.checkpointing.recompute import Recomputation
from scheduler.pytorch.checkpointing.selective import Selection
from scheduler.pytorch.model.autocast import Ambient
from scheduler.pytorch.model.call import Call
from scheduler.pytorch.model.rng import GENERATORS, torch_generators
from solvers.schedule import Item, Keep

_GENERATOR = getattr(of_torch, "_checkpoint_without_reentrant_generator", None)
_HOOKS = getattr(of_torch, "_checkpoint_hook", None)
# Before torch 2.9 they did not take early_stop, which comes before the arguments to be saved.
_TAKE_EARLY_STOP = "early_stop" in inspect.signature(of_torch.checkpoint).parameters


_NOTHING: AbstractContextManager[Any] = nullcontext()  # one for all: this is on every call's way


def stopping(early: bool) -> tuple[AbstractContextManager[Any], dict[str, Any]]:
    """A context and keywords to make a checkpoint with.

    `early`: its recomputation ends with the last tensor that is saved, else where the body ends.
    """
    if _TAKE_EARLY_STOP:
        return _NOTHING, {"early_stop": early}
    if early:
        return _NOTHING, {}
    return of_torch.set_checkpoint_early_stop(False), {}  # also of the checkpoints inside


def frame(
    body: Callable[[torch.Tensor], Any],
    activation: torch.Tensor,
    again: AbstractContextManager[Any],
    *,
    early: bool,
) -> saved_tensors_hooks:
    """The hooks of a new checkpoint that starts at `activation`, to be put around blocks.

    What is saved under the hooks is dropped, and comes back by running `body` on the activation,
    in the context `again`; see `stopping` for `early`.

    Raises `UnsupportedModel` where torch makes its checkpoints in another way.
    """
    if _GENERATOR is not None and _HOOKS is not None:
        context, keywords = stopping(early)
        with context:
            settings = (True, lambda: (nullcontext(), again), "default", False, *keywords.values())
            steps = _GENERATOR(body, *settings, activation)
            next(steps)
        # torch hands its frame to nobody: between its two halves it is a local of the generator.
        made = steps.gi_frame.f_locals.get("new_frame")
        next(steps, None)
        if made is not None:
            hooks: saved_tensors_hooks = _HOOKS(made)
            return hooks
    raise UnsupportedModel(
        f"torch {torch.__version__} does not let a checkpoint be put around several blocks one by "
        "one, which segments of several blocks need; solve with method='every-layer'"
    )


@dataclass
class Calls:
    """How the blocks of a segment were called, in one forward; what its recomputations know.

    Attributes
    ----------
    calls
        Of the blocks called so far, by their numbers, each without its activation.
    drawn
        By the number of a block: puts the generators where they were when the block began, if the
        model drew from them since the block before.
    selections
        By the number of a block that is kept under an option: the results that it handed out last.
    states
        By the number of a block that has run: what it has changed beside its output, as it was.
    """

    names: Sequence[str]
    calls: dict[int, Call] = field(default_factory=dict)
    drawn: dict[int, list[Callable[[], None]]] = field(default_factory=dict)
    selections: dict[int, Selection] = field(default_factory=dict)
    states: dict[int, Snapshot | None] = field(default_factory=dict)

    def draw_from(self, number: int) -> None:
        """Put the generators where they were when a block began that is to run again."""
        for put in self.drawn.get(number, ()):
            put()

    def check_complete(self) -> None:
        """Raise `UnsupportedModel` where not all blocks were called."""
        if len(self.calls) < len(self.names):
            if torch._guards.TracingContext.try_get() is not None:  # as torch 2.4 does
                raise UnsupportedModel(
                    f"torch {torch.__version__} cannot compile a block inside a checkpoint: while "
                    f"it compiles {self.names[len(self.calls) - 1]!r} it runs the segment again; "
                    "do not compile the blocks, or use a newer torch"
                )
            raise UnsupportedModel(
                f"block {self.names[len(self.calls)]!r} was not called, though the plan runs it in "
                "one segment with others; blocks that may be skipped, or that run twice in a row, "
                "cannot share it"
            )


@dataclass(frozen=True)
class SegmentStep:
    """What happens at one block of a segment: which checkpoints begin, and how many end with it.

    The outer ones first; last the block itself, if it is kept under an option.
    """

    opens: tuple[Item, ...]
    keep: Keep
    closes: int


def steps_of(item: Item) -> list[SegmentStep]:
    """Take a segment apart, block by block."""
    if isinstance(item, Keep):
        return [SegmentStep((), item, 0) if item.option is None else SegmentStep((item,), item, 1)]
    steps = [step for inner in item.body for step in steps_of(inner)]
    steps[0] = replace(steps[0], opens=(item, *steps[0].opens))
    steps[-1] = replace(steps[-1], closes=steps[-1].closes + 1)
    return steps


class Passage:
    """One forward of a segment of several blocks, while it goes on.

    It is let go when it is over, when a block fails, or when the activation between two blocks
    dies: a step that fails half way leaves nothing behind.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.calls = Calls(names)
        self.reached = self._first = 0
        self._names = names
        self._open: list[tuple[saved_tensors_hooks, Recomputation]] = []
        self._between: _Between | None = None

    def let_go(self) -> None:
        """Forget everything: each open checkpoint holds its input."""
        self.calls, self._open, self._between = Calls(self._names), [], None

    def begin(self, call: Call) -> None:
        """Take note of a call; `UnsupportedModel` where it is not with the last block's result."""
        names, number = self._names, self.reached
        if number > self._first:
            if self._between is None or not self._between.is_handed(call.activation):
                raise UnsupportedModel(
                    f"block {names[number]!r} does not receive what block {names[number - 1]!r} "
                    "returned, though both are in one segment of the plan: the model runs code of "
                    "its own between them, or a hook changes it"
                )
            if self._between.autocast != Ambient(call.activation.device).dtype:
                raise UnsupportedModel(
                    f"block {names[number]!r} runs under another autocast than block "
                    f"{names[number - 1]!r}, with which it shares a segment of the plan; solve "
                    "with method='every-layer'"
                )
            if moved := self._between.moved():
                self.calls.drawn[number] = moved
        self._between = None
        self.calls.calls[number] = call.without_activation()

    def follows(self, number: int, activation: torch.Tensor) -> bool:
        """Whether a block is one of this passage, after those that have run."""
        between = self._between
        return between is not None and self.reached <= number and between.is_handed(activation)

    def skip_to(self, number: int, steps: Sequence[SegmentStep]) -> tuple[Item, ...]:
        """Leave out the blocks before one; the checkpoints that begin with it.

        Of the blocks that are left out, those end whose other blocks have run, and those begin
        later that have others left.
        """
        opens: list[Item] = []
        for step in steps[self.reached : number]:
            opens += step.opens
            for _ in range(step.closes):
                if opens:
                    opens.pop()
                else:
                    self._open.pop()[1].forward_is_over()
        if not self.reached:
            self._first = number
        self.reached = number
        return (*opens, *steps[number].opens)

    @property
    def hooks(self) -> AbstractContextManager[Any]:
        """Those of the innermost open checkpoint, as a context."""
        return self._open[-1][0] if self._open else _NOTHING

    def open(
        self,
        body: Callable[[torch.Tensor], Any],
        activation: torch.Tensor,
        recomputation: Recomputation,
        again: AbstractContextManager[Any],
        *,
        early: bool,
    ) -> None:
        """Open a checkpoint, inside those that are open, to be run again in the context `again`."""
        with self.hooks:
            hooks = frame(body, activation, again, early=early)
        self._open.append((hooks, recomputation))

    def end(self, result: torch.Tensor, closes: int) -> None:
        """Close checkpoints after a block, and wait for the next."""
        for _ in range(closes):
            self._open.pop()[1].forward_is_over()
        self.reached = (self.reached + 1) % len(self._names)
        if self.reached == 0:
            self.let_go()
        else:
            # Weakly, or the two would hold each other, and all that is open, in a cycle.
            self._between = _Between(result, weakref.proxy(self))


class _Between:
    """What is true when a block ends, and must be when the next begins.

    The activation is held weakly: between blocks it is the model's alone.
    """

    def __init__(self, result: torch.Tensor, passage: Any) -> None:
        self._result = weakref.ref(result, lambda _: passage.let_go())
        self._version = result._version
        self.autocast = Ambient(result.device).dtype
        generators = [*GENERATORS, *torch_generators([result.device])]
        self._states = [(generator, generator.state()) for generator in generators]

    def moved(self) -> list[Callable[[], None]]:
        """For each generator that has moved since: a function that puts it where it is now."""
        return [
            partial(generator.put, generator.state())
            for generator, state in self._states
            if generator.moved_from(state)
        ]

    def is_handed(self, activation: torch.Tensor) -> bool:
        """Whether it is the block's result, unchanged; a view of all of it is the same.

        Backward hooks on a block, and fully_shard, hand on such views.
        """
        result = self._result()
        if result is None or activation._version != self._version:
            return False
        return activation is result or (
            activation.untyped_storage() is result.untyped_storage()
            and activation.storage_offset() == result.storage_offset()
            and activation.size() == result.size()
            and activation.stride() == result.stride()
            and activation.dtype == result.dtype
            and activation.requires_grad == result.requires_grad
        )
