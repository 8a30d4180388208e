"""Checkpointed segments: the replaced forwards of blocks, and the checkpoints they run through."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from scheduler.errors import UnsupportedModel
from scheduler.pytorch.autocast import without_cast_cache
from scheduler.pytorch.blocks import Call, Replaced, same_leaves, split_output
from scheduler.pytorch.recompute import Recomputation
from solvers.schedule import Checkpoint, Item


class Block(Replaced):
    """The replaced forward of one block.

    Attributes
    ----------
    module, name
        The block.
    segment
        What it runs in.
    calls
        How often it was called with gradients on, recomputations not counted.
    """

    segment: Segment

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module = module
        self.name = name
        self.calls = 0
        self._own = module.__dict__.get("forward")
        self.original = module.forward
        self._parts = [part for part in module.modules() if not isinstance(part, _BatchNorm)]
        _outside_graphs()

    def __getstate__(self) -> dict[str, Any]:
        # A bound method is pickled by its name, which leads back here.
        return {key: value for key, value in self.__dict__.items() if key != "original"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.original = self._own or MethodType(type(self.module).forward, self.module)
        _outside_graphs()

    def put(self) -> None:
        """Take the place of the module's forward."""
        self.module.forward = self

    @property
    def is_put(self) -> bool:
        """Say whether it is still the module's forward."""
        return self.module.__dict__.get("forward") is self

    def take_away(self) -> None:
        """Put the module's own forward back."""
        if not self.is_put:
            return
        if self._own is None:
            del self.module.forward
        else:
            self.module.forward = self._own

    def buffers(self) -> list[tuple[int, int]]:
        """Identity and version of every buffer that a forward must not change to be run again.

        Batch norm's are left out: `Recomputation` sees to them.
        """
        return [
            (id(buffer), buffer._version)
            for part in self._parts
            if part._buffers
            for buffer in part._buffers.values()
            if buffer is not None
        ]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the whole segment from its first block; pass on at the others."""
        if not torch.is_grad_enabled():
            return self.original(*args, **kwargs)
        return _outside_graphs()(self, args, kwargs)


_uncompiled: list[Callable[[Block, tuple[Any, ...], dict[str, Any]], Any]] = []
"""`_run`, once there is a block: making it loads the compiler."""


def _outside_graphs() -> Callable[[Block, tuple[Any, ...], dict[str, Any]], Any]:
    # Compiled together, nested checkpoints become one. So a compiled model leaves its graph here;
    # a block whose own forward is compiled enters its own.
    if not _uncompiled:
        _uncompiled.append(torch.compiler.disable(_run))
    return _uncompiled[0]


def _run(block: Block, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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
        if block is block.segment.blocks[0]:
            return block.segment.run(call)
        return block.segment.pass_on(block, call)


class _Passing:
    """How one forward of a segment goes on: its result is passed through the other blocks.

    Attributes
    ----------
    reached
        How many of the blocks have been called; 0 while the first of them runs them all.
    result, others
        What the others must be given.
    """

    def __init__(self) -> None:
        self.reached = 0
        self.result: torch.Tensor | None = None
        self.others: list[Any] = []

    def let_go(self) -> None:
        """Forget the tensors: each recomputation knows of this object."""
        self.result, self.others = None, []


class Segment:
    """A checkpointed run of blocks."""

    def __init__(self, item: Checkpoint, blocks: list[Block]) -> None:
        self.item = item
        self.blocks = blocks
        self._passing = _Passing()
        # How each block packs the result into its own output.
        self._rebuild: dict[int, Callable[[torch.Tensor], Any]] = {}
        self._norms = [
            module
            for block in blocks
            for module in block.module.modules()
            if isinstance(module, _BatchNorm)
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_passing": _Passing(), "_rebuild": {}}

    def run(self, call: Call) -> Any:
        """Run all blocks as the plan nests them; the others then pass the result on."""
        self._passing.let_go()  # a step that failed half way may have left something
        if len(self.blocks) > 1:
            self._check_hooks()
        self._passing = passing = _Passing()
        result = self._checkpoint(self.item, call.activation, call.without_activation(), passing)
        passing.reached = 1
        if len(self.blocks) > 1:
            passing.result, passing.others = result, call.others
        return self._rebuild[self.item.first](result)

    def pass_on(self, block: Block, call: Call) -> Any:
        """Return what the block was given, which is the segment's result already."""
        first, passing = self.blocks[0].name, self._passing
        expected = self.blocks[passing.reached if passing.result is not None else 0]
        if block is not expected:
            raise UnsupportedModel(
                f"block {block.name!r} runs where {expected.name!r} should, of one segment of the "
                "plan; blocks that are skipped or reordered cannot share a segment"
            )
        if call.activation is not passing.result:
            raise UnsupportedModel(
                f"block {block.name!r} does not receive what block {first!r} returned, though both "
                "are in one segment of the plan: the model runs code of its own between them, or a "
                "backward hook is on one of them"
            )
        if not same_leaves(call.others, passing.others):
            raise UnsupportedModel(
                f"block {block.name!r} is called with other arguments than block {first!r}, with "
                "which it shares a segment of the plan; solve with method='every-layer', or "
                "profile only blocks that are called alike"
            )
        result = passing.result
        passing.reached += 1
        if passing.reached == len(self.blocks):
            passing.let_go()
        return self._rebuild[self.item.first + self.blocks.index(block)](result)

    def _check_hooks(self) -> None:
        for block in self.blocks:
            if block.module._forward_hooks or block.module._forward_pre_hooks:
                raise UnsupportedModel(
                    f"block {block.name!r} has a forward hook and shares a segment of the plan "
                    "with others, where a hook sees what the segment is given and gives; remove it "
                    "(it may come from output_hidden_states=True or from fully_shard), or solve "
                    "with method='every-layer'"
                )

    def _checkpoint(
        self, item: Checkpoint, activation: torch.Tensor, call: Call, passing: _Passing
    ) -> torch.Tensor:
        def body(activation: torch.Tensor) -> torch.Tensor:
            if 0 < passing.reached < len(self.blocks):  # a recomputation
                raise UnsupportedModel(
                    f"block {self.blocks[passing.reached].name!r} was not called, though the plan "
                    "runs it in one segment with others; blocks that may be skipped, or that run "
                    "twice in a row, cannot share it"
                )
            for inner in item.body:
                activation = self._run_item(inner, activation, call, passing)
            return activation

        version = activation._version
        result: torch.Tensor = checkpoint(
            body,
            activation,
            use_reentrant=False,
            preserve_rng_state=True,
            context_fn=self._contexts,
        )
        if activation._version != version:
            raise UnsupportedModel(
                f"block {self.blocks[item.first - self.item.first].name!r} changes its input in "
                "place, which a recomputation would start from; use the version that does not, or "
                "keep it"
            )
        return result

    def _contexts(self) -> tuple[Any, Any]:
        recomputation = Recomputation(self._norms)
        return recomputation.forward(), recomputation

    def _run_item(
        self, item: Item, activation: torch.Tensor, call: Call, passing: _Passing
    ) -> torch.Tensor:
        if isinstance(item, Checkpoint):
            return self._checkpoint(item, activation, call, passing)
        block = self.blocks[item.layer - self.item.first]
        buffers = block.buffers()
        result, rebuild = split_output(block.name, call.run(block.original, activation))
        if buffers != block.buffers():
            raise UnsupportedModel(
                f"block {block.name!r} changes a buffer of its own in its forward, which a "
                "recomputation would do again; a plan must keep it (profile says so in its costs)"
            )
        self._rebuild[item.layer] = rebuild
        return result
