"""What can be wrong with a shape or a recipe, and the checks of a size, a name or a flag."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from scheduler.common.checks import plain
from scheduler.common.errors import SchedulerError, UnsupportedModel
from scheduler.common.text import did_you_mean, shown
from solvers.problem import LIMIT


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument in a sentence: `base`, with its value `base='nf4'`, or with what it is `of`.

    Python spells it so; a command line that has an option for it spells the option.
    """

    name: str
    value: object = None
    of: str = ""

    def __str__(self) -> str:
        value = "" if self.value is None else f"={self.value!r}"
        return f"{self.name}{value}{self.of}"


class _OfAnArgument(SchedulerError, ValueError):
    """A sentence, told part by part so that its arguments can be spelled in another way.

    Attributes
    ----------
    argument
        The name of the argument at fault; default: the first in the sentence, None without any.
    """

    def __init__(self, *parts: str | Argument, argument: str | None = None) -> None:
        super().__init__("".join(map(str, parts)))
        named = (part.name for part in parts if isinstance(part, Argument))
        self.parts = parts
        self.argument = argument or next(named, None)

    def spelled(self, spell: Callable[[Argument], str]) -> str:
        """The sentence, its arguments as `spell` says."""
        return "".join(spell(part) if isinstance(part, Argument) else part for part in self.parts)


class InvalidShape(_OfAnArgument):
    """A model's shape, or the config it is read from, that has no meaning; the field is named."""


class InvalidRecipe(_OfAnArgument):
    """A way to train that does not exist or contradicts itself; the choices are named."""


class NoFormula(_OfAnArgument, UnsupportedModel):
    """A combination that nobody has derived a formula for."""


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
    what: str | Argument,
    value: object,
    choices: Iterable[str],
    error: Sentence,
    *others: str | Argument,
) -> str:
    """One of `choices`, which the sentence lists; `others` say what to do for what is not there."""
    names = list(choices)
    if isinstance(value, str) and value in names:
        return str(value)
    near = did_you_mean(value, names) if isinstance(value, str) else ""
    listed = ", ".join(repr(name) for name in names)
    raise error(what, f" must be one of {listed}, got {shown(value)}", *others, near)


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


def check_factor(what: str | Argument, value: object, error: Sentence) -> float:
    """A number of at least 1."""
    number = plain(value)
    if isinstance(number, bool) or not isinstance(number, int | float) or not 1 <= number < 1e6:
        raise error(what, f" must be a number of at least 1, got {shown(number)}")
    return float(number)
