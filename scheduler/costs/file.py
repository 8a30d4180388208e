"""The cost file: JSON of schema ``checkpoint-scheduler/costs/1``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from scheduler.common.errors import InvalidCosts
from scheduler.common.jsontext import dump_record
from scheduler.common.text import did_you_mean, shown
from scheduler.costs.layer import LayerCost, as_layers

__all__ = ["SCHEMA", "CostFile", "dump_costs", "read_record", "read_value"]

SCHEMA = "checkpoint-scheduler/costs/1"

_KEYS = ("schema", "name", "note", "time_unit", "input_bytes", "layers", "edges")
_OTHER_FILES = {
    "checkpoint-scheduler/graph/": (
        "this is a compute graph, not costs of layers; solve takes it as it is, and "
        "ComputeCosts.load reads it"
    ),
    "checkpoint-scheduler/plan/": (
        "this is a plan, not costs; read it with Plan.load or 'checkpoint-scheduler show', "
        "or give the cost file that it was made from"
    ),
}


class CostFile(NamedTuple):
    """What a cost file says, in the order of the fields of a `CostGraph`."""

    layers: tuple[LayerCost, ...]
    input_bytes: Any
    name: Any
    time_unit: Any
    edges: Any


def read_value(value: object, source: str) -> CostFile:
    """The content of the JSON value of a cost file; `source` is what a message calls it."""
    try:
        if not isinstance(value, Mapping):
            raise InvalidCosts(f"a cost file is a JSON object, this is {shown(value)}")
        if "schema" not in value:
            raise InvalidCosts(f'there is no \'schema\'; a cost file says "schema": "{SCHEMA}"')
        return read_record(value)
    except InvalidCosts as error:
        raise InvalidCosts(f"{source}: {error}") from error


def read_record(record: Mapping[Any, Any]) -> CostFile:
    """The content of a mapping in the form of a cost file; the schema may be left out."""
    _check_schema(record.get("schema", SCHEMA))
    for key in record:
        if key not in _KEYS:
            hint = did_you_mean(key, _KEYS) or f"; the fields are {', '.join(_KEYS)}"
            raise InvalidCosts(f"unknown field {shown(key)} in the cost file{hint}")
    if "layers" not in record:
        raise InvalidCosts("there is no 'layers'; a cost file lists the costs of its layers there")
    if not isinstance(record["layers"], list | tuple):
        raise InvalidCosts(f"'layers' must be a list, got {shown(record['layers'])}")
    if not isinstance(record.get("note", ""), str):
        raise InvalidCosts(f"'note' must be text, got {shown(record['note'])}")
    if record.get("edges", ()) is None:
        raise InvalidCosts("'edges' must be a list of pairs of layer names, got None")
    return CostFile(
        as_layers(record["layers"]),
        record.get("input_bytes", 0),
        record.get("name", ""),
        record.get("time_unit", "ms"),
        record.get("edges"),
    )


def dump_costs(record: Mapping[str, object]) -> str:
    """The text of a cost file, one layer or edge a line."""
    return dump_record(record, ("layers", "edges"))


def _check_schema(schema: object) -> None:
    if schema == SCHEMA:
        return
    for prefix, sentence in _OTHER_FILES.items():
        if isinstance(schema, str) and schema.startswith(prefix):
            raise InvalidCosts(sentence)
    raise InvalidCosts(f"unknown schema {shown(schema)}; a cost file has {SCHEMA!r}")
