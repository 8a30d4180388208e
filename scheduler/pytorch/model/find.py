"""Find the blocks of a model: those of its stacks, a pattern, or names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from scheduler.common.errors import UnsupportedModel
from scheduler.common.text import did_you_mean
from scheduler.pytorch.model.stacks import stacks_of
from scheduler.pytorch.model.step import untouched


@dataclass(frozen=True)
class Found:
    """Which modules are the blocks, in the order in which they run, and why these."""

    names: list[str]
    how: str  # the end of a sentence: "found as the stack 'model.layers'"
    others: list[str]  # blocks of these stacks that were not taken


def find_blocks(
    model: nn.Module, blocks: str | Iterable[str] = "auto", inputs: Any = None
) -> list[str]:
    """Names of the blocks that a plan may checkpoint, in the order in which they run.

    Parameters
    ----------
    model
        Where the blocks are to be found: an `nn.Sequential`, or a model with stacks of blocks.
    blocks
        "auto"; a pattern such as ``"decoder.block.*"``, in which ``*``, ``?`` and ``[1-9]`` stand
        for what they do in file names, within one part between dots; or the names themselves, as
        `model.named_modules()` gives them.
    inputs
        What the model is called with to find them: "auto" needs it.

    Raises
    ------
    UnsupportedModel
        No stack, a pattern without a match, or a name that is not a module of the model.
    """
    return look_for(model, blocks, inputs).names


def is_pattern(name: str) -> bool:
    """Whether a name stands for every module that it matches."""
    return any(character in name for character in "*?[")


def look_for(model: nn.Module, blocks: str | Iterable[str] = "auto", inputs: Any = None) -> Found:
    """`find_blocks`, with reasons."""
    if not isinstance(blocks, str):
        return Found(_named(model, list(blocks)), "named", [])
    if blocks == "auto":
        return _called(model, inputs)
    if not is_pattern(blocks):
        raise UnsupportedModel(
            "blocks must be 'auto', a pattern such as 'layers.*' or a list of module names, got "
            f"{blocks!r}; for one block write blocks=[{blocks!r}]"
        )
    parts = blocks.split(".")
    modules = {name: name.split(".") for name, _ in model.named_modules()}
    names = [
        name
        for name, mine in modules.items()
        if len(mine) == len(parts) and all(map(fnmatchcase, mine, parts))
    ]
    if not names:
        raise UnsupportedModel(
            f"no module of {type(model).__name__} matches the pattern {blocks!r}; a * stands for "
            "one part of a name between dots, as in 'model.layers.*'"
        )
    return Found(names, f"named by the pattern {blocks!r}", [])


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


def _called(model: nn.Module, inputs: Any) -> Found:
    with untouched(model, ()):
        names, stacks = stacks_of(model, inputs)
    if isinstance(model, nn.Sequential) and "" in stacks:
        how = "the children of the Sequential"
    else:
        kind = "the stack" if len(stacks) == 1 else "the stacks"
        how = f"found as {kind} {', '.join(map(repr, stacks))}"
    others = [name for stack in stacks.values() for name in stack if name not in names]
    return Found(names, how, others)
