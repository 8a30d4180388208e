"""From the config.json of a transformers model to the fields of a shape, one function a family.

What a family has is read off the modules that transformers 5.24 builds for it; a test compares the
parameter counts. A field that transformers would fill in by a default of its own is asked for,
unless released configs leave it out: a default differs between families, and a wrong count is
worse than a question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scheduler.common.text import shown
from scheduler.memory.errors import InvalidShape, check_choice
from scheduler.memory.shape.config import Config, check_fields
from scheduler.memory.shape.families import dense, encoders, mixtures
from scheduler.memory.shape.families.parts import check_whole_heads

_NESTED = ("text_config", "vision_config", "audio_config", "llm_config", "language_config")
_NOT_WHOLE = ("glm", "glm4", "gpt2", "gpt_neox", "phi3")
"""Families whose rotary need not turn whole heads, or that have none."""

FAMILIES: Mapping[str, Callable[[Config], dict[str, Any]]] = (
    dense.FAMILIES | mixtures.FAMILIES | encoders.FAMILIES
)
"""Which model_type is read by what."""


def shape_fields(record: object, name: str, where: str) -> dict[str, Any]:
    """The fields of a shape called `name`, from a config; `where` is how errors call it.

    A released config has dozens of fields about tokens, generation and versions. Those that no
    size depends on are listed (`config`) and ignored; any other that the family does not read is
    refused, since it may change the memory unseen.
    """
    if not isinstance(record, Mapping):
        raise InvalidShape(
            f"{where} must be one JSON object with a model_type, got {shown(record)}"
        )
    if "model_type" not in record:
        raise InvalidShape(f"{where} has no 'model_type'; choose one of {', '.join(FAMILIES)}")
    nested = next((field for field in _NESTED if isinstance(record.get(field), Mapping)), None)
    if nested is not None:
        raise InvalidShape(
            f"{where} is of a model with parts ({nested!r}), model_type "
            f"{shown(record['model_type'])}; pass the config of its text decoder alone"
        )
    family = check_choice(f"model_type of {where}", record["model_type"], FAMILIES, InvalidShape)
    config = Config(record, where)
    if family not in _NOT_WHOLE:
        check_whole_heads(config)
    fields = FAMILIES[family](config)
    check_fields(config, family)
    # A list has one value for each block.
    by_block = {field: value for field, value in fields.items() if isinstance(value, list)}
    fields |= {field: values[-1] for field, values in by_block.items()}
    return fields | {"name": name, "family": family, "by_block": by_block}
