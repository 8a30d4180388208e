"""The part of an exported Python file that is the same in all of them: it needs torch alone.

It does what `scheduler.pytorch.apply` does, with less said about models that it refuses.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from scheduler.costs.keeps import Keeps
from scheduler.export.exported import Source, as_comment
from scheduler.export.standalone.keeps import KEEPS
from scheduler.export.standalone.segment import SEGMENT
from solvers.schedule import Checkpoint, Item, Keep

__all__ = ["IMPORTS", "RUNTIME", "checkpoints", "data", "head", "policies", "quoted"]

IMPORTS = """\
from __future__ import annotations

import inspect
import sys
import weakref
from collections import Counter
from contextlib import contextmanager, nullcontext
from types import MethodType

import torch
import torch.utils.checkpoint as of_torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, checkpoint
"""


def head(title: str, source: Source, notes: tuple[str, ...]) -> str:
    """A file's first lines: what it is, the plan in short, and what it has instead of the plan."""
    made = "Written by checkpoint-scheduler; depends on nothing of it."
    return as_comment([title, made, "", *source.summary(), *(("", *notes) if notes else ())])


def checkpoints(source: Source) -> list[tuple[str, str]]:
    """First and last layer of every checkpoint, an outer one before those inside it."""
    layers = source.plan.layers
    found: list[tuple[str, str]] = []
    todo: list[Item] = list(reversed(source.plan.items))
    while todo:
        item = todo.pop()
        if isinstance(item, Checkpoint):
            found.append((layers[item.first], layers[item.last]))
            todo.extend(reversed(item.body))
    return found


def data(source: Source) -> str:
    """The plan as Python literals."""
    names = "".join(f"    {quoted(name)},\n" for name in source.plan.layers)
    spans = "".join(f"    ({quoted(a)}, {quoted(b)}),\n" for a, b in checkpoints(source))
    ways = [item.option for item in source.plan.items if isinstance(item, Keep)]
    in_part = sum(option is not None for option in ways)
    kept = f"{len(ways)} of {len(source.plan.layers)} layers are kept"
    kept += f", {in_part} of them in part" if in_part else ""
    return (
        f"LAYERS = [\n{names}]\n"
        f"# {kept}.\n"
        "# Each checkpoint runs from a first to a last layer; one inside another is nested in it.\n"
        f"CHECKPOINTS = {_listed(spans)}\n"
    )


def policies(source: Source, target: str) -> str:
    """What the plan's options keep, as Python literals; equal policies once.

    Raises
    ------
    InvalidPlan
        The plan does not say what an option keeps.
    """
    chosen = source.policies(target)
    different: dict[Keeps, str] = {}
    for i, (option, keeps) in sorted(chosen.items()):
        different.setdefault(keeps, f"option {quoted(option)}, of {source.plan.layers[i]}")
    numbers = {keeps: number for number, keeps in enumerate(different)}
    texts = "".join(f"    # {name}\n    {_policy(keeps)},\n" for keeps, name in different.items())
    of = "".join(
        f"    {quoted(source.plan.layers[i])}: {numbers[keeps]},\n"
        for i, (_, keeps) in sorted(chosen.items())
    )
    return (
        "# What stays of a block under an option: results of operations, by which calls of them.\n"
        f"POLICIES = {_listed(texts)}\n"
        "# Blocks kept under an option: the number of the policy.\n"
        f"OPTIONS = {_listed(of, '{}')}\n"
    )


def quoted(text: str) -> str:
    """Text on one line as a Python literal in double quotes."""
    return json.dumps(text, ensure_ascii=False)


def _policy(keeps: Keeps) -> str:
    """One policy, laid out as formatters do."""
    calls: dict[str, list[int]] = {}
    for operation, call in sorted(keeps):
        calls.setdefault(operation, []).append(call)
    return f"{{\n{''.join(_calls(name, numbers) for name, numbers in calls.items())}    }}"


def _calls(operation: str, numbers: Iterable[int]) -> str:
    line = f"        {quoted(operation)}: {list(numbers)},\n"
    if len(line) <= _WIDTH:
        return line
    listed = "".join(f"            {number},\n" for number in numbers)
    return f"        {quoted(operation)}: [\n{listed}        ],\n"


def _listed(lines: str, brackets: str = "[]") -> str:
    return f"{brackets[0]}\n{lines}{brackets[1]}" if lines else brackets


_WIDTH = 101
"""Of a line with its end."""

_APPLY = '''\
def apply_plan(model):
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
        [(position[a], position[b], None) for a, b in CHECKPOINTS],
        [(position[name], position[name], POLICIES[n]) for name, n in OPTIONS.items()],
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
    for module in modules.values():
        config = getattr(module, "config", None)
        if getattr(config, "use_cache", False) is True:
            config.use_cache = False  # a generation cache would keep what is to be dropped
            applied.configs.append(config)
    return applied


def _check(module, name):
    if isinstance(module.__dict__.get("forward"), _Block):
        raise ValueError(f"a plan is already applied to {name!r}")
    if getattr(module, "_compiled_call_impl", None) is not None:
        raise ValueError(f"compile {name!r} by block.forward = torch.compile(block.forward)")
    compiled = [m for m in module.modules() if hasattr(m.forward, "_torchdynamo_orig_callable")]
    if name in OPTIONS and compiled:
        raise ValueError(f"{name!r} is compiled: no results from inside it can be kept")


class Applied:
    """An applied plan."""

    def __init__(self):
        self.blocks = []
        self.configs = []

    def remove(self):
        """Put every forward back."""
        for block in self.blocks:
            if block.module.__dict__.get("forward") is block:
                if block.own is None:
                    del block.module.forward
                else:
                    block.module.forward = block.own
        for config in self.configs:
            config.use_cache = True
        self.blocks, self.configs = [], []


class _Tree:
    """A checkpoint of blocks and checkpoints; with `keeps` that of one block under an option."""

    def __init__(self, first, last, keeps):
        self.first, self.last, self.keeps, self.inner = first, last, keeps, []

    def depth(self):
        """How deep checkpoints nest."""
        deepest, level = 0, [self]
        while level:
            deepest, level = deepest + 1, [inner for tree in level for inner in tree.inner]
        return deepest

    def parts(self):
        """What it runs again: blocks by their numbers, and checkpoints."""
        found, at = [], self.first
        for inner in self.inner:
            found += [*range(at, inner.first), inner]
            at = inner.last + 1
        return [*found, *range(at, self.last + 1)]

    def stopping(self):
        """Whether its recomputation may end early. A block under an option saves its own."""
        ending = self.parts()[-1]
        whole = isinstance(ending, _Tree) and ending.keeps is not None
        return of_torch.set_checkpoint_early_stop(False) if whole else nullcontext()


def _trees(spans, options):
    """The outermost checkpoints, with those inside them."""
    roots, open_ = [], []
    for first, last, keeps in sorted(spans + options, key=lambda span: (span[0], -span[1])):
        while open_ and first > open_[-1].last:
            open_.pop()
        tree = _Tree(first, last, keeps)
        (open_[-1].inner if open_ else roots).append(tree)
        open_.append(tree)
    return roots
'''

RUNTIME = "\n\n".join([_APPLY, SEGMENT, KEEPS])
"""`apply_plan` and all it needs, for a file that has `data`, `policies` and `IMPORTS`."""
