"""What executing a plan on its costs gives, and what pictures ask of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from scheduler.costs.readers import Costs
from scheduler.plans.moments import Moment

__all__ = ["Measured", "PlanLike", "PlanReplay"]


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


class PlanLike(Protocol):
    """What pictures ask of a plan."""

    @property
    def method(self) -> str:
        """What made it."""

    @property
    def time(self) -> float:
        """How long a step takes."""

    @property
    def lower_bound_time(self) -> float:
        """No plan of its class within the budget takes less."""

    @property
    def time_unit(self) -> str:
        """Unit of every time."""

    @property
    def peak_bytes(self) -> int:
        """What the plan needs."""

    @property
    def budget_bytes(self) -> int | None:
        """What was asked for, if anything."""

    @property
    def reserved_bytes(self) -> int:
        """What of the budget was set aside."""

    @property
    def noun(self) -> str:
        """What its layers are: "layer" or "node"."""

    @property
    def forwards(self) -> dict[str, int]:
        """How often each layer runs forward."""

    @property
    def options(self) -> Mapping[int, str]:
        """The options of the layers that are kept under one."""

    @property
    def segments(self) -> list[tuple[int, int, int]]:
        """First layer, last layer and depth of every checkpoint."""

    @property
    def has_costs(self) -> bool:
        """Whether it carries its costs."""

    def replay(self, costs: object = None) -> PlanReplay:
        """Its figures."""

    def own_costs(self, costs: object = None) -> Costs:
        """The costs it was made for."""

    def moments(self, costs: Costs) -> Sequence[Moment]:
        """Every action of a step."""

    def keep_all_moments(self, costs: Costs) -> Sequence[Moment]:
        """The same of keeping everything."""
