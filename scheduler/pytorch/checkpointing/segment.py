"""Checkpointed segments: the replaced forwards of blocks, and the checkpoints they run through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from scheduler.common.errors import UnsupportedModel
from scheduler.costs.keeps import Keeps
from scheduler.pytorch.checkpointing.passage import Calls, Passage, steps_of, stopping
from scheduler.pytorch.checkpointing.recompute import Recomputation
from scheduler.pytorch.checkpointing.selective import HandedBack, Selection, Together
from scheduler.pytorch.model.autocast import without_cast_cache
from scheduler.pytorch.model.call import Call, activation_of
from scheduler.pytorch.model.fsdp import gather, is_unit, scatter
from scheduler.pytorch.model.replace import Replaced
from scheduler.pytorch.observe.buffers import Buffers, norms_of
from solvers.schedule import Checkpoint, Item, Keep, first_of, last_of


class PlannedBlock(Replaced):
    """The replaced forward of one block, which runs in its segment.

    `calls`: how often it was called with gradients on, recomputations not counted.
    """

    segment: Segment

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__(module)
        self.name = name
        self.calls = 0
        self.buffers = Buffers(module)
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
            "after the plan was applied; call model.gradient_checkpointing_disable()"
        )
    for value in (*args, *kwargs.values()):
        if hasattr(value, "get_seq_length"):
            raise UnsupportedModel(
                f"block {block.name!r} is handed a generation cache ({type(value).__name__}), "
                "which a recomputation would extend again; call the model with use_cache=False"
            )
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

    `keeps` has the results that stay, by the name of the block.
    """

    def __init__(self, item: Item, blocks: list[PlannedBlock], keeps: Mapping[str, Keeps]) -> None:
        self.item = item
        self.blocks = blocks
        self._keeps = {block.name: keeps[block.name] for block in blocks if block.name in keeps}
        self._names = [block.name for block in blocks]
        self._steps = steps_of(item)
        # The block, where a checkpoint is of one and keeps it whole.
        plain = isinstance(item, Checkpoint) and item.body == (Keep(item.first),)
        self._single = self._steps[0].keep if plain else None
        self._passage = Passage(self._names)
        self._norms = norms_of(block.module for block in blocks)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_passage": Passage(self._names)}

    def run(self, block: PlannedBlock, call: Call) -> Any:
        """Run one block that the model calls; its output."""
        if len(self.blocks) == 1:
            calls = Calls(self._names, [call.without_activation()])
            return self._checkpoint(self.item, call.activation, calls, keeping=True)[1]
        if block is self.blocks[0]:
            self._passage = Passage(self._names)
        expected = self.blocks[self._passage.reached]
        if block is not expected:
            raise UnsupportedModel(
                f"block {block.name!r} runs where {expected.name!r} should, of one segment of the "
                "plan; blocks that are skipped or reordered cannot share a segment"
            )
        try:
            return self._run_in_place(block, call, self._passage)
        except BaseException:
            self._passage.let_go()
            raise

    def _run_in_place(self, block: PlannedBlock, call: Call, passage: Passage) -> Any:
        step = self._steps[passage.reached]
        passage.begin(call)
        activation, version = call.activation, call.activation._version
        for item in step.opens:
            body = self._body(item, passage.calls, ran=True)
            recomputation = self._recomputation()
            again = self._again(item, passage.calls, recomputation)
            passage.open(body, activation, recomputation, again, early=_stops_early(item))
        with passage.hooks:
            result, output = self._run_block(step.keep, activation, passage.calls)
        if step.opens:
            self._check_unchanged(block, activation, version)
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
            calls.check_complete()
            if isinstance(item, Keep):
                return self._run_block(item, activation, calls)
            output: Any = None
            for inner in item.body:
                if inner is not item.body[0]:  # torch, and Recomputation, see to the first
                    calls.draw_from(self._number(inner))
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
        for block in self._blocks_of(item):
            scatter(block.module)
        return done

    def _blocks_of(self, item: Item) -> list[PlannedBlock]:
        return self.blocks[self._number(item) : last_of(item) + 1 - first_of(self.item)]

    def _number(self, item: Item) -> int:
        """Of an item's first block, in the segment."""
        return first_of(item) - first_of(self.item)

    def _checkpoint(
        self, item: Item, activation: torch.Tensor, calls: Calls, *, keeping: bool
    ) -> tuple[torch.Tensor, Any]:
        version = activation._version
        context, keywords = stopping(_stops_early(item))
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
        self._check_unchanged(self._blocks_of(item)[0], activation, version)
        return result

    def _contexts(self, item: Item, calls: Calls, keeping: bool) -> tuple[Any, Any]:
        recomputation = self._recomputation()
        forward, again = recomputation.forward(), self._again(item, calls, recomputation)
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

    def _recomputation(self) -> Recomputation:
        return Recomputation(self._norms, counting=bool(self._keeps))

    def _again(self, item: Item, calls: Calls, recomputation: Recomputation) -> Any:
        """A context for the recomputation of an item."""
        if not isinstance(item, Keep):
            return recomputation
        return Together(recomputation, HandedBack(calls.selections, self._number(item)))

    def _run_block(
        self, item: Keep, activation: torch.Tensor, calls: Calls
    ) -> tuple[torch.Tensor, Any]:
        """Run one block with its own arguments; the activation in its output, and the output."""
        number = self._number(item)
        block, call = self.blocks[number], calls.calls[number]
        versions = block.buffers.versions()
        args, kwargs = call.arguments(activation)
        gather(block.module)
        output = block.original(*args, **kwargs)
        if versions != block.buffers.versions():
            raise UnsupportedModel(
                f"block {block.name!r} changes a buffer of its own in its forward, which a "
                "recomputation would do again; a plan must keep it (profile says so in its costs)"
            )
        return activation_of(block.name, output), output

    def _check_unchanged(self, block: PlannedBlock, activation: torch.Tensor, version: int) -> None:
        if activation._version != version:
            raise UnsupportedModel(
                f"block {block.name!r} changes its input in place, which a recomputation would "
                "start from; use the version that does not, or keep it"
            )


def _stops_early(item: Item) -> bool:
    """Whether a recomputation may end where torch ends it: at the last tensor saved of its own.

    A block kept under an option saves its own: where it ends a body it must still run to the end.
    """
    ending = item.body[-1] if isinstance(item, Checkpoint) else None
    return not isinstance(ending, Keep) or ending.option is None
