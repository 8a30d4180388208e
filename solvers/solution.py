"""What a solver returns, what it raises when it cannot, and what it reports on its way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic

from solvers.problem import Problem, S
from solvers.schedule import Action


class Status(str, Enum):
    """How much is known about a plan."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"


class PlanClass(str, Enum):
    """The schedules among which a claim of optimality holds; of graphs each within the next.

    PERSISTENT, of chains: a stored value stays until its backward. FORWARD: the given order; only
    forward nodes are computed again, only in the backward part. STAGED: the given order of first
    computations; before each, earlier nodes are computed again at most once, in that order. ANY:
    every legal schedule.
    """

    PERSISTENT = "persistent"
    FORWARD = "forward"
    STAGED = "staged"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Solution(Generic[S]):
    """A schedule with its certificate.

    Attributes
    ----------
    schedule
        What runs.
    peak_bytes, time
        What its replay gives; time in the problem's integer unit.
    lower_bound_time
        No schedule of the class within the budget takes less.
    plan_class
        Where the bound holds.
    note
        What else there is to say, as a sentence; mostly nothing.
    """

    schedule: S
    peak_bytes: int
    time: int
    lower_bound_time: int
    plan_class: PlanClass = PlanClass.PERSISTENT
    note: str = ""

    @classmethod
    def of(
        cls,
        problem: Problem[S],
        schedule: S,
        lower_bound_time: int | None = None,
        plan_class: PlanClass = PlanClass.PERSISTENT,
    ) -> Solution[S]:
        """The schedule with what its replay gives; without a bound it is its own."""
        done = problem.replay(schedule)
        bound = done.time if lower_bound_time is None else lower_bound_time
        return cls(schedule, done.peak_bytes, done.time, bound, plan_class)

    @property
    def status(self) -> Status:
        """`OPTIMAL` only when the bound proves it, in the class."""
        return Status.OPTIMAL if self.time <= self.lower_bound_time else Status.FEASIBLE


class Infeasible(Exception):
    """No schedule of the method fits the budget, or none was found.

    Attributes
    ----------
    needs_bytes
        The least that the method needs where `schedule` is there, else what any schedule needs.
    set_by
        The action that needs it.
    schedule
        The method's schedule of the smallest peak; None where that is not known.
    plan_class
        The class in which it is proven that nothing fits; None: the search came to an end without
        a schedule.
    out_of_time
        That end was the time limit.
    """

    def __init__(
        self,
        needs_bytes: int,
        set_by: Action,
        schedule: Any = None,
        plan_class: PlanClass | None = PlanClass.PERSISTENT,
        *,
        out_of_time: bool = False,
    ) -> None:
        super().__init__(f"nothing fits below {needs_bytes} bytes")
        self.needs_bytes = needs_bytes
        self.set_by = set_by
        self.schedule = schedule
        self.plan_class = plan_class
        self.out_of_time = out_of_time

    @classmethod
    def of(cls, problem: Problem[S], schedule: S) -> Infeasible:
        """The error that carries the method's schedule of the smallest peak."""
        done = problem.replay(schedule)
        return cls(done.peak_bytes, done.peak_action, schedule)


class Unsuitable(ValueError):
    """The method does not accept this problem; the message says why."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a solver is.

    Attributes
    ----------
    stage
        What it does, in a word or two.
    time
        Of the best schedule so far; None: there is none yet.
    lower_bound_time
        Proven so far.
    seconds
        Since it began.
    """

    stage: str
    time: int | None
    lower_bound_time: int
    seconds: float


Report = Callable[[Progress], None]
