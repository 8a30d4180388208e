"""Checks of everything that a plan file says beside its items or steps."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scheduler.common.errors import InvalidPlan
from scheduler.common.text import did_you_mean, ordinal, shown
from scheduler.plans.file.items import SCHEMA
from solvers.problem import LIMIT
from solvers.solution import PlanClass

__all__ = ["check_record", "check_replayed", "excess", "steps_key"]

_OTHER_FILES = {
    "checkpoint-scheduler/costs/": (
        "this is a cost file, not a plan; solve it with 'checkpoint-scheduler solve', or read it "
        "with CostGraph.load"
    ),
    "checkpoint-scheduler/graph/": (
        "this is a compute graph, not a plan; solve it with 'checkpoint-scheduler solve', or read "
        "it with ComputeCosts.load"
    ),
}


def check_record(record: object) -> dict[str, Any]:
    """The fields of a plan in the form of a plan file, by the names of `Plan`.

    What the plan does is not read: its ``items``, or the ``schedule`` or ``actions`` of a graph's.

    Raises
    ------
    InvalidPlan
        A field is missing, unknown, of the wrong kind, or contradicts another.
    """
    if not isinstance(record, Mapping):
        raise InvalidPlan(f"a plan file is a JSON object, this is {shown(record)}")
    _check_schema(record)
    what = steps_key(record)
    checks = _CHECKS | (_OF_CHAIN if what == "items" else _OF_GRAPH) | {what: _anything}
    for key in record:
        if key not in checks:
            hint = did_you_mean(key, checks) or f"; the fields are {', '.join(checks)}"
            raise InvalidPlan(f"unknown field {shown(key)} in the plan{hint}")
    optional = _OPTIONAL if what == "items" else _OPTIONAL_OF_GRAPH
    for key in checks:
        if key not in record and key not in optional:
            raise InvalidPlan(f"the plan has no {key!r}; it is not a whole plan file")
    values = {key: checks[key](key, record[key]) for key in checks if key in record}
    _check_together(values)
    return {key: value for key, value in values.items() if key not in ("schema", "gap")}


def steps_key(record: Mapping[Any, Any]) -> str:
    """The field that says what the plan does: ``items``, or of a graph ``schedule``, ``actions``.

    Raises
    ------
    InvalidPlan
        The record has two of them.
    """
    found = [key for key in ("items", "schedule", "actions") if key in record]
    if len(found) > 1:
        raise InvalidPlan(f"the plan has both {found[0]!r} and {found[1]!r}; it has one of them")
    return found[0] if found else "items"


def _check_schema(record: Mapping[Any, Any]) -> None:
    if "schema" not in record:
        raise InvalidPlan(f'there is no \'schema\'; a plan file says "schema": "{SCHEMA}"')
    schema = record["schema"]
    if schema == SCHEMA:
        return
    for prefix, sentence in _OTHER_FILES.items():
        if isinstance(schema, str) and schema.startswith(prefix):
            raise InvalidPlan(sentence)
    raise InvalidPlan(f"unknown schema {shown(schema)}; a plan file has {SCHEMA!r}")


def check_replayed(values: Mapping[str, Any]) -> None:
    """Refuse a bound that contradicts what a replay has found to be so, by a plan file's names.

    Raises
    ------
    InvalidPlan
        Keeping everything fits and is faster than the bound, or the fields contradict each other.
    """
    _check_together(values)
    budget, bound = values["budget_bytes"], values["lower_bound_time"]
    needed = values["keep_all_peak_bytes"] + values["reserved_bytes"]
    everything = values["keep_all_time"]
    if (budget is None or needed <= budget) and bound > everything:
        raise InvalidPlan(
            f"the plan says a lower bound of {bound}, but keeping everything takes {everything} "
            "and fits its budget; it was changed after it was solved: solve again"
        )


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
    gap = values.get("gap", 0.0)
    if "gap" in values and gap != _finite(excess(time, bound)):
        raise InvalidPlan(
            f"the plan says a gap of {gap}, but its time is {time} and its lower bound {bound}; "
            "it was changed after it was solved: solve again"
        )


def excess(time: float, least: float) -> float:
    """How far `time` is above `least`, as a share of it; infinite above nothing."""
    if time == least:
        return 0.0
    return time / least - 1 if least else float("inf")


def _finite(share: float) -> float | None:
    return share if math.isfinite(share) else None


def _gap(key: str, value: object) -> float | None:
    # JSON has no infinity, which a gap above a bound of zero is.
    return None if value is None else _time(key, value)


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
        if not isinstance(value, str) or value not in choices:
            raise InvalidPlan(f"{key!r} must be {_either(choices)}, got {shown(value)}")
        return str(value)

    return check


def _either(choices: Sequence[str]) -> str:
    return " or ".join([", ".join(choices[:-1]), choices[-1]] if choices[1:] else choices)


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
    "lower_bound_time": _time,
    "costs_sha256": _digest,
    "measured_peak_bytes": _size,
}
_OF_CHAIN: dict[str, Callable[[str, object], Any]] = {
    "class": _one_of("persistent"),
    "policies": _anything,  # `Plan` checks them beside its items
}
_OF_GRAPH: dict[str, Callable[[str, object], Any]] = {
    "class": _one_of(*(each.value for each in PlanClass)),
    "gap": _gap,
}
_OPTIONAL = ("reserved_bytes", "class", "measured_peak_bytes", "policies")
_OPTIONAL_OF_GRAPH = ("reserved_bytes", "gap", "measured_peak_bytes")
