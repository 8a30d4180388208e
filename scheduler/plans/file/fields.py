"""The fields of a plan file: what each is and may hold; read with checks, said as a JSON Schema."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from scheduler.common.checks import FileKind, check_keys
from scheduler.common.errors import InvalidPlan
from scheduler.common.text import ordinal, shown
from scheduler.plans.file.items import SCHEMA
from scheduler.report.tables import excess
from solvers.problem import LIMIT

KIND = FileKind(
    SCHEMA,
    "a plan file",
    InvalidPlan,
    {
        "costs": "this is a cost file, not a plan; solve it with 'checkpoint-scheduler solve', or "
        "read it with CostGraph.load",
        "graph": "this is a compute graph, not a plan; solve it with 'checkpoint-scheduler solve', "
        "or read it with ComputeCosts.load",
        "plans-by-length": "this file holds plans by length; read it with PlansByLength.load, or "
        "take one plan out: checkpoint-scheduler export FILE --to json --length N",
        "pipeline-plan": "this file holds the plan of a pipeline; read it with "
        "scheduler.pipeline.PipelinePlan.load",
    },
)


class Value(NamedTuple):
    """What a field may hold: a check, from its name and value, and the same in JSON Schema."""

    check: Callable[[str, Any], Any]
    json: Mapping[str, Any]


class PlanField(NamedTuple):
    """One field of a plan file.

    Attributes
    ----------
    name, value, text
        Its name, what it may hold, and what it means.
    of
        The plans that have it, by the field of their steps: ``items`` are a chain's.
    needed
        Do all those plans have it?
    """

    name: str
    value: Value
    text: str
    of: tuple[str, ...] = ("items", "schedule", "actions")
    needed: bool = True


def check_record(record: object) -> dict[str, Any]:
    """The fields of a plan in the form of a plan file, by the names of `Plan`.

    What the plan does is not read: its ``items``, or the ``schedule`` or ``actions`` of a graph's.

    Raises
    ------
    InvalidPlan
        A field is missing, unknown, of the wrong kind, or contradicts another.
    """
    record = KIND.check(record)
    steps = steps_key(record)
    own = {field.name: field for field in FIELDS if steps in field.of}
    needed = [name for name in own if own[name].needed]
    check_keys(
        "the plan", record, own, needed, error=InvalidPlan, lacking="it is not a whole plan file"
    )
    values = {name: own[name].value.check(name, record[name]) for name in own if name in record}
    _check_together(values)
    return {key: value for key, value in values.items() if key not in ("schema", "gap")}


def fields_schema() -> dict[str, Any]:
    """The part of a plan file's JSON Schema that says which fields there are."""
    properties: dict[str, dict[str, Any]] = {}
    for field in FIELDS:
        known = properties.setdefault(field.name, {"description": field.text} if field.text else {})
        # Where plans of different steps may hold different words, the schema has all of them.
        words = [*known.get("enum", ()), *field.value.json.get("enum", ())]
        known |= {**field.value.json, **({"enum": words} if words else {})}
    needed_by_all = [field.name for field in FIELDS if field.needed and field.of == _STEPS]
    return {
        "type": "object",
        "properties": properties,
        "required": needed_by_all,
        "oneOf": [{"required": [steps]} for steps in _STEPS],
        "additionalProperties": False,
    }


def steps_key(record: Mapping[Any, Any]) -> str:
    """The field that says what the plan does: ``items``, or of a graph ``schedule``, ``actions``.

    Raises
    ------
    InvalidPlan
        The record has two of them.
    """
    found = [key for key in _STEPS if key in record]
    if len(found) > 1:
        raise InvalidPlan(f"the plan has both {found[0]!r} and {found[1]!r}; it has one of them")
    return found[0] if found else "items"


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
    room, proven = None if budget is None else budget - reserved, values.get("proven_bytes")
    # That nothing is faster than keeping everything holds for any budget.
    if bound > values["keep_all_time"] and proven is not None and (room is None or room > proven):
        raise InvalidPlan(
            f"the plan's lower bound of {bound} was proven for {proven} bytes, and its budget now "
            f"leaves {'any number' if room is None else room}; it was changed after it was solved: "
            "solve again"
        )
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


def _finite(share: float) -> float | None:
    return share if math.isfinite(share) else None


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


