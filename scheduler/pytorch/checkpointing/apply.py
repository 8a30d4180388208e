"""A model that trains as a plan says, by replacing the forward of its blocks."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from torch import nn

from scheduler.common.errors import InvalidPlan, UnsupportedModel
from scheduler.common.text import ordinal
from scheduler.export.standalone.caches import hand_no_caches
from scheduler.plans.plan import Plan
from scheduler.plans.settings import checkpointed
from scheduler.pytorch.checkpointing.coverage import Coverage
from scheduler.pytorch.checkpointing.kind import check_kind
from scheduler.pytorch.checkpointing.segment import PlannedBlock, Segment
from scheduler.pytorch.checkpointing.selective import check_torch
from scheduler.pytorch.model.call import before, check_unwrapped
from scheduler.pytorch.model.find import find_blocks
from scheduler.pytorch.model.fsdp import check_units
from scheduler.pytorch.model.replace import RemovableHandle, check_unplanned
from scheduler.pytorch.model.settings import skips_blocks
from scheduler.pytorch.model.wrappers import check_compiled, check_opened
from scheduler.pytorch.tiles.head import chunked_head
from scheduler.pytorch.tiles.modules import TiledModule
from solvers.schedule import Checkpoint, Item, Keep, first_of, last_of

_FRAMES_A_LEVEL = 6
"""Python frames that each level of nested checkpoints takes, in torch and here."""
_OTHER_FRAMES = 200
"""Those left for the training script, and for the model."""


def apply_chain(plan: Plan, model: nn.Module, blocks: str | Iterable[str] = "auto") -> Handle:
    """`scheduler.pytorch.apply` for the plan of a chain.

    Each segment runs through `torch.utils.checkpoint` (non-reentrant, nested where the plan
    nests), by the replaced forwards of its blocks: the model calls each in its place, with
    arguments of its own, and hooks on it run then, not when it is recomputed. Between two blocks
    of a segment the model may do what it likes but change the activation.
    """
    check_kind(plan, "chain")
    _check_runnable(plan)
    names = _block_names(plan, model, blocks if isinstance(blocks, str) else list(blocks))
    check_unwrapped(model, [name for name in names if name])
    placed: list[Any] = []
    alone = plan.tiles.keys() - plan.policies.keys()  # whose modules see to it themselves
    whole = {i for i, name in enumerate(plan.layers) if name in alone}
    items = [_without(whole, item) for item in plan.items]
    segments = [item for item in items if item != Keep(first_of(item))]
    runs = [[(names[i], model.get_submodule(names[i])) for i in _members(s)] for s in segments]
    for run in runs:
        inside = [name for name, _ in run]
        check_compiled(model, inside)
        check_units(model, inside)
        if opened := [name for name in inside if name in plan.policies]:
            check_torch()
            check_opened(model, opened)
    tiled = list(_tiled(plan, model))
    counts = [count for name, count in plan.tiles.items() if name not in plan.tiled]
    heads: list[Any] = [chunked_head(model, count) for count in counts]
    for module in tiled:
        module.put()
    may_skip = skips_blocks(model)
    for item, run in zip(segments, runs, strict=True):
        members = [PlannedBlock(module, name) for name, module in run]
        segment = Segment(item, members, plan.policies, may_skip=may_skip)
        for block in members:
            block.segment = segment
            block.put()
        placed.extend(members)
    planned = {block.name for block in placed}  # which see to it themselves
    kept = {name: model.get_submodule(name) for name in names if name and name not in planned}
    caches = hand_no_caches(model, kept, UnsupportedModel)
    return Handle([*placed, *tiled], [*heads, *caches], plan, model)


@dataclass
class Handle(RemovableHandle):
    """An applied plan; `plan` is what was applied."""

    plan: Plan
    _model: nn.Module = field(repr=False)

    def report(self) -> Coverage:
        """For each layer what the plan wants and what the model does at this moment.

        Print it, or look a layer's plan up in it; ``report().ok`` when the two are the same.
        """
        return Coverage.of(self.plan, self._model, self._placed)


def _check_runnable(plan: Plan) -> None:
    """Raise `InvalidPlan` where nobody says what an option keeps, or Python cannot nest so deep."""
    for layer, option in plan.schedule.options().items():
        name = plan.layers[layer]
        if not plan.policies.get(name) and name not in plan.tiles:
            raise InvalidPlan(
                f"the plan keeps {name!r} with option {option!r}, and does not say which "
                "results that keeps; solve costs from profile(..., options=True), or without "
                "options"
            )
    deepest = (sys.getrecursionlimit() - _OTHER_FRAMES) // _FRAMES_A_LEVEL
    if plan.depth > deepest:
        needed = plan.depth * _FRAMES_A_LEVEL + _OTHER_FRAMES
        raise InvalidPlan(
            f"the plan nests {plan.depth} checkpoints, and Python's recursion limit lets torch "
            f"nest {deepest}; call sys.setrecursionlimit({needed}) first, or solve for a larger "
            "budget, whose plans nest less"
        )


def _without(whole: set[int], item: Item) -> Item:
    """An item that keeps some layers without an option."""
    if isinstance(item, Keep):
        return Keep(item.layer) if item.layer in whole else item
    return Checkpoint(item.first, item.last, tuple(_without(whole, each) for each in item.body))


def _tiled(plan: Plan, model: nn.Module) -> Iterator[TiledModule]:
    """The modules inside blocks that are to run in tiles."""
    of_model = dict(model.named_modules())
    for layer in plan.tiles:
        parts = plan.tiled.get(layer, ())
        if layer not in of_model:  # the head, which is no module
            continue
        if not parts:
            raise InvalidPlan(
                f"the plan runs {layer!r} in tiles and does not say which modules inside it; solve "
                "costs from profile(..., tiles=True), or without tiles"
            )
        modules = dict(of_model[layer].named_modules())
        check_opened(model, [layer])
        for part in parts:
            name = f"{layer}.{part}"
            if part not in modules:
                raise InvalidPlan(
                    f"the plan runs {name!r} in tiles, which is not a module of this "
                    f"{type(model).__name__}; the plan was made for another model"
                )
            check_unplanned(modules[part], repr(name))
            yield TiledModule(modules[part], name, plan.tiles[layer])


def _members(item: Item) -> range:
    return range(first_of(item), last_of(item) + 1)


def _block_names(plan: Plan, model: nn.Module, given: str | list[str]) -> list[str]:
    """Module names of the plan's layers, "" for what runs around the blocks.

    Raises `InvalidPlan`, which names the first layer that is no block, or the first block left out.
    """
    modules = dict(model.named_modules())
    kind, count = type(model).__name__, len(plan.layers)
    inside = set(checkpointed(plan.items))
    names = [name if name in modules else "" for name in plan.layers]
    for i, name in enumerate(names):
        is_between = 0 < i < count - 1 and plan.layers[i] != before(plan.layers[i + 1])
        if not name and (i in inside or is_between):
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
        auto = given == "auto"
        given = _stacks_of(plan.layers, blocks, modules) if auto else find_blocks(model, given)
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


def _stacks_of(
    layers: Sequence[str], blocks: list[str], modules: dict[str, nn.Module]
) -> list[str]:
    """The blocks, and what their stacks have after the last of them of the same class.

    But where the plan has a layer between that block and the next: it may run the others, as it
    does where no gradient comes to them.
    """
    found = []
    between = {layers[i] for i, after in enumerate(layers[1:]) if after not in modules}
    between.discard(blocks[-1])
    for i, name in enumerate(blocks):
        found.append(name)
        if name in between:
            continue
        parent = name.rpartition(".")[0]
        stack = modules[parent]
        if parent in [other.rpartition(".")[0] for other in blocks[i + 1 :]]:
            continue
        if not isinstance(stack, (nn.ModuleList, nn.Sequential)):
            continue
        names = [f"{parent}.{key}" if parent else key for key, _ in stack.named_children()]
        after = names[names.index(name) + 1 :] if name in names else []
        found += [other for other in after if type(modules[other]) is type(modules[name])]
    return found
