"""Checkpointed segments: the replaced forwards of blocks, and the checkpoints they run through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from scheduler.common.errors import UnsupportedModel
from scheduler.costs.keeps import Keeps
from scheduler.export.standalone.caches import for_one_run, left_out
from scheduler.export.standalone.state import BlockState, Watched
from scheduler.pytorch.checkpointing.passage import Calls, Passage, steps_of, stopping
from scheduler.pytorch.checkpointing.recompute import Recomputation
from scheduler.pytorch.checkpointing.selective import HandedBack, Selection, Together
from scheduler.pytorch.model.autocast import without_cast_cache
from scheduler.pytorch.model.call import Call, activation_of
from scheduler.pytorch.model.fsdp import gather, is_unit, scatter
from scheduler.pytorch.model.replace import Replaced
from solvers.schedule import Checkpoint, Item, Keep, first_of, last_of

_NOTHING: AbstractContextManager[Any] = nullcontext()  # one for all: this is on every call's way


class PlannedBlock(Replaced):
    """The replaced forward of one block, which runs in its segment.

    `calls`: how often it was called with gradients on, recomputations not counted.
    """

    segment: Segment

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__(module)
        self.name = name
        self.calls = 0
        self.state = BlockState([module], partial(_refused, name))
        _outside_graphs()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        _outside_graphs()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run as a part of the segment; without gradients, as before."""
        if not torch.is_grad_enabled():
            return self.original(*args, **kwargs)
        return _outside_graphs()(self, args, kwargs)


_uncompiled: list[Callable[[PlannedBlock, tuple[Any, ...], dict[str, Any]], Any]] = []
"""`_run`, once there is a block: making it loads the compiler."""


def _outside_graphs() -> Callable[[PlannedBlock, tuple[Any, ...], dict[str, Any]], Any]:
    # Compiled together, nested checkpoints become one. So a compiled model leaves its graph here;
    # a block whose own forward is compiled enters its own.
    if not _uncompiled:
        _uncompiled.append(torch.compiler.disable(_run))
    return _uncompiled[0]


