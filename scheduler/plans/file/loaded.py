"""How plans of every kind are read from their files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from scheduler.common.errors import InvalidPlan
from scheduler.common.files import read_text
from scheduler.plans.file.items import parse_plan

if TYPE_CHECKING:
    from typing_extensions import Self


class Loaded:
    """Reads itself from a file, of which `from_dict` checks the value."""

    @classmethod
    def from_dict(cls, record: object) -> Self:
        """What a mapping in the form of the file says."""
        raise NotImplementedError

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file; of a plan `replay` with its costs tells whether it still holds.

        Raises
        ------
        InvalidPlan
            The file is of another kind, or says what cannot be.
        """
        return cls.from_json(read_text(path, "plan file", InvalidPlan), os.fspath(path))

    @classmethod
    def from_json(cls, text: str, source: str = "the JSON text") -> Self:
        """Read the text of a file; `source` is what a message calls it."""
        value = parse_plan(text, source)
        try:
            return cls.from_dict(value)
        except RecursionError as error:  # a message that shows what is nested too deeply
            raise InvalidPlan(f"{source}: a value is nested too deeply to be a plan's") from error
        except InvalidPlan as error:
            raise InvalidPlan(f"{source}: {error}") from error
