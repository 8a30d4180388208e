"""Checks of single values: each returns the value in a plain Python type, or says what is wrong."""

from __future__ import annotations

import math
from collections.abc import Iterable

from scheduler.common.errors import InvalidCosts
from scheduler.common.text import shown
from solvers.problem import LIMIT

__all__ = ["check_bytes", "check_flag", "check_name", "check_time", "plain"]
__all__ += ["ticks_per_unit"]

_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def plain(value: object) -> object:
    """The Python number in a numpy scalar, a 0-d array or a 0-d tensor; others as they are."""
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "ndim", None) == 0:
        return item()
    return value


def check_time(where: str, field: str, value: object) -> float:
    """A finite number of at least zero, as a plain int or float."""
    number = plain(value)
    if (
        isinstance(number, bool)
        or not isinstance(number, int | float)
        or (isinstance(number, float) and not math.isfinite(number))
        or number < 0
    ):
        raise InvalidCosts(f"{where}: {field} must be a finite number >= 0, got {shown(number)}")
    if number >= LIMIT:
        raise InvalidCosts(f"{where}: {field} must be below 2**62, got {shown(number)}")
    return int(number) if isinstance(number, int) else float(number)


def check_bytes(where: str, field: str, value: object) -> int:
    """A whole number of at least zero, as a plain int."""
    number = plain(value)
    if (
        isinstance(number, bool)
        or not isinstance(number, int | float)
        or (isinstance(number, float) and not number.is_integer())
        or number < 0
    ):
        raise InvalidCosts(
            f"{where}: {field} must be a whole number of bytes >= 0, got {shown(number)}"
        )
    if number >= LIMIT:
        raise InvalidCosts(f"{where}: {field} must be below 2**62, got {shown(number)}")
    return int(number)


def check_flag(where: str, field: str, value: object) -> bool:
    """True or False: 0 and 1 are more often a slip than a flag."""
    flag = plain(value)
    if not isinstance(flag, bool):
        raise InvalidCosts(f"{where}: {field} must be True or False, got {shown(flag)}")
    return flag


def check_name(where: str, field: str, value: object) -> str:
    """Text that prints on one line."""
    if not isinstance(value, str):
        raise InvalidCosts(f"{where}: {field} must be text, got {shown(value)}")
    if not value.isprintable():
        raise InvalidCosts(f"{where}: {field} must be printable, on one line, got {shown(value)}")
    return str(value)


def ticks_per_unit(time_unit: str, times: Iterable[float]) -> int:
    """Integer ticks of the solvers in one `time_unit`.

    Nanoseconds where the unit is known; otherwise one where every time is whole, else 10⁶.
    """
    known = _NANOSECONDS.get(time_unit)
    if known is not None:
        return known
    return 1 if all(time == int(time) for time in times) else 10**6
