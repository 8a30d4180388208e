"""Checks of values, fields and records: each returns what is stored, or says what is wrong.

A record is a frozen dataclass whose fields carry their check as metadata (`TIME`, `BYTES`, `FLAG`,
`NAME`): a new field of it needs no more than its line there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, fields, replace
from functools import cache
from typing import Any, NamedTuple, TypeVar

from scheduler.common.errors import InvalidCosts, SchedulerError
from scheduler.common.text import did_you_mean, ordinal, shown
from solvers.problem import LIMIT

Check = Callable[[str, str, object], Any]
"""From a place, a field's name and its value: the value as it is stored. Raises what is wrong."""

_Record = TypeVar("_Record")


def plain(value: object) -> object:
    """The Python number in a numpy scalar, a 0-d array or a 0-d tensor; others as they are."""
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "ndim", None) == 0:
        return item()
    return value


def check_time(where: str, field: str, value: object) -> float:
    """A finite number of at least zero, as a plain int or float."""
    number = _number(where, field, value, "a finite number", math.isfinite)
    return int(number) if isinstance(number, int) else float(number)


def check_bytes(where: str, field: str, value: object) -> int:
    """A whole number of at least zero, as a plain int."""
    return int(_number(where, field, value, "a whole number of bytes", float.is_integer))


def _number(
    where: str, field: str, value: object, what: str, is_allowed: Callable[[float], bool]
) -> float:
    number = plain(value)
    if (
        isinstance(number, bool)
        or not isinstance(number, int | float)
        or (isinstance(number, float) and not is_allowed(number))
        or number < 0
    ):
        raise InvalidCosts(f"{where}: {field} must be {what} >= 0, got {shown(number)}")
    if number >= LIMIT:
        raise InvalidCosts(f"{where}: {field} must be below 2**62, got {shown(number)}")
    return number


def check_count(where: str, field: str, value: object) -> int:
    """A whole number of at least zero, as a plain int."""
    return int(_number(where, field, value, "a whole number", float.is_integer))


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


TIME: Mapping[str, Any] = {"check": check_time}
BYTES: Mapping[str, Any] = {"check": check_bytes}
COUNT: Mapping[str, Any] = {"check": check_count}
FLAG: Mapping[str, Any] = {"check": check_flag}
NAME: Mapping[str, Any] = {"check": check_name}


class FileKind(NamedTuple):
    """A kind of JSON file, which says what it is in the field ``schema``.

    `schema` is such as ``checkpoint-scheduler/costs/1``, the last part of which is a version;
    `error` is raised where a file is none of this kind; `others` say, by the name of another kind
    (``plan``), what such a file is and what reads it.
    """

    schema: str
    noun: str
    error: type[SchedulerError]
    others: Mapping[str, str]

    def is_said_by(self, value: object) -> bool:
        """Whether a JSON value says that it is of this kind, in whatever version."""
        schema = value.get("schema") if isinstance(value, Mapping) else None
        return isinstance(schema, str) and schema.startswith(f"{self.schema.rpartition('/')[0]}/")

    def check(self, value: object, *, needs_schema: bool = True) -> Mapping[Any, Any]:
        """The JSON object of such a file; unless `needs_schema` it may leave its schema out."""
        if not isinstance(value, Mapping):
            raise self.error(f"{self.noun} is a JSON object, this is {shown(value)}")
        if "schema" not in value:
            if "model_type" in value:
                raise self.error(
                    f"this is a model's config, not {self.noun}; give it with --model, or to "
                    "scheduler.memory.costs_from_shape"
                )
            if needs_schema:
                raise self.error(
                    f'there is no \'schema\'; {self.noun} says "schema": "{self.schema}"'
                )
        elif (schema := value["schema"]) != self.schema:
            for kind, sentence in self.others.items():
                if isinstance(schema, str) and schema.startswith(f"checkpoint-scheduler/{kind}/"):
                    raise self.error(sentence)
            raise self.error(f"unknown schema {shown(schema)}; {self.noun} has {self.schema!r}")
        return value


def check_keys(
    where: str,
    record: Mapping[Any, object],
    known: Collection[str],
    needed: Collection[str] = (),
    *,
    error: type[SchedulerError],
    lacking: str | None = None,
) -> None:
    """Refuse a field that is not `known`, and the lack of one that is `needed`.

    `lacking` is what a message says then, in place of the list of all that are needed.
    """
    for key in record:
        if key not in known:
            hint = did_you_mean(key, known) or f"; the fields are {', '.join(known)}"
            raise error(f"unknown field {shown(key)} in {where}{hint}")
    for key in needed:
        if key not in record:
            *most, last = needed
            why = lacking or f"it needs {', '.join(most)} and {last}"
            raise error(f"{where} has no {key!r}; {why}")


@cache
def is_needed(kind: Any) -> Mapping[str, bool]:
    """By name of each field of a dataclass: whether it has no default."""
    return {field.name: field.default is MISSING for field in fields(kind)}


@cache
def _checks(kind: Any) -> tuple[tuple[str, Check, bool], ...]:
    return tuple(
        (field.name, field.metadata["check"], field.default is None)
        for field in fields(kind)
        if "check" in field.metadata
    )


def check_values(where: str, record: Any) -> None:
    """Put every field of a record through its check; None passes where it is the default."""
    kind: Any = type(record)
    for name, check, may_be_none in _checks(kind):
        value = getattr(record, name)
        if value is not None or not may_be_none:
            # The one way to store a checked value in a frozen dataclass.
            object.__setattr__(record, name, check(where, name, value))


def filled(record: Any) -> dict[str, Any]:
    """The fields of a record; one that is None has the value of its metadata's "otherwise"."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    for field in fields(record):
        if values[field.name] is None and "otherwise" in field.metadata:
            values[field.name] = values[field.metadata["otherwise"]]
    return values


def as_records(
    items: Iterable[object], kind: type[_Record], noun: str, none: str
) -> tuple[_Record, ...]:
    """Records with a name of their own each, from such records and mappings of their fields.

    One without a name is called by its position: "layer 3". `none` is what a message says where
    there are none.
    """
    records = tuple(_as_record(i, item, kind, noun) for i, item in enumerate(items))
    if not records:
        raise InvalidCosts(f"there are no {noun}s; {none}")
    first: dict[str, int] = {}
    for i, record in enumerate(records):
        name = record.name
        if first.setdefault(name, i) != i:
            raise InvalidCosts(
                f"two {noun}s are named {name!r}, the {ordinal(first[name] + 1)} and the "
                f"{ordinal(i + 1)}; give each a name of its own"
            )
    return records


def _as_record(i: int, item: Any, kind: Any, noun: str) -> Any:
    name = f"{noun} {i}"
    if isinstance(item, kind):
        return item if item.name else replace(item, name=name)
    position = f"{ordinal(i + 1)} {noun}"
    if not isinstance(item, Mapping):
        raise InvalidCosts(
            f"the {position} is {shown(item)}; a {noun} is a {kind.__name__} or a mapping of its "
            "fields"
        )
    given = item.get("name")
    given = name if given is None or given == "" else given
    needed = is_needed(kind)
    where = f"{noun} {shown(given)} ({position})"
    check_keys(where, item, needed, [key for key in needed if needed[key]], error=InvalidCosts)
    return kind(**{**item, "name": given})
