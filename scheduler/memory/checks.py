"""Checks of a size, a name or a flag: each returns a plain value, or says what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from scheduler.common.checks import plain
from scheduler.common.text import did_you_mean, shown
from scheduler.memory.errors import Argument
from solvers.problem import LIMIT

__all__ = ["check_choice", "check_count", "check_flag", "check_probability"]


Sentence = Callable[..., Exception]
"""The error that a sentence becomes, given part by part."""


def check_count(what: str | Argument, value: object, error: Sentence, least: int = 1) -> int:
    """A whole number of at least `least`, as a plain int; 7.5e9 is whole."""
    number = plain(value)
    if (
        isinstance(number, bool)
        or not isinstance(number, int | float)
        or (isinstance(number, float) and not number.is_integer())
        or number < least
    ):
        raise error(what, f" must be a whole number >= {least}, got {shown(number)}")
    if number >= LIMIT:
        raise error(what, f" must be below 2**62, got {shown(number)}")
    return int(number)


def check_choice(
    what: str | Argument, value: object, choices: Iterable[str], error: Sentence
) -> str:
    """One of `choices`, which the sentence lists."""
    names = list(choices)
    if isinstance(value, str) and value in names:
        return str(value)
    near = did_you_mean(value, names) if isinstance(value, str) else ""
    listed = ", ".join(repr(name) for name in names)
    raise error(what, f" must be one of {listed}, got {shown(value)}{near}")


def check_flag(what: str | Argument, value: object, error: Sentence) -> bool:
    """True or False."""
    flag = plain(value)
    if not isinstance(flag, bool):
        raise error(what, f" must be True or False, got {shown(flag)}")
    return flag


def check_probability(what: str | Argument, value: object, error: Sentence) -> float:
    """A number from 0 up to, not with, 1."""
    number = plain(value)
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < 1:
        raise error(what, f" must be at least 0 and below 1, got {shown(number)}")
    return float(number)
