"""What a kind of schedule brings along, so that nothing else asks which kind it is.

A plan has a schedule, and the schedule's class has a `Kind`: how a plan file spells it, what its
words and rows are, which costs belong to it. Each is one object, in `kinds.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from scheduler.costs.readers import Costs
from solvers.problem import Problem
from solvers.replay import Moment
from solvers.schedule import Schedule
from solvers.solution import PlanClass


class FoldedRow(NamedTuple):
    """Equal items of one level: how deep, their first and last layer, and what is done."""

    depth: int
    first: int
    last: int
    what: str


class PlanLike(Protocol):
    """What a kind asks of a plan: see `scheduler.plans.facts.PlanFacts`."""

    @property
    def layers(self) -> tuple[str, ...]:
        """Names."""

    @property
    def schedule(self) -> Any:
        """What runs."""

    @property
    def plan_class(self) -> str:
        """Where its bound holds."""

    @property
    def forwards(self) -> dict[str, int]:
        """How often each layer runs."""

    @property
    def has_own_order(self) -> bool:
        """Whether operations run first in an order of its own."""


class Kind(Protocol):
    """One kind of schedule.

    Attributes
    ----------
    name
        What a message calls what is scheduled: "chain", "compute graph", "layer graph".
    noun
        What its parts are: "layer" or "node".
    key
        The field of a plan file that the schedule stands in.
    classes
        The classes of plans that a bound may hold in. Where there are several, a plan's words
        and file name it, beside the gap.
    absent
        What to say where a plan of this kind is asked for what it does not have.
    """

    name: str
    noun: str
    key: str
    classes: tuple[PlanClass, ...]
    absent: str

    def costs(self, given: object) -> Costs:
        """The costs that `given` describes; `InvalidCosts` where they cannot be a plan's."""

    def problem(self, costs: Costs) -> Problem[Any]:
        """The costs in integers; `InvalidPlan` where they are of another kind."""

    def check(self, schedule: Any, layers: Sequence[str]) -> None:
        """Refuse a schedule that is none of these layers, with `InvalidPlan`."""

    def to_json(self, schedule: Any, names: Sequence[str]) -> list[Any]:
        """The schedule as a plan file has it."""

    def parse(self, values: object, names: Sequence[str]) -> Schedule:
        """The inverse of `to_json`; `InvalidPlan` names the place of what is wrong."""

    def remarks(self, plan: PlanLike) -> str:
        """What else to say of a plan beside its method and size: ``, checkpoints nest 2 deep``."""

    def bound_words(self, plan: PlanLike) -> str:
        """Which plans the lower bound speaks of: ``no persistent plan``."""

    def order_words(self, plan: PlanLike) -> str:
        """The one order of first runs in which the plan is optimal, as part of a sentence."""

    def lines(self, plan: PlanLike) -> list[str]:
        """The schedule in words, a few rows."""

    def rows(self, plan: PlanLike) -> list[FoldedRow]:
        """All rows of the schedule, runs of equal ones folded."""

    def held(
        self, plan: PlanLike, moments: Sequence[Moment], costs: Costs
    ) -> dict[tuple[int, int], int] | None:
        """By depth and first layer of each item what its forward adds to what is live.

        None: items do not hold anything of their own.
        """

    def treatments(self, plan: PlanLike) -> list[str]:
        """What is done with each layer, in words."""

    def spans(self, schedule: Any) -> list[tuple[int, int, int]]:
        """Segments for the strip: first layer, last layer, depth."""
