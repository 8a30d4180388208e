"""What can be wrong with a shape or a recipe, each said in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scheduler.common.errors import SchedulerError, UnsupportedModel

__all__ = ["Argument", "InvalidRecipe", "InvalidShape", "NoFormula"]


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