def _run(block: PlannedBlock, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if block.module.__dict__.get("gradient_checkpointing") is True:
        raise UnsupportedModel(
            f"block {block.name!r} has its own gradient checkpointing on, which was switched on "
            "after the plan was applied; switch it off, or remove the plan"
        )
    changed = left_out(block.name, UnsupportedModel, block.module, args, kwargs)
    args, kwargs = changed or (args, kwargs)
    block.calls += 1
    call = Call.of(block.name, args, kwargs)
    with without_cast_cache(call.activation.device.type):
        return block.segment.run(block, call)


class Segment:
    """A checkpointed run of blocks.

    The model calls the blocks one by one, and each runs in its place, under the checkpoints that
    are open there. A recomputation runs them in a row, as the plan nests them, by their own
    forwards: hooks on a block have run once.

    A block kept under an option is a checkpoint too, which is handed some results back. They are
    stored when the block runs to be kept: at once, or in the recomputation of the checkpoint that
    it is in. Its first forward in there is one that keeps nothing.

    `keeps` has the results that stay, by the name of the block. `may_skip`: the model may leave out
    blocks, as LayerDrop does; a recomputation leaves out the same.
    """

    def __init__(
        self,
        item: Item,
        blocks: list[PlannedBlock],
        keeps: Mapping[str, Keeps],
        *,
        may_skip: bool = False,
    ) -> None:
        self.item = item
        self.blocks = blocks
        self._may_skip = may_skip
        self._keeps = {block.name: keeps[block.name] for block in blocks if block.name in keeps}
        self._names = [block.name for block in blocks]
        self._steps = steps_of(item)
        # The block, where a checkpoint is of one and keeps it whole.
        plain = isinstance(item, Checkpoint) and item.body == (Keep(item.first),)
        self._single = self._steps[0].keep if plain else None
        self._passage = Passage(self._names)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_passage": Passage(self._names)}

    def run(self, block: PlannedBlock, call: Call) -> Any:
        """Run one block that the model calls; its output."""
        if len(self.blocks) == 1:
            calls = Calls(self._names, {0: call.without_activation()})
            return self._checkpoint(self.item, call.activation, calls, keeping=True)[1]
        number = self.blocks.index(block) if self._may_skip else self._passage.reached
        if self._may_skip and not self._passage.follows(number, call.activation):
            self._passage = Passage(self._names)
        elif block is self.blocks[0]:
            self._passage, number = Passage(self._names), 0
        expected = self.blocks[number]
        if block is not expected:
            raise UnsupportedModel(
                f"block {block.name!r} runs where {expected.name!r} should, of one segment of the "
                "plan; blocks that are skipped or reordered cannot share a segment"
            )
        try:
            return self._run_in_place(number, call, self._passage)
        except BaseException:
            self._passage.let_go()
            raise

    def _run_in_place(self, number: int, call: Call, passage: Passage) -> Any:
        opens, step = passage.skip_to(number, self._steps), self._steps[number]
        passage.begin(call)
        activation, version = call.activation, call.activation._version
        for item in opens:
            body = self._body(item, passage.calls, ran=True)
            recomputation = Recomputation()
            again = self._again(item, passage.calls, recomputation)
            early = self._stops_early(item)
            passage.open(body, activation, recomputation, again, early=early)
        with passage.hooks, self._state(step.keep, passage.calls):
            result, output = self._run_block(step.keep, activation, passage.calls)
        if opens:
            self._check_unchanged(self.blocks[number], activation, version)
        passage.end(result, step.closes)
        return output

    def _body(
        self, item: Item, calls: Calls, *, ran: bool
    ) -> Callable[[torch.Tensor], tuple[torch.Tensor, Any]]:
        """What a checkpoint runs; `ran`: only again, its first forward is that of the model."""
        if self._single is not None and item is self.item:  # the usual case, without detours
            return partial(self._run_block, self._single, calls=calls)

        def body(activation: torch.Tensor) -> tuple[torch.Tensor, Any]:
            nonlocal ran
            keeping, ran = ran, True
            if not self._may_skip:
                calls.check_complete()
            if isinstance(item, Keep):
                return self._run_block(item, activation, calls)
            output: Any = None
            is_first = True  # to which torch, and Recomputation, see
            for inner in item.body:
                called = [number for number in self._numbers(inner) if number in calls.calls]
                if not called:
                    continue
                if not is_first:
                    calls.draw_from(called[0])
                is_first = False
                output = None  # what it is beside the activation is nobody's any more
                activation, output = self._run_item(inner, activation, calls, keeping=keeping)
            return activation, output

        return body

    def _run_item(
        self, item: Item, activation: torch.Tensor, calls: Calls, *, keeping: bool
    ) -> tuple[torch.Tensor, Any]:
        """Run an item inside another; `keeping`: what it keeps is to be kept from this run."""
        if isinstance(item, Keep) and item.option is None:
            return self._run_block(item, activation, calls)
        done = self._checkpoint(item, activation, calls, keeping=keeping)
        for number in self._numbers(item):
            scatter(self.blocks[number].module)
        return done

    def _numbers(self, item: Item) -> range:
        """Of an item's blocks, in the segment."""
        return range(self._number(item), last_of(item) + 1 - first_of(self.item))

    def _number(self, item: Item) -> int:
        """Of an item's first block, in the segment."""
        return first_of(item) - first_of(self.item)

    def _checkpoint(
        self, item: Item, activation: torch.Tensor, calls: Calls, *, keeping: bool
    ) -> tuple[torch.Tensor, Any]:
        version = activation._version
        context, keywords = stopping(self._stops_early(item))
        with context:
            result: tuple[torch.Tensor, Any] = checkpoint(
                self._body(item, calls, ran=False),
                activation,
                # Only this variant nests, and stops where the last tensor is saved.
                use_reentrant=False,
                preserve_rng_state=True,
                context_fn=lambda: self._contexts(item, calls, keeping),
                **keywords,
            )
        self._check_unchanged(self.blocks[self._number(item)], activation, version)
        return result

    def _contexts(self, item: Item, calls: Calls, keeping: bool) -> tuple[Any, Any]:
        recomputation = Recomputation()
        again = self._again(item, calls, recomputation)
        forward = Together(recomputation.forward(), self._state(item, calls))
        if isinstance(item, Keep) and keeping:
            number = self._number(item)
            name = self._names[number]
            if is_unit(self.blocks[number].module):
                raise UnsupportedModel(
                    f"block {name!r} is a unit of fully_shard, which gathers its parameters by "
                    "operations of its own among those that the plan's option counts; solve costs "
                    "without options"
                )
            calls.selections[number] = selection = Selection(name, self._keeps[name])
            return Together(forward, selection.forward), again
        return forward, again

    def _again(self, item: Item, calls: Calls, recomputation: Recomputation) -> Any:
        """A context for the recomputation of an item."""
        if not isinstance(item, Keep):
            return recomputation
        handed_back = HandedBack(calls.selections, self._number(item))
        return Together(recomputation, self._state(item, calls), handed_back)

    def _state(self, item: Item, calls: Calls) -> AbstractContextManager[Any]:
        """A context for a forward of a block that is kept under an option, and for no other."""
        if not isinstance(item, Keep) or item.option is None:
            return _NOTHING
        return self._watched(self._number(item), calls)

    def _watched(self, number: int, calls: Calls) -> Watched:
        call = calls.calls[number]
        handed = (*call.args, *call.kwargs.values())
        return Watched(self.blocks[number].state, calls.states, number, handed)

    def _run_block(
        self, item: Keep, activation: torch.Tensor, calls: Calls
    ) -> tuple[torch.Tensor, Any]:
        """Run one block with its own arguments; the activation in its output, and the output."""
        number = self._number(item)
        block, call = self.blocks[number], calls.calls[number]
        args, kwargs = for_one_run(block.module, *call.arguments(activation))
        gather(block.module)
        if item.option is None:
            with self._watched(number, calls):
                output = block.original(*args, **kwargs)
        else:  # by who opens its checkpoint, whose contexts look at each operation
            output = block.original(*args, **kwargs)
        return activation_of(block.name, output), output

    def _stops_early(self, item: Item) -> bool:
        """Whether a recomputation may end where torch ends it: at the last tensor saved of its own.

        A block kept under an option saves its own: where it ends a body it must run to the end.
        """
        body = item.body if isinstance(item, Checkpoint) else ()
        last = body if self._may_skip else body[-1:]  # any may turn out to be the last
        return not any(isinstance(each, Keep) and each.option is not None for each in last)

    def _check_unchanged(self, block: PlannedBlock, activation: torch.Tensor, version: int) -> None:
        if activation._version != version:
            raise UnsupportedModel(
                f"block {block.name!r} changes its input in place, which a recomputation would "
                "start from; use the version that does not, or keep it"
            )


def _refused(name: str, what: str) -> UnsupportedModel:
    return UnsupportedModel(f"block {name!r} {what}")
