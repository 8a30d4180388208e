"""What a caller asks for, in the terms of the solvers: budget, method, limits."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.common.checks import plain
from scheduler.common.errors import InvalidBudget, UnknownMethod, UnsuitableMethod
from scheduler.common.text import did_you_mean, format_both, shown
from scheduler.common.units import parse_bytes, resolve_budget
from solvers.chain import methods as registry
from solvers.chain.frontier import LEAST_POINTS, MEMORY_LIMIT
from solvers.chain.methods import Method

__all__ = [
    "Budget",
    "check_unlimited",
    "find_method",
    "read_budget",
    "read_memory_limit",
    "read_points",
]


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget as it was asked for, and what of it is reserved; all in bytes."""

    asked: int
    reserved: int

    @property
    def available(self) -> int:
        """What a plan may use."""
        return self.asked - self.reserved


def read_budget(budget_gb: object, budget: object, reserved: object) -> Budget:
    """The budget in any of its spellings.

    Raises
    ------
    InvalidBudget
        It is missing, given twice, no size, or nothing is left of it beside the reserve.
    """
    asked = resolve_budget(budget_gb, budget)
    kept = parse_bytes(reserved, what="reserved", allow_zero=True)
    if kept >= asked:
        raise InvalidBudget(
            f"nothing is left of a budget of {format_both(asked)} with {format_both(kept)} "
            "reserved; raise the budget or reserve less"
        )
    return Budget(asked, kept)


def find_method(name: object) -> Method:
    """The method called `name`.

    Raises
    ------
    UnknownMethod
        There is none; the message offers the nearest and lists all.
    """
    try:
        return registry.get(name)  # type: ignore[arg-type]
    except (KeyError, TypeError):
        names = ", ".join(registry.METHODS)
        near = did_you_mean(name, registry.METHODS)
        raise UnknownMethod(
            f"there is no method {shown(name)}{near} (the methods are {names})"
        ) from None


def check_unlimited(method: Method, max_points: object, memory_limit: object) -> None:
    """Raise `UnsuitableMethod` when a limit is given to a method that has none."""
    given = {"max_points": max_points, "memory_limit": memory_limit}
    for name, value in given.items():
        if value is not None and method.name != "optimal":
            raise UnsuitableMethod(
                f"method {method.name!r} takes no {name}; it limits the sets of method 'optimal'"
            )


def read_points(max_points: object) -> int | None:
    """A limit on the points of a set; None: no limit.

    Raises
    ------
    InvalidBudget
        It is not a whole number of at least 16.
    """
    value = plain(max_points)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < LEAST_POINTS:
        raise InvalidBudget(
            f"max_points must be a whole number of at least {LEAST_POINTS}, got {shown(value)}"
        )
    return min(value, 2**62)


def read_memory_limit(memory_limit: object, layers: int) -> int:
    """A limit on the bytes of all sets of a chain of `layers`; None: the solver's own.

    Raises
    ------
    InvalidBudget
        It is no size, or too small for sets of the fewest points.
    """
    if memory_limit is None:
        return MEMORY_LIMIT
    limit = parse_bytes(memory_limit, what="memory_limit")
    # Two sets a span at 16 bytes a point, and room to merge the candidates of one.
    spans = layers * (layers + 1) // 2
    least = 16 * LEAST_POINTS * (3 * spans + 16 * layers)
    if limit < min(least, MEMORY_LIMIT):
        raise InvalidBudget(
            f"memory_limit must be at least {format_both(min(least, MEMORY_LIMIT))} for "
            f"{layers} layers, got {shown(memory_limit)}"
        )
    return limit
