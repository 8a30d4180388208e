"""What executing a plan on its costs gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Measured", "PlanReplay"]


@dataclass(frozen=True)
class PlanReplay:
    """What a plan does when it is executed on its costs.

    Attributes
    ----------
    peak_bytes
        The largest number of bytes live at any moment, without reserved ones.
    time
        Time of one step, in the plan's time unit.
    set_by
        What needs that much first: ``the backward of 'head'``.
    """

    peak_bytes: int
    time: float
    set_by: str


class Measured(NamedTuple):
    """The same with the time in the solvers' integer ticks."""

    peak_bytes: int
    ticks: int
    set_by: str
