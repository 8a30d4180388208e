"""Units of fully_shard (FSDP2), whose parameters are there only around their forward and backward.

A unit's hooks gather its parameters before its forward and before its backward. A recomputation
runs no hooks, and runs blocks whose backward comes later: it gathers them itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from torch import nn

from scheduler.common.errors import UnsupportedModel


def is_unit(module: nn.Module) -> bool:
    """Whether a module is a unit of fully_shard: by name, as importing FSDP is slow."""
    kind: Any = type(module)
    return _is_of_units(kind)


@lru_cache(maxsize=256)
def _is_of_units(kind: Any) -> bool:
    return any(each.__name__ == "FSDPModule" for each in kind.__mro__)


def gather(module: Any) -> None:
    """Gather a unit's parameters, where they are not; they stay until its backward."""
    if is_unit(module):
        module.unshard()


def scatter(module: Any) -> None:
    """Let go of what was gathered of a unit that will be run again before its backward."""
    if is_unit(module):
        module.reshard()


def check_units(model: nn.Module, names: Sequence[str]) -> None:
    """Raise `UnsupportedModel` where blocks lie in different units that are more than a block.

    Such a unit cannot be gathered from one of its blocks, which do not know it.
    """
    units = [_unit_above(model, name) for name in names]
    for name, unit in zip(names, units, strict=True):
        if unit != units[0]:
            raise UnsupportedModel(
                f"block {name!r} is in another unit of fully_shard ({unit or 'the model'!r}) than "
                f"block {names[0]!r} ({units[0] or 'the model'!r}), with which it shares a segment "
                "of the plan: their parameters would not be gathered; shard block by block, or "
                "solve with method='every-layer'"
            )


def _unit_above(model: nn.Module, name: str) -> str:
    """Name of the smallest unit that a block is a part of, itself left out."""
    above = name.rpartition(".")[0]
    while above and not is_unit(model.get_submodule(above)):
        above = above.rpartition(".")[0]
    return above
