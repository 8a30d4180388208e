"""Cheaper ways to keep a block: each is run as it will be run, and what it holds is read off."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from scheduler.costs.keeps import Keeps
from scheduler.costs.layer import OptionCost
from scheduler.costs.options.inside import Inside
from scheduler.costs.options.pareto import Wanted, option_cost, wanted
from scheduler.pytorch.checkpointing.selective import HandedBack, Selection, check_torch
from scheduler.pytorch.observe.clock import Clock
from scheduler.pytorch.observe.layer import IsolatedLayer, see_bytes
from scheduler.pytorch.observe.peaks import Peaks
from scheduler.pytorch.profiling.operations import look_inside

__all__ = ["SeenOptions", "see_options"]


@dataclass(frozen=True)
class SeenOption:
    """One way to keep a block, as it was seen.

    Attributes
    ----------
    want
        What is kept.
    peaks
        Bytes of the block while it runs that way; its times are not used.
    """

    want: Wanted
    peaks: Peaks

    def cost(self, layer: Peaks, more: int) -> OptionCost:
        """What it costs, for the block as `layer`, with `more` bytes live in every forward."""
        more += max(layer.again_peak - layer.forward_peak, 0)
        return option_cost(self.want, self.peaks, layer, more)


@dataclass(frozen=True)
class SeenOptions:
    """All options of a block.

    Attributes
    ----------
    inside
        The operations they choose among.
    ways
        The options.
    gap
        At any budget of bytes, the best of the Pareto set that is left takes at most this much
        longer, in ms, than the best of all of it.
    """

    inside: Inside
    ways: tuple[SeenOption, ...]
    gap: float


def see_options(name: str, layer: IsolatedLayer, peaks: Peaks, clock: Clock) -> SeenOptions:
    """Find the options of the block `name`, which costs `peaks` when it is kept whole.

    Raises
    ------
    UnsupportedModel
        Its operations are not the same each time that it runs, or torch cannot keep their results.
    """
    check_torch()
    inside = look_inside(layer, clock)
    if not peaks.repeatable:
        return SeenOptions(inside, (), 0.0)
    found, gap = wanted(inside, peaks.recompute_time, peaks.saved_bytes)
    ways = []
    for want in found:
        seen, _ = see_bytes(replace(layer, run=_selective(name, layer, want.keeps)))
        if seen.saved_bytes <= peaks.saved_bytes:
            ways.append(SeenOption(want, seen))
    return SeenOptions(inside, tuple(ways), gap)


def _selective(name: str, layer: IsolatedLayer, keeps: Keeps) -> Any:
    def contexts() -> tuple[Any, Any]:
        selections = {0: Selection(name, keeps)}
        return selections[0].forward, HandedBack(selections, 0)

    def run(activation: torch.Tensor, sides: list[torch.Tensor]) -> Any:
        return checkpoint(
            lambda given: layer.run(given, sides),
            activation,
            use_reentrant=False,
            context_fn=contexts,
        )

    return run
