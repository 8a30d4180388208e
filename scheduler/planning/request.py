"""What a caller asks for, in the terms of the solvers: budget, method, limits, who looks on."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scheduler.common.checks import plain
from scheduler.common.errors import InvalidBudget
from scheduler.common.text import did_you_mean, format_both, shown
from scheduler.common.units import check_unit, parse_bytes, resolve_budget, resolve_reserved
from solvers.chain.exact.arrays import LAYER_BYTES, LEAST_POINTS
from solvers.methods import Limits, Method
from solvers.problem import Problem
from solvers.solution import PlanClass, Report


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget as it was asked for, and what of it is reserved; all in bytes.

    Of a larger budget more is reserved where some `percent` of it are a part of the reserve.
    """

    asked: int
    reserved: int = 0
    percent: int = 0

    @property
    def available(self) -> int:
        """What a plan may use."""
        return self.asked - self.reserved

    def smallest(self, needed: int) -> int:
        """The smallest budget that leaves `needed` bytes beside what is then reserved."""
        return (needed + self._fixed - 1) * 100 // (100 - self.percent) + 1

    def at(self, asked: int) -> Budget:
        """Another budget for the same."""
        return Budget(asked, self._fixed + percent_of(asked, self.percent), self.percent)

    @property
    def _fixed(self) -> int:
        """What is reserved of every budget."""
        return self.reserved - percent_of(self.asked, self.percent)


def percent_of(size: int, percent: int) -> int:
    """Whole bytes of so many percent of a size."""
    return size * percent // 100


@dataclass(frozen=True, slots=True)
class Watch:
    """Who looks on while something is solved.

    Attributes
    ----------
    report
        Is told of every step forward.
    interrupted
        Is asked now and then; True: the best plan so far is enough.
    """

    report: Report | None = None
    interrupted: Callable[[], bool] | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """A method, and the limits that it is to keep to."""

    method: Method
    limits: Limits

    @property
    def is_interrupted(self) -> bool:
        """Whether the best plan so far is enough."""
        asked = self.limits.interrupted
        return asked is not None and asked()


def read_budget(
    budget_gb: object,
    budget: object,
    reserved: object,
    reserved_gb: object = None,
    problem: Problem[Any] | None = None,
) -> Budget:
    """The budget and the reserve in any of their spellings.

    With a problem, numbers are held against what it takes to keep everything: see `check_unit`.
    A `Budget` is itself.

    Raises
    ------
    InvalidBudget
        The budget is missing, given twice, no size or in no unit that can be meant, or nothing is
        left of it beside the reserve.
    """
    if isinstance(budget, Budget):
        return budget
    asked = resolve_budget(budget_gb, budget)
    kept = resolve_reserved(reserved_gb, reserved)
    if problem is not None:

        def everything() -> int:
            return problem.replay(problem.keep_all()).peak_bytes

        check_unit("budget", budget_gb, budget, asked, everything)
        check_unit("reserved", reserved_gb, reserved, kept, everything)
    if kept >= asked:
        raise InvalidBudget(
            f"nothing is left of a budget of {format_both(asked)} with {format_both(kept)} "
            "reserved; raise the budget or reserve less"
        )
    return Budget(asked, kept)


def read_count(what: str, value: object, least: int, advice: str = "") -> int:
    """A whole number of at least `least`; `what` and `advice` are for the message.

    Raises
    ------
    InvalidBudget
        It is none.
    """
    number = plain(value)
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise InvalidBudget(
            f"{what} must be a whole number of at least {least}, got {shown(number)}{advice}"
        )
    return number


def _points(value: object, layers: int) -> int:
    return min(read_count("max_points", value, LEAST_POINTS), 2**62)


def _memory(value: object, layers: int) -> int:
    limit = parse_bytes(value, what="memory_limit")
    least = LAYER_BYTES * layers  # of a graph's tables and sets the solver knows
    if limit < least:
        raise InvalidBudget(
            f"memory_limit must be at least {format_both(least)} for {layers} layers, got "
            f"{shown(value)}"
        )
    return limit


def read_seconds(value: object) -> float:
    """A time limit.

    Raises
    ------
    InvalidBudget
        It is no positive number.
    """
    seconds = plain(value)
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 0 < seconds < math.inf  # false for NaN too
    ):
        raise InvalidBudget(
            f"time_limit must be a positive number of seconds, got {shown(seconds)}; "
            "leave it out to solve until it is proven"
        )
    return float(seconds)


def _class(value: object, layers: int) -> PlanClass:
    names = [each.value for each in PlanClass if each is not PlanClass.PERSISTENT]
    if value not in names:
        raise InvalidBudget(
            f"optimal_in must be 'forward', 'staged' or 'any', got {shown(value)}"
            f"{did_you_mean(value, names)}"
        )
    return PlanClass(value)


def _threads(value: object, layers: int) -> int:
    return read_count("threads", value, 1, f"; this machine has {os.cpu_count()}")


READERS: dict[str, Callable[[object, int], object]] = {
    "max_points": _points,
    "memory_limit": _memory,
    "time_limit": lambda value, _: read_seconds(value),
    "optimal_in": _class,
    "threads": _threads,
}
"""What reads a limit of this name, for a problem of so many layers."""
