"""What a JSON Schema refuses, for the words that those of this package are written in."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

KINDS: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}


def is_kind(value: object, kind: str) -> bool:
    return isinstance(value, KINDS[kind]) and not isinstance(value, bool)


def accepts(schema: dict[str, Any], value: Any, root: dict[str, Any] | None = None) -> bool:
    """Whether `value` is of `schema`; a word that is not known here is an error."""
    whole = root or schema

    def within(part: dict[str, Any], each: Any) -> bool:
        return accepts(part, each, whole)

    def pattern(word: Any) -> bool:
        return not isinstance(value, str) or re.search(word, value) is not None

    def members(word: Any) -> bool:
        known = schema.get("properties", {})
        rest = [value[key] for key in value if key not in known] if is_kind(value, "object") else []
        return not rest if word is False else all(within(word, each) for each in rest)

    def sized(kind: str, test: Callable[[Any, Any], bool]) -> Callable[[Any], bool]:
        return lambda word: not is_kind(value, kind) or test(value, word)

    words: dict[str, Callable[[Any], bool]] = {
        "$ref": lambda word: within(whole["$defs"][word.removeprefix("#/$defs/")], value),
        "const": lambda word: value == word,
        "enum": lambda word: value in word,
        "type": lambda word: any(
            is_kind(value, kind) for kind in ([word] if isinstance(word, str) else word)
        ),
        "oneOf": lambda word: sum(within(part, value) for part in word) == 1,
        "required": sized("object", lambda record, word: {*word} <= record.keys()),
        "minProperties": sized("object", lambda record, word: len(record) >= word),
        "properties": sized(
            "object",
            lambda record, word: all(within(word[k], record[k]) for k in word if k in record),
        ),
        "additionalProperties": members,
        "items": sized("array", lambda each, word: all(within(word, v) for v in each)),
        "prefixItems": sized("array", lambda each, word: all(map(within, word, each))),
        "minItems": sized("array", lambda each, word: len(each) >= word),
        "maxItems": sized("array", lambda each, word: len(each) <= word),
        "uniqueItems": sized("array", lambda each, word: len({*map(repr, each)}) == len(each)),
        "minLength": sized("string", lambda text, word: len(text) >= word),
        "pattern": pattern,
        "minimum": sized("number", lambda number, word: number >= word),
    }
    said = schema.keys() - {"description", "title", "$schema", "$id", "$defs"}
    return all(words[word](schema[word]) for word in said)
