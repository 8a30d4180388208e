"""JSON read strictly: errors carry a place, and no key is lost."""

from __future__ import annotations

import json

from scheduler.errors import SchedulerError
from scheduler.text import shown

__all__ = ["parse_json"]


class _DuplicateKey(Exception):
    pass


def parse_json(text: str, source: str, error: type[SchedulerError]) -> object:
    """The value of a JSON text.

    ``NaN`` and ``Infinity``, which Python reads though JSON has no such numbers, come through as
    floats: the check of the field they stand in can name it, and must refuse them.

    Parameters
    ----------
    text
        The JSON text.
    source
        Where it comes from, for the message.
    error
        What to raise when it is not JSON, has a key twice, or is nested too deeply.
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
