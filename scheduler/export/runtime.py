"""The part of an exported Python file that is the same in all of them: it needs torch alone.

It does what `scheduler.pytorch.apply` does, with less said about models that it refuses.
"""

from __future__ import annotations

import json

from scheduler.export.exported import Source, as_comment
from solvers.schedule import Checkpoint, Item, Keep

__all__ = ["IMPORTS", "RUNTIME", "checkpoints", "data", "head", "quoted"]

IMPORTS = """\
from __future__ import annotations

import sys
from contextlib import nullcontext
from types import MethodType

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint
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
    kept = sum(isinstance(item, Keep) for item in source.plan.items)
    return (
        f"LAYERS = [\n{names}]\n"
        f"# {kept} of {len(source.plan.layers)} layers are kept. Each checkpoint runs from a first "
        "to a last layer;\n# one inside another is nested in it.\n"
        f"CHECKPOINTS = [\n{spans}]\n"
    )


def quoted(text: str) -> str:
    """Text on one line as a Python literal in double quotes."""
    return json.dumps(text, ensure_ascii=False)


RUNTIME = '''\
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
    trees = _trees([(position[a], position[b]) for a, b in CHECKPOINTS])
    needed = 200 + 6 * max(map(_Tree.depth, trees), default=0)
    if needed > sys.getrecursionlimit():
        raise ValueError(f"the plan nests deep: call sys.setrecursionlimit({needed}) first")
    applied = Applied()
    for tree in trees:
        names = LAYERS[tree.first : tree.last + 1]
        for name in names:
            if name not in modules:
                raise ValueError(f"{type(model).__name__} has no module {name!r} of the plan")
            if isinstance(modules[name].__dict__.get("forward"), _Block):
                raise ValueError(f"a plan is already applied to {name!r}")
        segment = _Segment(tree, [modules[name] for name in names], names)
        applied.blocks.extend(segment.blocks)
    for block in applied.blocks:
        block.module.forward = block
    for module in modules.values():
        config = getattr(module, "config", None)
        if getattr(config, "use_cache", False) is True:
            config.use_cache = False  # a generation cache would keep what is to be dropped
            applied.configs.append(config)
    return applied


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
    def __init__(self, first, last):
        self.first, self.last, self.inner = first, last, []

    def depth(self):
        """How deep checkpoints nest."""
        deepest, level = 0, [self]
        while level:
            deepest, level = deepest + 1, [inner for tree in level for inner in tree.inner]
        return deepest


def _trees(spans):
    """The outermost checkpoints; each is followed in the list by those inside it."""
    roots, open_ = [], []
    for first, last in spans:
        while open_ and first > open_[-1].last:
            open_.pop()
        tree = _Tree(first, last)
        (open_[-1].inner if open_ else roots).append(tree)
        open_.append(tree)
    return roots


class _Block:
    """Stands in for the forward of a module."""

    def __init__(self, module, name, segment):
        self.module, self.name, self.segment = module, name, segment
        self.own = module.__dict__.get("forward")

    @property
    def original(self):
        # Looked up each time, so that a copy of the model runs its own modules.
        return self.own or MethodType(type(self.module).forward, self.module)

    def __call__(self, *args, **kwargs):
        if not torch.is_grad_enabled():
            return self.original(*args, **kwargs)
        return _outside_graphs(self, args, kwargs)


@torch.compiler.disable
def _outside_graphs(block, args, kwargs):
    # Compiled together, nested checkpoints would become one.
    segment = block.segment
    if block is not segment.blocks[0]:
        return segment.pass_on(block, args, kwargs)
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)  # it would hold the weights that autocast casts
    try:
        return segment.run(args, kwargs)
    finally:
        torch.set_autocast_cache_enabled(cached)


class _Segment:
    """A checkpoint of the plan: its first block runs all, the others pass the result on."""

    def __init__(self, tree, modules, names):
        self.tree = tree
        self.blocks = [_Block(module, name, self) for module, name in zip(modules, names)]
        self.norms = [m for top in modules for m in top.modules() if isinstance(m, _BatchNorm)]
        self.forms = {}  # how each block packs its output
        self._forget()

    def _forget(self):
        self.result, self.others, self.next = None, None, 0

    def __getstate__(self):
        return {**self.__dict__, "result": None, "others": None, "next": 0}

    def run(self, args, kwargs):
        self._forget()
        for block in self.blocks if len(self.blocks) > 1 else ():
            hooks = block.module._forward_hooks or block.module._forward_pre_hooks
            if hooks and not any(c.__name__ == "FSDPModule" for c in type(block.module).__mro__):
                raise RuntimeError(f"{block.name!r} has a hook, and shares a segment with others")
        place = _place(self.blocks[0].name, args, kwargs)
        activation, args, kwargs = _take(place, args, kwargs)
        result = self._checkpoint(self.tree, activation, place, args, kwargs)
        if len(self.blocks) > 1:
            self.result, self.others, self.next = result, (args, kwargs), 1
        return self._packed(self.tree.first, result)

    def pass_on(self, block, args, kwargs):
        first = self.blocks[0].name
        activation, args, kwargs = _take(_place(block.name, args, kwargs), args, kwargs)
        if self.result is None or block is not self.blocks[self.next]:
            raise RuntimeError(f"{block.name!r} runs out of order in the segment of {first!r}")
        if activation is not self.result or not _same((args, kwargs), self.others):
            raise RuntimeError(
                f"{block.name!r} is not called with what {first!r} returned and otherwise alike, "
                "though they share a segment of the plan"
            )
        result = self.result
        self.next += 1
        if self.next == len(self.blocks):
            self._forget()
        return self._packed(self.tree.first + self.blocks.index(block), result)

    def _checkpoint(self, tree, activation, place, args, kwargs):
        def body(activation):
            at = tree.first
            for inner in [*tree.inner, None]:
                for i in range(at, inner.first if inner else tree.last + 1):
                    activation = self._forward(i, activation, place, args, kwargs)
                if inner:
                    activation = self._checkpoint(inner, activation, place, args, kwargs)
                    at = inner.last + 1
            return activation

        def contexts():
            return nullcontext(), _Repeating(self.norms)

        return checkpoint(body, activation, use_reentrant=False, context_fn=contexts)

    def _forward(self, i, activation, place, args, kwargs):
        block = self.blocks[i - self.tree.first]
        output = block.original(*_put(place, activation, args), **_put(place, activation, kwargs))
        if torch.is_tensor(output):
            self.forms[i] = None
            return output
        first, *rest = output if isinstance(output, (tuple, list)) else [None]
        if not torch.is_tensor(first) or any(map(torch.is_tensor, rest)):
            raise RuntimeError(f"{block.name!r} must return one tensor, or one first in a tuple")
        self.forms[i] = (type(output), rest)
        return first

    def _packed(self, i, result):
        if self.forms[i] is None:
            return result
        kind, rest = self.forms[i]
        return kind(result, *rest) if hasattr(kind, "_fields") else kind([result, *rest])


class _Repeating:
    """A recomputation: batch norms count each batch once."""

    def __init__(self, norms):
        self.norms = norms

    def __enter__(self):
        self.before = [(norm.momentum, norm.num_batches_tracked) for norm in self.norms]
        for norm in self.norms:
            norm.momentum, norm.num_batches_tracked = 0.0, None

    def __exit__(self, *error):
        for norm, (momentum, count) in zip(self.norms, self.before):
            norm.momentum, norm.num_batches_tracked = momentum, count


def _place(name, args, kwargs):
    """Where among the arguments the activation is: a position or a keyword."""
    for i, value in enumerate(args):
        if torch.is_tensor(value):
            return i
    for key in sorted(kwargs, key=lambda key: key != "hidden_states"):
        if torch.is_tensor(kwargs[key]):
            return key
    raise RuntimeError(f"{name!r} was called without a tensor")


def _take(place, args, kwargs):
    if isinstance(place, int):
        return args[place], (*args[:place], None, *args[place + 1 :]), kwargs
    return kwargs[place], args, {**kwargs, place: None}


def _put(place, activation, among):
    if isinstance(among, dict):
        return {**among, place: activation} if isinstance(place, str) else among
    if isinstance(place, str):
        return among
    return (*among[:place], activation, *among[place + 1 :])


def _same(a, b):
    if a is b:
        return True
    if type(a) is not type(b) or torch.is_tensor(a):
        return False
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return bool(a == b)
'''
