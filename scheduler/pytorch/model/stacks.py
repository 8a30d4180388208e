"""The stacks of a model, seen by running it: lists whose modules it calls once each, in a row."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from torch import nn

from scheduler.common.errors import UnsupportedModel
from scheduler.pytorch.model.call import Call, NoChain, activation_of, extras_of
from scheduler.pytorch.model.calls import call_watched
from scheduler.pytorch.observe.dispatch import OperationMode, tensors_of


@dataclass
class _Module:
    """A child of a list, as it was called.

    Attributes
    ----------
    begins, ends
        When its first call began and ended, by a count of all such moments.
    calls
        How often it was called; as none where that was without a tensor, or gave none.
    form
        Of its activation.
    entered, around
        Did a module inside it begin, and was the activation read outside of such modules then?
    hands_on
        Is another tensor that it makes beside its activation handed to a module called later?
    """

    name: str
    begins: int = 0
    ends: int = 0
    calls: int = 0
    form: Any = None
    entered: bool = False
    around: bool = False
    hands_on: bool = False
    storage: weakref.ref[Any] | None = field(default=None, repr=False)

    @property
    def is_block(self) -> bool:
        """Whether it may be a block of a chain."""
        return self.calls == 1 and self.form is not None


def stacks_of(model: nn.Module, inputs: Any) -> tuple[list[str], dict[str, list[str]]]:
    """Names of the modules that are blocks, as they run; those of every list with a block.

    A block is a module in an `nn.ModuleList` or `nn.Sequential` that is called once, with a tensor,
    and gives one. Lists in a block are that block's business, but where the blocks of a list are
    stages: they are given activations of different shapes, and hold stacks themselves, around which
    nothing leads. A block that hands later ones more than its activation is none.

    Raises `UnsupportedModel` where there is none.
    """
    lists = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (nn.ModuleList, nn.Sequential))
    }
    for composite in (True, False):  # single operations are blocks only where nothing else is
        children = {
            name: [
                f"{name}.{key}" if name else key
                for key, child in module.named_children()
                if not composite or not name or list(child.children())
            ]
            for name, module in lists.items()
        }
        seen = _watch(model, inputs, {name for names in children.values() for name in names})
        stacks = dict(_outermost(children, seen))
        blocks = sorted((seen[n] for names in stacks.values() for n in names), key=_begins)
        blocks = [b for i, b in enumerate(blocks) if not i or b.begins > _latest(blocks[:i])]
        if names := [block.name for block in blocks if not block.hands_on]:
            return names, stacks
    raise NoChain(
        f"no stack of blocks was found in {type(model).__name__}: it has no list of modules of "
        "which each is called once, with a tensor; name the blocks: blocks=['encoder.0', ...]"
    )


def listed(model: nn.Module) -> list[str]:
    """Names of the modules in the outermost lists, which may be blocks."""
    found: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)):
            names = [f"{name}.{key}" if name else key for key, _ in module.named_children()]
            found += [n for n in names if not any(n.startswith(f"{each}.") for each in found)]
    return found


def _begins(module: _Module) -> int:
    return module.begins


def _latest(modules: list[_Module]) -> int:
    return max(module.ends for module in modules)


def _outermost(
    children: dict[str, list[str]], seen: dict[str, _Module]
) -> Iterator[tuple[str, list[str]]]:
    """The lists that are stacks, with their blocks; those with other blocks inside left out."""
    taken: list[str] = []
    for name, names in children.items():
        if any(name == other or name.startswith(f"{other}.") for other in taken):
            continue
        blocks = [n for n in names if seen[n].is_block]
        if stages := _stages(blocks, children, seen):
            blocks = [n for n in blocks if n not in stages]
        taken += blocks
        if blocks:
            yield name, blocks


def _stages(
    blocks: list[str], children: dict[str, list[str]], seen: dict[str, _Module]
) -> list[str]:
    """Those that are not blocks, but hold them."""
    if all(seen[a].form == seen[b].form for a, b in pairwise(blocks)):
        return []
    inside = {
        block: [
            n
            for name, names in children.items()
            if name == block or name.startswith(f"{block}.")
            for n in names
            if seen[n].is_block
        ]
        for block in blocks
    }
    stages = [block for block in blocks if inside[block]]
    return [] if any(seen[block].around for block in stages) else stages


def _watch(model: nn.Module, inputs: Any, names: set[str]) -> dict[str, _Module]:
    """Run the model without gradients and see how modules are called."""
    seen = {name: _Module(name) for name in names}
    running: list[tuple[_Module, Call | None]] = []
    extras: list[tuple[weakref.ref[Any], _Module]] = []
    moment = 0

    def before(name: str, args: Any, kwargs: Any) -> None:
        nonlocal moment
        moment += 1
        module = seen[name]
        if running:
            running[-1][0].entered = True
        module.calls += 1
        module.begins = module.begins or moment
        try:
            call = Call.of(name, args, kwargs)
        except UnsupportedModel:
            running.append((module, None))
            return
        handed = [t.untyped_storage() for t in tensors_of(call.others)]
        for storage, maker in extras:
            # What a module hands on inside of another is not that one's.
            if maker.ends and any(storage() is one for one in handed):
                maker.hands_on = True
        module.form = (call.activation.shape, call.activation.dtype)
        module.storage = weakref.ref(call.activation.untyped_storage())
        running.append((module, call.without_activation()))

    def after(name: str, _: nn.Module, output: Any) -> None:
        nonlocal moment
        moment += 1
        module, call = running.pop()
        module.ends = module.ends or moment
        try:
            if call is None or not activation_of(name, output).is_floating_point():
                module.form = None
                return
        except UnsupportedModel:
            module.form = None
            return
        activation = activation_of(name, output).untyped_storage()
        mine = [t.untyped_storage() for t in extras_of(call.mark(output))]
        extras.extend((weakref.ref(one), module) for one in mine if one is not activation)

    class Reads(OperationMode):
        def _operation(self, func: Any, args: Any, kwargs: Any) -> Any:
            module = running[-1][0] if running else None
            if module and module.storage and module.entered and not module.around:
                given = module.storage()
                read = [t.untyped_storage() for t in tensors_of((args, kwargs))]
                module.around = any(one is given for one in read)
            return func(*args, **kwargs)

    with Reads():
        call_watched(model, inputs, sorted(names), before, after)
    return seen
