"""JSON read strictly: errors carry a place, and no key is lost."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.common.errors import SchedulerError
from scheduler.common.text import shown


class _DuplicateKey(Exception):
    pass


def parse_json(text: str, source: str, error: type[SchedulerError]) -> object:
    """The value of a JSON text.

    ``NaN`` and ``Infinity``, which Python reads though JSON has no such numbers, come through as
    floats: the check of the field they stand in can name it, and must refuse them. `error` is
    raised when the text, of which a message says `source`, is not JSON, has a key twice, or is
    nested too deeply.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as cause:
        hint = "the file is empty" if not text.strip() else _what(cause, text)
        raise error(
            f"{source}, line {cause.lineno}, column {cause.colno}: this is not valid JSON: {hint}"
        ) from cause
    except _DuplicateKey as cause:
        raise error(f"{source}: {cause}; keep one of the two") from cause
    except RecursionError as cause:
        raise error(f"{source}: the JSON is nested too deeply to be a file of this kind") from cause
    except ValueError as cause:
        # Python refuses to read an integer of thousands of digits.
        raise error(f"{source}: {cause}") from cause


def dump_record(record: Mapping[str, object], lists: Sequence[str]) -> str:
    """The text of a JSON object, the members of its `lists` one a line, after all else."""
    text = json.dumps({key: value for key, value in record.items() if key not in lists})[:-1]
    for key in lists:
        if key not in record:
            continue
        members = record[key]
        assert isinstance(members, list)
        lines = ",\n".join(f"  {json.dumps(member)}" for member in members)
        text += f',\n "{key}": [\n{lines}\n ]' if members else f',\n "{key}": []'
    return f"{text}}}\n"


def finite(record: Mapping[str, object]) -> dict[str, object]:
    """`record` with None for numbers that JSON does not have, as an overhead over no time."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in record.items()
    }


def digest(content: dict[str, Any]) -> str:
    """SHA-256 of a JSON object, the same for 1 and 1.0 and for any order of its keys."""
    text = json.dumps(_whole_as_int(content), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _whole_as_int(value: Any) -> Any:
    # 1 and 1.0 are the same cost, but not the same text.
    if isinstance(value, dict):
        return {key: _whole_as_int(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole_as_int(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _what(cause: json.JSONDecodeError, text: str) -> str:
    said = cause.msg[:1].lower() + cause.msg[1:]
    truncated = not text[cause.pos :].strip() or said.startswith("unterminated string")
    return f"{said} (the text ends too early)" if truncated else said


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        owner = f" of {shown(record['name'])}" if twice != "name" and "name" in record else ""
        raise _DuplicateKey(f"the key {shown(twice)}{owner} appears twice")
    return record
