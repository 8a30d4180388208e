"""The least time of a pipeline over all cuts and nested plans of its stages, with a proof."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from solvers.methods import Limits
from solvers.pipeline.problem import Pipeline
from solvers.pipeline.stages import Stages
from solvers.problem import LIMIT
from solvers.schedule import Item
from solvers.solution import Status

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Solution:
    """Cuts and plans, with what is proven.

    Attributes
    ----------
    cuts
        The first layer of each stage, and the number of layers behind them.
    plans
        Of each stage, of a chain that has only its layers.
    time
        Of one step.
    lower_bound_time
        No cuts and plans within the budgets take less.
    """

    cuts: tuple[int, ...]
    plans: tuple[tuple[Item, ...], ...]
    time: int
    lower_bound_time: int

    @property
    def status(self) -> Status:
        """`OPTIMAL` only when the bound proves it."""
        return Status.OPTIMAL if self.time <= self.lower_bound_time else Status.FEASIBLE


def encoded(pipeline: Pipeline) -> NDArray[np.int64]:
    """The orders as the kernel reads them: m forward, ~m backward."""
    import numpy as np

    return np.array(
        [[m if kind == "F" else ~m for kind, m in order] for order in pipeline.orders], np.int64
    )


def solve(pipeline: Pipeline, limits: Limits | None = None) -> Solution | None:
    """The fastest cuts and plans; None where no cuts have plans within the budgets.

    Raises
    ------
    Unsuitable
        There are too many layers for the memory limit.
    """
    import numpy as np

    from solvers.pipeline import kernel

    limits = limits or Limits()
    start = time.monotonic()
    stages = Stages(pipeline, limits.memory_limit)
    progress = np.array([LIMIT, 0])
    stop = np.zeros(1, np.bool_)
    cuts = limits.run(
        lambda: kernel.best_cuts(
            stages.times,
            stages.forward,
            encoded(pipeline),
            pipeline.communication_time,
            progress,
            stop,
        ),
        stop,
        start,
    )
    best, lower = progress.tolist()
    if best >= LIMIT:
        return None
    spans = zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)
    plans = tuple(stages.plan(p, i, e - 1) for p, (i, e) in enumerate(spans))
    return Solution(tuple(cuts.tolist()), plans, best, lower)
