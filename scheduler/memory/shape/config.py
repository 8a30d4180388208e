"""A config.json as its reader sees it: fields asked for by name, each checked and remembered."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.common.text import shown
from scheduler.memory.checks import check_choice, check_count, check_flag, check_probability
from scheduler.memory.errors import Argument, InvalidShape

__all__ = ["Config"]

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_new": "gelu_new",
}


class Config:
    """A config, each field asked for by name and checked.

    Parameters
    ----------
    record
        What the file holds.
    where
        How errors call it.

    Attributes
    ----------
    asked
        Names of the fields that somebody has asked for, whether they are there or not: those that
        the model's family reads.
    """

    def __init__(self, record: Mapping[str, object], where: str) -> None:
        self.record = record
        self.where = where
        self.asked: set[str] = set()

    def get(self, field: str, default: object = None) -> object:
        """What the field holds; `default` where it is absent."""
        self.asked.add(field)
        return self.record.get(field, default)

    def has(self, field: str) -> bool:
        """Whether the field is there, and not null."""
        return self.get(field) is not None

    def size(self, field: str, default: int | None = None, least: int = 1) -> int:
        """A size; `default` serves where the field is absent or null."""
        if not self.has(field):
            if default is not None:
                return default
            raise InvalidShape(
                f"{self.where} has no {field!r}, which the model_type "
                f"{shown(self.record.get('model_type'))} needs; add it"
            )
        return check_count(f"{field} of {self.where}", self.record[field], InvalidShape, least)

    def flag(self, field: str, default: bool) -> bool:
        """True or False; `default` serves where the field is absent or null."""
        if not self.has(field):
            return default
        return check_flag(f"{field} of {self.where}", self.record[field], InvalidShape)

    def dropout(self, field: str, default: float = 0.0) -> float:
        """A probability; `default` where the field is absent, none where it is null."""
        value = self.get(field, default)
        return check_probability(f"{field} of {self.where}", value or 0.0, InvalidShape)

    def activation(self, field: str) -> str:
        """An activation function, as a shape calls it."""
        if not self.has(field):
            self.size(field)
        what = f"{field} of {self.where}"
        return _ACTIVATIONS[check_choice(what, self.record[field], _ACTIVATIONS, InvalidShape)]

    def per_head(self, width: str, heads: str) -> int:
        """The width of a head where nothing says it: the heads share the model's width."""
        if self.size(width) % self.size(heads):
            raise InvalidShape(
                f"{width} of {self.where}, {self.size(width)}, is not a multiple of its "
                f"{self.size(heads)} heads ({heads}); make it one"
            )
        return self.size(width) // self.size(heads)

    def share(self, default: float, *names: str) -> float:
        """The share of a head's features that rotary positions turn, above 0 and at most 1.

        Transformers 5 writes it into ``rope_parameters``; before, it was a field of its own, one of
        `names`.
        """
        found = []
        for field in ("rope_scaling", "rope_parameters"):
            inside = self.get(field)
            if inside is not None and not isinstance(inside, Mapping):
                self.refuse(field, inside, "it must be a JSON object or null")
            elif isinstance(inside, Mapping) and inside.get("partial_rotary_factor") is not None:
                found.append((f"partial_rotary_factor in {field}", inside["partial_rotary_factor"]))
        found += [(field, self.record[field]) for field in names if self.has(field)]
        for field, share in found:
            if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
                self.refuse(field, share, "a share of a head must be above 0 and at most 1")
            else:
                return share
        return default

    def only(self, field: str, known: object, why: str) -> None:
        """Refuse a field that is there and neither null nor `known`."""
        if self.has(field) and self.record[field] != known:
            self.refuse(field, self.record[field], why)

    def refuse(self, field: str, value: object, *why: str | Argument) -> None:
        """Say what is wrong with a field."""
        raise InvalidShape(f"{field} of {self.where} is {shown(value)}: ", *why)
