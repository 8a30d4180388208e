"""The plan file itself, and what a plan file may say."""

from __future__ import annotations

import json
from typing import Any

from scheduler.export.exported import Exported, Source
from scheduler.plans.file.items import SCHEMA

__all__ = ["plan_schema", "to_json", "to_json_schema"]


def to_json(source: Source) -> Exported:
    """The plan as a plan file."""
    return Exported("json", source.plan.to_json())


def to_json_schema(source: Source) -> Exported:
    """The JSON Schema of plan files, whatever the plan."""
    return Exported("json-schema", json.dumps(plan_schema(), indent=1) + "\n")


def plan_schema() -> dict[str, Any]:
    """A JSON Schema (draft 2020-12) of plan files.

    It says what each field means and of which kind it is. That items cover the layers in order,
    and that peak and time are those of the replay, no schema can say: ``Plan.load`` and
    ``Plan.replay`` check it.
    """
    size = {"type": "integer", "minimum": 0}
    time = {"type": "number", "minimum": 0}
    fields: dict[str, dict[str, Any]] = {
        "schema": {"const": SCHEMA},
        "layers": {
            "description": "Names of the layers in the order in which they run; for a graph, of "
            "its nodes in the order of their first run.",
            "type": "array",
            "items": {"type": "string", "minLength": 1},
            "minItems": 1,
            "uniqueItems": True,
        },
        "items": {
            "description": "Of a chain: what happens to the layers, in order, each covered once.",
            "type": "array",
            "items": {"$ref": "#/$defs/item"},
            "minItems": 1,
        },
        "schedule": {
            "description": "Of a compute graph: names of its nodes in the order of computation, "
            "repeats included. A copy is let go right after its last use.",
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
        },
        "actions": {
            "description": "Of a graph of layers: forwards, which keep or drop what the backward "
            "needs, and backwards.",
            "type": "array",
            "items": {"$ref": "#/$defs/action"},
            "minItems": 1,
        },
        "budget_bytes": {
            "description": "Memory that was asked for, reserved_bytes included; null: none was.",
            "type": ["integer", "null"],
            "minimum": 0,
        },
        "reserved_bytes": {"description": "Came off the budget before solving.", **size},
        "peak_bytes": {"description": "Most bytes live at once, without reserved ones.", **size},
        "time": {"description": "Of one training step, in time_unit.", **time},
        "keep_all_peak_bytes": {"description": "The same of recomputing nothing.", **size},
        "keep_all_time": {"description": "The same of recomputing nothing.", **time},
        "time_unit": {"description": "Of every time, such as ms.", "type": "string"},
        "method": {"description": "What made the plan.", "type": "string"},
        "status": {
            "description": "optimal: no plan of its class within the budget is faster.",
            "enum": ["optimal", "feasible"],
        },
        "lower_bound_time": {
            "description": "No plan of its class within the budget takes less.",
            **time,
        },
        "costs_sha256": {
            "description": "Digest of the costs that the plan was made for.",
            "type": "string",
            "pattern": "^[0-9a-fA-F]{64}$",
        },
        "measured_peak_bytes": {"description": "What a run of the plan measured.", **size},
        "policies": {
            "description": "What to keep inside layers that are kept under an option, by their "
            "names; of a chain.",
            "type": "object",
            "additionalProperties": {
                "type": "array",
                "items": {"$ref": "#/$defs/call"},
                "minItems": 1,
                "uniqueItems": True,
            },
            "minProperties": 1,
        },
        "class": {
            "description": "The plans among which none is faster; persistent: a stored value "
            "stays until its backward.",
            "enum": ["persistent", "forward", "staged", "any"],
        },
        "gap": {
            "description": "Of a graph: how far the time is above the bound at most, as a share; "
            "null: infinitely.",
            "type": ["number", "null"],
            "minimum": 0,
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA,
        "title": "A plan: which activations to keep and which to recompute",
        "type": "object",
        "properties": fields,
        "required": [name for name in fields if name not in (*_STEPS, *_OPTIONAL)],
        "oneOf": [{"required": [name]} for name in _STEPS],
        "additionalProperties": False,
        "$defs": {"item": _item(), "action": _action(), "call": _call()},
    }


_STEPS = ("items", "schedule", "actions")
_OPTIONAL = ("reserved_bytes", "measured_peak_bytes", "policies", "class", "gap")


def _item() -> dict[str, Any]:
    index = {"type": "integer", "minimum": 0}
    return {
        "oneOf": [
            {"description": "Keep the layer of this index.", **index},
            {
                "description": "Keep the layer in a cheaper way, by the name of the option.",
                "type": "object",
                "properties": {"keep": index, "option": {"type": "string"}},
                "required": ["keep", "option"],
                "additionalProperties": False,
            },
            {
                "description": "Keep only the input of the layers first to last; on backward, "
                "run body from it.",
                "type": "object",
                "properties": {
                    "checkpoint": {
                        "type": "array",
                        "items": index,
                        "minItems": 2,
                        "maxItems": 2,
                    },
                    "body": {"type": "array", "items": {"$ref": "#/$defs/item"}, "minItems": 1},
                },
                "required": ["checkpoint", "body"],
                "additionalProperties": False,
            },
        ]
    }


def _call() -> dict[str, Any]:
    return {
        "description": "The result of an operation, and which call of it in the layer's forward, "
        "counted from 0.",
        "type": "array",
        "prefixItems": [{"type": "string", "minLength": 1}, {"type": "integer", "minimum": 0}],
        "minItems": 2,
        "maxItems": 2,
    }


def _action() -> dict[str, Any]:
    name = {"type": "string"}
    forward = [{"const": "forward"}, name, {"enum": ["keep", "drop"]}]
    backward = [{"const": "backward"}, name]
    return {
        "oneOf": [
            {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
            for parts in (forward, backward)
        ]
    }
