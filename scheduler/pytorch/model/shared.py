"""Parameters that several parts of a model share have one gradient, which the first one makes.

First in the order of the backward: what comes after the blocks, the last block, ..., what comes
before them. A part that is run by itself must find there what others have made before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from scheduler.pytorch.model.calls import CalledBlock


def own_parameters(module: nn.Module, others: Iterable[Any] = ()) -> list[torch.Tensor]:
    """Parameters to which a block gives a gradient: its module's, and those among `others`."""
    handed = [t for t in others if isinstance(t, torch.Tensor) and t.is_leaf and t.requires_grad]
    trained = [p for p in module.parameters() if p.requires_grad]
    return list({id(p): p for p in [*trained, *handed]}.values())


def used_outside(model: nn.Module, blocks: Sequence[CalledBlock]) -> list[nn.Parameter]:
    """Trained parameters of the blocks that are modules' outside of them, too."""
    prefixes = tuple(f"{block.name}." for block in blocks)
    named = list(model.named_parameters(remove_duplicate=False))
    outside = {id(p) for name, p in named if not name.startswith(prefixes)}
    inside = {id(p): p for name, p in named if name.startswith(prefixes) and p.requires_grad}
    return [p for key, p in inside.items() if key in outside]


def shared_names(model: nn.Module) -> list[tuple[str, str]]:
    """Pairs of names of one parameter: the first, and each other."""
    first: dict[int, str] = {}
    pairs = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            pairs.append((first[id(parameter)], name))
        first.setdefault(id(parameter), name)
    return pairs
