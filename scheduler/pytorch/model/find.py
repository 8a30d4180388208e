"""Find the blocks of a model: a stack of equal modules, a pattern, or names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from scheduler.common.errors import UnsupportedModel
from scheduler.common.text import did_you_mean


@dataclass(frozen=True)
class Found:
    """Which modules are the blocks, and why these.

    Attributes
    ----------
    names
        Of the blocks, in the order in which they run.
    how
        The end of a sentence: "found as the stack 'model.layers'".
    others
        Stacks that were not taken, by name, with the number of their blocks.
    """

    names: list[str]
    how: str
    others: dict[str, int]


def find_blocks(model: nn.Module, blocks: str | Iterable[str] = "auto") -> list[str]:
    """Names of the blocks that a plan may checkpoint, in the order in which they run.

    Parameters
    ----------
    model
        An `nn.Sequential` (its children), or a model with one stack of equal blocks.
    blocks
        "auto"; a pattern such as ``"decoder.block.*"``, in which ``*``, ``?`` and ``[1-9]`` stand
        for what they do in file names, within one part between dots; or the names themselves, as
        `model.named_modules()` gives them.

    Raises
    ------
    UnsupportedModel
        No stack, several equally large ones, a pattern without a match, or a name that is not a
        module of the model.
    """
    return look_for(model, blocks).names


def is_pattern(name: str) -> bool:
    """Whether a name stands for every module that it matches."""
    return any(character in name for character in "*?[")


def look_for(model: nn.Module, blocks: str | Iterable[str] = "auto") -> Found:
    """`find_blocks`, with reasons."""
    if not isinstance(blocks, str):
        return Found(_named(model, list(blocks)), "named", {})
    if blocks == "auto":
        return _stack(model)
    if not is_pattern(blocks):
        raise UnsupportedModel(
            "blocks must be 'auto', a pattern such as 'layers.*' or a list of module names, got "
            f"{blocks!r}; for one block write blocks=[{blocks!r}]"
        )
    parts = blocks.split(".")
    names = [name for name, _ in model.named_modules() if _matches(name.split("."), parts)]
    if not names:
        raise UnsupportedModel(
            f"no module of {type(model).__name__} matches the pattern {blocks!r}; a * stands for "
            "one part of a name between dots, as in 'model.layers.*'"
        )
    return Found(names, f"named by the pattern {blocks!r}", {})


def _matches(name: list[str], pattern: list[str]) -> bool:
    return len(name) == len(pattern) and all(map(fnmatchcase, name, pattern))


def _named(model: nn.Module, names: list[str]) -> list[str]:
    modules = dict(model.named_modules())
    for name in names:
        if name not in modules or not name:
            raise UnsupportedModel(
                f"{type(model).__name__} has no module {name!r}{did_you_mean(name, modules)}"
            )
        if names.count(name) > 1:
            raise UnsupportedModel(f"block {name!r} is named twice; each runs once in a chain")
    if not names:
        raise UnsupportedModel("the list of blocks is empty; name at least one module")
    return names


def _stack(model: nn.Module) -> Found:
    if isinstance(model, nn.Sequential) and len(model):
        return Found([n for n, _ in model.named_children()], "the children of the Sequential", {})
    stacks = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and _is_stack(module)
    ]
    # A stack inside another stack's block is that block's business.
    outer = [(n, m) for n, m in stacks if not any(n.startswith(f"{o}.") for o, _ in stacks)]
    if not outer:
        raise UnsupportedModel(
            f"no stack of equal blocks was found in {type(model).__name__}; "
            "name the blocks: blocks=['encoder.0', 'encoder.1', ...]"
        )
    sizes = {name: sum(p.numel() for p in module.parameters()) for name, module in outer}
    largest = max(sizes, key=lambda name: sizes[name])
    rivals = [name for name in sizes if name != largest and 2 * sizes[name] > sizes[largest]]
    if rivals:
        raise UnsupportedModel(
            f"{type(model).__name__} has several stacks of blocks ({largest!r}, {rivals[0]!r}); "
            f"name the blocks of one: blocks='{largest}.*'"
        )
    stack = dict(outer).pop(largest)
    return Found(
        [f"{largest}.{name}" for name, _ in stack.named_children()],
        f"found as the stack {largest!r}",
        {name: len(list(module.children())) for name, module in outer if name != largest},
    )


def _is_stack(module: nn.ModuleList | nn.Sequential) -> bool:
    """At least two children of one class that have children of their own."""
    kinds = {type(child) for child in module}
    return len(module) > 1 and len(kinds) == 1 and all(list(c.children()) for c in module)
