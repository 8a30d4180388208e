"""A plan put on a model: what an exported file is called by."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from scheduler.export.standalone.caches import hand_no_caches
from scheduler.export.standalone.plan import CHECKPOINTS, LAYERS, OPTIONS, POLICIES, _Tree, _trees
from scheduler.export.standalone.segment import _Block, _Segment


def apply_plan(model: Any) -> Applied:
    """Checkpoint the model's blocks as the plan says; ``.remove()`` on the result undoes it.

    Parameter names stay as they are, and gradients are bitwise the same, also with dropout. Random
    numbers of Python and numpy inside a block are not repeated: keep such a block.
    """
    while isinstance(model, nn.parallel.DistributedDataParallel):
        model = model.module
    if hasattr(model, "_orig_mod"):
        raise ValueError("compile the model's blocks, not the whole model: it undoes nesting")
    modules = dict(model.named_modules())
    if any(getattr(m, "gradient_checkpointing", False) is True for m in modules.values()):
        raise ValueError("switch the model's own gradient checkpointing off first")
    position = {name: i for i, name in enumerate(LAYERS)}
    trees = _trees(
        [(position[a], position[b], None) for a, b in CHECKPOINTS]
        + [(position[name], position[name], POLICIES[n]) for name, n in OPTIONS.items()]
    )
    needed = 200 + 6 * max(map(_Tree.depth, trees), default=0)
    if needed > sys.getrecursionlimit():
        raise ValueError(f"the plan nests deep: call sys.setrecursionlimit({needed}) first")
    applied = Applied()
    for tree in trees:
        names = LAYERS[tree.first : tree.last + 1]
        for name in names:
            if name not in modules:
                raise ValueError(f"{type(model).__name__} has no module {name!r} of the plan")
            _check(modules[name], name)
        segment = _Segment(tree, [modules[name] for name in names])
        applied.blocks.extend(segment.blocks)
    for block in applied.blocks:
        block.module.forward = block
    inside = {LAYERS[block.number] for block in applied.blocks}  # which see to it themselves
    kept = {name: modules[name] for name in LAYERS if name in modules and name not in inside}
    applied.hooks = hand_no_caches(model, kept, RuntimeError)
    return applied


def _check(module: nn.Module, name: str) -> None:
    if isinstance(module.__dict__.get("forward"), _Block):
        raise ValueError(f"a plan is already applied to {name!r}")
    if getattr(module, "_compiled_call_impl", None) is not None:
        raise ValueError(f"compile {name!r} by block.forward = torch.compile(block.forward)")
    compiled = [m for m in module.modules() if hasattr(m.forward, "_torchdynamo_orig_callable")]
    if name in OPTIONS and compiled:
        raise ValueError(f"{name!r} is compiled: no results from inside it can be kept")


class Applied:
    """An applied plan."""

    def __init__(self) -> None:
        self.blocks: list[_Block] = []
        self.hooks: list[Any] = []

    def remove(self) -> None:
        """Put every forward back."""
        for block in self.blocks:
            if block.module.__dict__.get("forward") is block:
                if block.own is None:
                    del block.module.forward
                else:
                    block.module.forward = block.own
        for hook in self.hooks:
            hook.remove()
        self.blocks, self.hooks = [], []
