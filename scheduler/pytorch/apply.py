"""Make a model train as a plan says, by replacing the forward of its blocks."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import zip_longest
from types import MethodType, TracebackType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from scheduler.errors import InvalidPlan, UnsupportedModel
from scheduler.plan import Plan
from scheduler.pytorch.blocks import (
    Call,
    Replaced,
    check_unwrapped,
    same_leaves,
    split_output,
    switch_off_cache,
)
from scheduler.pytorch.isolate import buffer_versions
from scheduler.text import ordinal
from solvers.schedule import Checkpoint, Item, Keep, first_of, last_of


def apply(plan: Plan, model: nn.Module, blocks: str | Iterable[str] = "auto") -> Handle:
    """Checkpoint a model's blocks as `plan` says.

    Each segment runs through `torch.utils.checkpoint` (non-reentrant, nested where the plan
    nests), from the replaced forward of its first block; the segment's other blocks then pass on
    what they are given. Parameter names, hooks and the state dict stay as they were. Without
    gradients everything runs as before. A generation cache is switched off.

    Parameters
    ----------
    plan
        A plan for costs whose layers carry the blocks' module names, as `profile` gives them.
    model
        The model that was profiled, or one with the same blocks.
    blocks
        What `profile` was given: "auto", where the plan must have every block of a stack, or
        names, which must be those of the plan.

    Returns
    -------
    Handle
        ``handle.remove()`` undoes everything; also a context manager.

    Raises
    ------
    InvalidPlan
        The plan's layers are not the model's blocks, or it uses options.
    UnsupportedModel
        The model checkpoints already.
    """
    names = _block_names(plan, model, blocks if isinstance(blocks, str) else list(blocks))
    check_unwrapped(model, [name for name in names if name])
    for item in _all_items(plan.items):
        if isinstance(item, Keep) and item.option is not None:
            raise InvalidPlan(
                f"the plan keeps {plan.layers[item.layer]!r} with option {item.option!r}; options "
                "cannot be applied to a model yet: solve costs without them"
            )
    handle = Handle(plan)
    for item in plan.items:
        if isinstance(item, Checkpoint):
            members = range(item.first, item.last + 1)
            run = [_Block(model.get_submodule(names[i]), names[i]) for i in members]
            segment = _Segment(item, run)
            for block in run:
                block.segment = segment
                block.put()
            handle.blocks.extend(run)
    handle.configs = switch_off_cache(model)
    return handle


@dataclass
class Handle:
    """An applied plan.

    Attributes
    ----------
    plan
        What was applied.
    """

    plan: Plan
    blocks: list[_Block] = field(default_factory=list, repr=False)
    configs: list[Any] = field(default_factory=list, repr=False)

    def remove(self) -> None:
        """Put every forward, and the cache setting, back; harmless when done twice."""
        for block in self.blocks:
            block.take_away()
        self.blocks.clear()
        for config in self.configs:
            config.use_cache = True
        self.configs.clear()

    def report(self) -> list[tuple[str, str]]:
        """Name each layer and say what happens to it: kept, or checkpointed with which others."""
        lines = []
        for item in self.plan.items:
            for i in range(first_of(item), last_of(item) + 1):
                lines.append((self.plan.layers[i], _describe(item, self.plan.layers)))
        return lines

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()


def _describe(item: Item, layers: Sequence[str]) -> str:
    if isinstance(item, Keep):
        return "keep"
    if item.first == item.last:
        return "checkpoint"
    return f"checkpoint {layers[item.first]} to {layers[item.last]}"


def _all_items(items: Sequence[Item]) -> Iterator[Item]:
    todo = list(items)
    while todo:
        item = todo.pop()
        yield item
        if isinstance(item, Checkpoint):
            todo.extend(item.body)


def _block_names(plan: Plan, model: nn.Module, given: str | list[str]) -> list[str]:
    """Module names of the plan's layers, "" for the ends that no module stands for.

    Raises
    ------
    InvalidPlan
        Names the first layer that is no block of the model, or the first block left out.
    """
    modules = dict(model.named_modules())
    kind, count = type(model).__name__, len(plan.layers)
    checkpointed = {
        i
        for item in plan.items
        if isinstance(item, Checkpoint)
        for i in range(item.first, item.last + 1)
    }
    names = [name if name in modules else "" for name in plan.layers]
    for i, name in enumerate(names):
        if not name and (i in checkpointed or 0 < i < count - 1):
            raise InvalidPlan(
                f"the plan's layer {plan.layers[i]!r} ({ordinal(i + 1)} of {count}) is not a "
                f"module of this {kind}; the plan was made for another model"
            )
    blocks = [name for name in names if name]
    if not blocks:
        raise InvalidPlan(
            f"none of the plan's layers ({plan.layers[0]!r}, ...) is a module of this {kind}"
        )
    if isinstance(given, str):
        given = _stack_of(blocks, modules)
    for mine, theirs in zip_longest(given, blocks):
        if mine != theirs:
            if mine is None:
                what = f"the plan has a block {theirs!r} that is not among those of the model"
            elif theirs is None:
                what = f"the model has a block {mine!r} that the plan does not"
            else:
                what = f"the model has a block {mine!r} where the plan has {theirs!r}"
            raise InvalidPlan(f"{what}; the plan was made for another model, or for other blocks")
    return names


def _stack_of(blocks: list[str], modules: dict[str, nn.Module]) -> list[str]:
    """All blocks of the stack that `blocks` belong to; themselves where there is no one stack."""
    parents = {name.rpartition(".")[0] for name in blocks}
    parent = parents.pop()
    if parents or not isinstance(stack := modules[parent], (nn.ModuleList, nn.Sequential)):
        return blocks
    return [f"{parent}.{name}" if parent else name for name, _ in stack.named_children()]


class _Block(Replaced):
    """The replaced forward of one block."""

    segment: _Segment

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module = module
        self.name = name
        self._own = module.__dict__.get("forward")
        self.original = module.forward

    def __getstate__(self) -> dict[str, Any]:
        # A bound method is pickled by its name, which leads back here.
        return {key: value for key, value in self.__dict__.items() if key != "original"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.original = self._own or MethodType(type(self.module).forward, self.module)

    def put(self) -> None:
        """Take the place of the module's forward."""
        self.module.forward = self

    def take_away(self) -> None:
        """Put the module's own forward back."""
        if self.module.__dict__.get("forward") is not self:
            return
        if self._own is None:
            del self.module.forward
        else:
            self.module.forward = self._own

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the whole segment from its first block; pass on at the others."""
        if not torch.is_grad_enabled():
            return self.original(*args, **kwargs)
        call = Call.of(self.name, args, kwargs)
        if self is self.segment.blocks[0]:
            return self.segment.run(call)
        return self.segment.pass_on(self, call)


class _Segment:
    """A checkpointed run of blocks."""

    def __init__(self, item: Checkpoint, blocks: list[_Block]) -> None:
        self.item = item
        self.blocks = blocks
        # What the other blocks must be given, and how each packs it into its own output.
        self._result: torch.Tensor | None = None
        self._others: list[Any] = []
        self._expected = 0
        self._rebuild: dict[int, Callable[[torch.Tensor], Any]] = {}
        self._norms = [
            module
            for block in blocks
            for module in block.module.modules()
            if isinstance(module, _BatchNorm)
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_result": None, "_others": [], "_expected": 0, "_rebuild": {}}

    def run(self, call: Call) -> Any:
        """Run all blocks as the plan nests them; the others then pass the result on."""
        self._result = None  # a step that failed half way may have left one
        if len(self.blocks) > 1:
            self._check_hooks()
        result = self._checkpoint(self.item, call.activation, call.without_activation())
        if len(self.blocks) > 1:
            self._result, self._others, self._expected = result, call.others, 1
        return self._rebuild[self.item.first](result)

    def pass_on(self, block: _Block, call: Call) -> Any:
        """Return what the block was given, which is the segment's result already."""
        first = self.blocks[0].name
        expected = self.blocks[self._expected] if self._result is not None else self.blocks[0]
        if block is not expected:
            raise UnsupportedModel(
                f"block {block.name!r} runs where {expected.name!r} should, of one segment of the "
                "plan; blocks that are skipped or reordered cannot share a segment"
            )
        if call.activation is not self._result:
            raise UnsupportedModel(
                f"block {block.name!r} does not receive what block {first!r} returned, though both "
                "are in one segment of the plan: the model runs code of its own between them, or a "
                "backward hook is on one of them"
            )
        if not same_leaves(call.others, self._others):
            raise UnsupportedModel(
                f"block {block.name!r} is called with other arguments than block {first!r}, with "
                "which it shares a segment of the plan; solve with method='every-layer', or "
                "profile only blocks that are called alike"
            )
        result = self._result
        self._expected += 1
        if self._expected == len(self.blocks):
            self._result, self._others = None, []
        return self._rebuild[self.item.first + self.blocks.index(block)](result)

    def _check_hooks(self) -> None:
        for block in self.blocks:
            if block.module._forward_hooks or block.module._forward_pre_hooks:
                raise UnsupportedModel(
                    f"block {block.name!r} has a forward hook and shares a segment of the plan "
                    "with others, where a hook sees what the segment is given and gives; remove it "
                    "(it may come from output_hidden_states=True), or solve with "
                    "method='every-layer'"
                )

    def _checkpoint(self, item: Checkpoint, activation: torch.Tensor, call: Call) -> torch.Tensor:
        def body(activation: torch.Tensor) -> torch.Tensor:
            if self._result is not None:  # a recomputation, and the last forward is not over
                raise UnsupportedModel(
                    f"block {self.blocks[self._expected].name!r} was not called, though the plan "
                    "runs it in one segment with others; blocks that may be skipped cannot share it"
                )
            for inner in item.body:
                activation = self._run_item(inner, activation, call)
            return activation

        result: torch.Tensor = checkpoint(
            body,
            activation,
            use_reentrant=False,
            preserve_rng_state=True,
            context_fn=lambda: (nullcontext(), _Recomputation(self._norms)),
        )
        return result

    def _run_item(self, item: Item, activation: torch.Tensor, call: Call) -> torch.Tensor:
        if isinstance(item, Checkpoint):
            return self._checkpoint(item, activation, call)
        block = self.blocks[item.layer - self.item.first]
        buffers = buffer_versions(block.module)
        result, rebuild = split_output(block.name, call.run(block.original, activation))
        if buffers != buffer_versions(block.module):
            raise UnsupportedModel(
                f"block {block.name!r} changes a buffer of its own in its forward, which a "
                "recomputation would do again; a plan must keep it (profile says so in its costs)"
            )
        self._rebuild[item.layer] = rebuild
        return result


class _Recomputation:
    """Let a recomputation repeat its forward: made when that begins, entered for each repetition.

    torch replays its own generators; this replays Python's and numpy's. A batch norm's running
    statistics count each batch once.
    """

    def __init__(self, norms: list[_BatchNorm]) -> None:
        self._norms = norms
        self._random = _random_states()
        self._now = self._random
        self._statistics: list[tuple[float | None, torch.Tensor | None]] = []

    def __enter__(self) -> None:
        self._now = _random_states()
        _set_random_states(self._random)
        self._statistics = [(norm.momentum, norm.num_batches_tracked) for norm in self._norms]
        for norm in self._norms:
            # Not track_running_stats=False: autograd would save fewer tensors than before.
            norm.momentum, norm.num_batches_tracked = 0.0, None

    def __exit__(self, *error: object) -> None:
        _set_random_states(self._now)
        for norm, (momentum, count) in zip(self._norms, self._statistics, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count


def _random_states() -> tuple[Any, Any]:
    numpy = sys.modules.get("numpy")
    return random.getstate(), None if numpy is None else numpy.random.get_state()


def _set_random_states(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    if states[1] is not None:
        sys.modules["numpy"].random.set_state(states[1])
