"""The cost file: JSON of schema ``checkpoint-scheduler/costs/1``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from scheduler.errors import InvalidCosts
from scheduler.jsontext import parse_json
from scheduler.layers import LayerCost, as_layers
from scheduler.paths import path_order
from scheduler.text import did_you_mean, ordinal, shown

__all__ = ["SCHEMA", "CostFile", "dump_costs", "parse_costs", "read_record"]

SCHEMA = "checkpoint-scheduler/costs/1"

_KEYS = ("schema", "name", "note", "time_unit", "input_bytes", "layers", "edges")
_OTHER_FILES = {
    "checkpoint-scheduler/graph/": (
        "this is a compute graph, which is not supported yet; "
        f"give the costs of layers in a cost file (schema {SCHEMA!r})"
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


def parse_costs(text: str, source: str) -> CostFile:
    """The content of a cost file; `source` is what a message calls it."""
    value = parse_json(text, source, InvalidCosts)
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
    layers = as_layers(record["layers"])
    if "edges" in record:
        layers = _in_path_order(layers, record["edges"])
    return CostFile(
        layers,
        record.get("input_bytes", 0),
        record.get("name", ""),
        record.get("time_unit", "ms"),
    )


def dump_costs(record: Mapping[str, object]) -> str:
    """The text of a cost file, one layer a line."""
    head = json.dumps({key: value for key, value in record.items() if key != "layers"})
    layers = record["layers"]
    assert isinstance(layers, list)
    lines = ",\n".join(f"  {json.dumps(layer)}" for layer in layers)
    return f'{head[:-1]},\n "layers": [\n{lines}\n ]}}\n'


def _check_schema(schema: object) -> None:
    if schema == SCHEMA:
        return
    for prefix, sentence in _OTHER_FILES.items():
        if isinstance(schema, str) and schema.startswith(prefix):
            raise InvalidCosts(sentence)
    raise InvalidCosts(f"unknown schema {shown(schema)}; a cost file has {SCHEMA!r}")


def _in_path_order(layers: tuple[LayerCost, ...], edges: object) -> tuple[LayerCost, ...]:
    if not isinstance(edges, list | tuple):
        raise InvalidCosts(f"'edges' must be a list of pairs of layer names, got {shown(edges)}")
    position = {layer.name: i for i, layer in enumerate(layers)}
    pairs = []
    for i, edge in enumerate(edges):
        where = f"the {ordinal(i + 1)} edge"
        if not isinstance(edge, list | tuple) or len(edge) != 2:
            raise InvalidCosts(f"{where} must be a pair of layer names, got {shown(edge)}")
        for end in edge:
            if not isinstance(end, str):
                raise InvalidCosts(f"{where} must name its layers, got {shown(end)}")
            if end not in position:
                raise InvalidCosts(
                    f"{where} names an unknown layer {shown(end)}{did_you_mean(end, position)}"
                )
        pairs.append((position[edge[0]], position[edge[1]]))
    return tuple(layers[i] for i in path_order(list(position), pairs))
