"""Checks of everything that a plan file says beside its items."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from typing import Any

from scheduler.errors import InvalidPlan
from scheduler.planfile import SCHEMA
from scheduler.text import did_you_mean, ordinal, shown
from solvers.problem import LIMIT

__all__ = ["check_record"]

_OTHER_FILES = {
    "checkpoint-scheduler/costs/": (
        "this is a cost file, not a plan; solve it with 'checkpoint-scheduler solve', or read it "
        "with CostGraph.load"
    ),
    "checkpoint-scheduler/graph/": (
        "this is a compute graph, not a plan; graphs are not supported yet"
    ),
}


def check_record(record: object) -> dict[str, Any]:
    """The fields of a plan in the form of a plan file, by the names of `Plan`, items unread.

    Raises
    ------
    InvalidPlan
        A field is missing, unknown, of the wrong kind, or contradicts another.
    """
    if not isinstance(record, Mapping):
        raise InvalidPlan(f"a plan file is a JSON object, this is {shown(record)}")
    _check_schema(record)
    for key in record:
        if key not in _CHECKS:
            hint = did_you_mean(key, _CHECKS) or f"; the fields are {', '.join(_CHECKS)}"
            raise InvalidPlan(f"unknown field {shown(key)} in the plan{hint}")
    for key in _CHECKS:
        if key not in record and key not in _OPTIONAL:
            raise InvalidPlan(f"the plan has no {key!r}; it is not a whole plan file")
    values = {key: _CHECKS[key](key, record[key]) for key in _CHECKS if key in record}
    _check_together(values)
    return {key: value for key, value in values.items() if key not in ("schema", "class")}


def _check_schema(record: Mapping[Any, Any]) -> None:
    if "schema" not in record:
        raise InvalidPlan(f'there is no \'schema\'; a plan file says "schema": "{SCHEMA}"')
    schema = record["schema"]
    if schema == SCHEMA:
        if "schedule" in record or "actions" in record:
            raise InvalidPlan("this is the plan of a graph; graphs are not supported yet")
        return
    for prefix, sentence in _OTHER_FILES.items():
        if isinstance(schema, str) and schema.startswith(prefix):
            raise InvalidPlan(sentence)
    raise InvalidPlan(f"unknown schema {shown(schema)}; a plan file has {SCHEMA!r}")


def _check_together(values: Mapping[str, Any]) -> None:
    budget, reserved = values["budget_bytes"], values.get("reserved_bytes", 0)
    if budget is not None and values["peak_bytes"] + reserved > budget:
        raise InvalidPlan(
            f"the plan says a peak of {values['peak_bytes']} bytes and {reserved} reserved, "
            f"more than its budget of {budget}"
        )
    time, bound = values["time"], values["lower_bound_time"]
    if time < bound:
        raise InvalidPlan(f"the plan says a time of {time}, less than its lower bound, {bound}")
    if values["status"] == "optimal" and time > bound:
        raise InvalidPlan(
            f"the plan says 'optimal', but its time is {time} and its lower bound {bound}; "
            "it is optimal only when the two are equal"
        )


def _text(key: str, value: object) -> str:
    if not isinstance(value, str) or not value.isprintable() or not value:
        raise InvalidPlan(f"{key!r} must be text on one line, got {shown(value)}")
    return value


def _digest(key: str, value: object) -> str:
    if not isinstance(value, str) or len(value) != 64 or set(value) - set(string.hexdigits):
        raise InvalidPlan(f"{key!r} must be 64 hexadecimal digits, got {shown(value, 80)}")
    return value.lower()


def _size(key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 4 * LIMIT:
        raise InvalidPlan(f"{key!r} must be a whole number of bytes >= 0, got {shown(value)}")
    return value


def _time(key: str, value: object) -> float:
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not 0 <= value < 4 * LIMIT  # false for NaN too
    ):
        raise InvalidPlan(f"{key!r} must be a finite number >= 0, got {shown(value)}")
    return value


def _layers(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise InvalidPlan(f"{key!r} must list the names of the layers, got {shown(value)}")
    first: dict[str, int] = {}
    for i, name in enumerate(value):
        _text(f"layers[{i}]", name)
        if first.setdefault(name, i) != i:
            raise InvalidPlan(
                f"two layers are named {name!r}, the {ordinal(first[name] + 1)} and the "
                f"{ordinal(i + 1)}"
            )
    return tuple(value)


def _one_of(*choices: str) -> Callable[[str, object], str]:
    def check(key: str, value: object) -> str:
        if value not in choices:
            raise InvalidPlan(f"{key!r} must be {' or '.join(choices)}, got {shown(value)}")
        return str(value)

    return check


def _budget(key: str, value: object) -> int | None:
    return None if value is None else _size(key, value)


def _anything(key: str, value: object) -> object:
    return value


_CHECKS: dict[str, Callable[[str, object], Any]] = {
    "schema": _anything,
    "layers": _layers,
    "budget_bytes": _budget,
    "reserved_bytes": _size,
    "peak_bytes": _size,
    "time": _time,
    "keep_all_peak_bytes": _size,
    "keep_all_time": _time,
    "time_unit": _text,
    "method": _text,
    "status": _one_of("optimal", "feasible"),
    "class": _one_of("persistent"),
    "lower_bound_time": _time,
    "costs_sha256": _digest,
    "items": _anything,
}
_OPTIONAL = ("reserved_bytes", "class")