def one_of(*choices: str) -> Value:
    """One of these words."""

    def check(key: str, value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            raise InvalidPlan(f"{key!r} must be {_either(choices)}, got {shown(value)}")
        return str(value)

    return Value(check, {"enum": list(choices)})


def _either(choices: Sequence[str]) -> str:
    return " or ".join([", ".join(choices[:-1]), choices[-1]] if choices[1:] else choices)


def _unchecked(json: Mapping[str, Any]) -> Value:
    return Value(lambda _, value: value, json)


def _or_null(known: Value) -> Value:
    json = {**known.json, "type": [known.json["type"], "null"]}
    return Value(lambda key, value: None if value is None else known.check(key, value), json)


def _list_of(what: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": what, "minItems": 1, **more}


_STRING = {"type": "string"}
SIZE = Value(_size, {"type": "integer", "minimum": 0})
TIME = Value(_time, {"type": "number", "minimum": 0})
LINE = Value(_text, _STRING)
_NAMES = Value(_layers, _list_of({**_STRING, "minLength": 1}, uniqueItems=True))
HEX = Value(_digest, {**_STRING, "pattern": "^[0-9a-fA-F]{64}$"})
_CALLS = _list_of({"$ref": "#/$defs/call"}, uniqueItems=True)
_TILES = {"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}}
_TILED = {"type": "object", "additionalProperties": _list_of({**_STRING, "minLength": 1})}
_POLICIES = {"type": "object", "additionalProperties": _CALLS, "minProperties": 1}

_STEPS = ("items", "schedule", "actions")
_CHAIN, _GRAPH = _STEPS[:1], _STEPS[1:]
_CLASS = (
    "The plans among which none is faster; persistent: a stored value stays until its backward."
)

FIELDS = (
    PlanField("schema", _unchecked({"const": SCHEMA}), ""),
    PlanField(
        "layers",
        _NAMES,
        "Names of the layers, or of the nodes of a compute graph, in the order of the costs.",
    ),
    PlanField(
        "budget_bytes",
        _or_null(SIZE),
        "Memory that was asked for, reserved_bytes included; null: none was.",
    ),
    PlanField("reserved_bytes", SIZE, "Came off the budget before solving.", needed=False),
    PlanField("peak_bytes", SIZE, "Most bytes live at once, without reserved ones."),
    PlanField("time", TIME, "Of one training step, in time_unit."),
    PlanField("keep_all_peak_bytes", SIZE, "The same of recomputing nothing."),
    PlanField("keep_all_time", TIME, "The same of recomputing nothing."),
    PlanField("time_unit", LINE, "Of every time, such as ms."),
    PlanField("method", LINE, "What made the plan."),
    PlanField(
        "status",
        one_of("optimal", "feasible"),
        "optimal: no plan of its class within the budget is faster.",
    ),
    PlanField("lower_bound_time", TIME, "No plan of its class within the budget takes less."),
    PlanField("costs_sha256", HEX, "Digest of the costs that the plan was made for."),
    PlanField(
        "proven_bytes",
        SIZE,
        "Within so many, without reserved ones, lower_bound_time was proven.",
        needed=False,
    ),
    PlanField(
        "costs",
        _unchecked({"type": "object"}),  # `Plan` reads them, and holds them to costs_sha256
        "These costs, as a file of costs has them.",
        needed=False,
    ),
    PlanField("measured_peak_bytes", SIZE, "What a run of the plan measured.", needed=False),
    PlanField("class", one_of("persistent"), _CLASS, _CHAIN, needed=False),
    PlanField("class", one_of("forward", "staged", "any"), _CLASS, _GRAPH),
    PlanField(
        "policies",
        _unchecked(_POLICIES),  # `Plan` checks them beside its items
        "What to keep inside layers that are kept under an option, by their names; of a chain.",
        _CHAIN,
        needed=False,
    ),
    PlanField(
        "tiles",
        _unchecked(_TILES),
        "In how many tiles layers run that are kept under an option, by their names; of a chain.",
        _CHAIN,
        needed=False,
    ),
    PlanField(
        "tiled",
        _unchecked(_TILED),
        "Which modules inside these layers, where they are blocks, by their names in them.",
        _CHAIN,
        needed=False,
    ),
    PlanField(
        "gap",
        _or_null(TIME),  # JSON has no infinity, which a gap above a bound of zero is
        "Of a graph: how far the time is above the bound at most, as a share; null: infinitely.",
        _GRAPH,
        needed=False,
    ),
    PlanField(
        "items",
        _unchecked(_list_of({"$ref": "#/$defs/item"})),
        "Of a chain: what happens to the layers, in order, each covered once.",
        ("items",),
    ),
    PlanField(
        "schedule",
        _unchecked(_list_of(_STRING)),
        "Of a compute graph: names of its nodes in the order of computation, repeats included. A "
        "copy is let go right after its last use.",
        ("schedule",),
    ),
    PlanField(
        "actions",
        _unchecked(_list_of({"$ref": "#/$defs/action"})),
        "Of a graph of layers: forwards, which keep or drop what the backward needs, and "
        "backwards.",
        ("actions",),
    ),
)
"""Every field of a plan file, in the order in which a message lists them."""
