"""The plan file itself, and what a plan file may say."""

from __future__ import annotations

import json
from typing import Any

from scheduler.export.exported import Exported, Source
from scheduler.plans.file.fields import fields_schema
from scheduler.plans.file.items import SCHEMA


def to_json(source: Source) -> Exported:
    """The plan as a plan file, with the costs that it carries."""
    return Exported("json", source.plan.to_json(costs=source.plan.carries_costs))


def to_json_schema(source: Source) -> Exported:
    """The JSON Schema (draft 2020-12) of plan files, whatever the plan.

    It says what each field means and of which kind it is. That items cover the layers in order,
    and that peak and time are those of the replay, no schema can say: ``Plan.load`` and
    ``Plan.replay`` check it.
    """
    call = {
        "description": "The result of an operation, and which call of it in the layer's forward, "
        "counted from 0; then, where it is known, how many calls of it there must be.",
        "type": "array",
        "prefixItems": [
            {"type": "string", "minLength": 1},
            {"type": "integer", "minimum": 0},
            {"type": "integer", "minimum": 1},
        ],
        "minItems": 2,
        "maxItems": 3,
    }
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA,
        "title": "A plan: which activations to keep and which to recompute",
        **fields_schema(),
        "$defs": {"item": _item(), "action": _action(), "call": call},
    }
    return Exported("json-schema", json.dumps(schema, indent=1) + "\n")


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
                    "checkpoint": {"type": "array", "items": index, "minItems": 2, "maxItems": 2},
                    "body": {
                        "description": "Items; where they nest too deep, how many of the items "
                        "after this one they are.",
                        "oneOf": [
                            {"type": "array", "items": {"$ref": "#/$defs/item"}, "minItems": 1},
                            {"type": "integer", "minimum": 1},
                        ],
                    },
                },
                "required": ["checkpoint", "body"],
                "additionalProperties": False,
            },
        ]
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
