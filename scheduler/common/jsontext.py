"""JSON read strictly: errors carry a place, and no key is lost."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.common.errors import SchedulerError
from scheduler.common.text import shown

_DEEPEST = 10_000
"""Nested values read at most where a text may nest deeply."""

_SPACE = re.compile(r"[ \t\n\r]*")


class _DuplicateKey(Exception):
    pass


def parse_json(
    text: str, source: str, error: type[SchedulerError], *, deep: bool = False
) -> object:
    """The value of a JSON text.

    ``NaN`` and ``Infinity``, which Python reads though JSON has no such numbers, come through as
    floats: the check of the field they stand in can name it, and must refuse them. `error` is
    raised when the text, of which a message says `source`, is not JSON, has a key twice, or is
    nested too deeply: for Python's recursion limit, or with `deep` far beyond it.
    """
    try:
        try:
            return json.loads(text, object_pairs_hook=_unique)
        except RecursionError:
            if not deep:
                raise
            return _loads(text)
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


def _loads(text: str) -> object:
    """What `json.loads` gives, with a stack of its own: the recursion limit is all threads'."""
    scalar, space, refused = json.JSONDecoder().raw_decode, _SPACE.match, json.JSONDecodeError
    levels: list[list[Any]] = []  # members of what is open; of an object keys and values in turn
    closings: list[str] = []
    at = 0

    def skipped() -> str:
        nonlocal at
        at = space(text, at).end()  # type: ignore[union-attr]  # it matches nothing, too
        return text[at : at + 1]

    def read_key() -> None:
        nonlocal at
        if skipped() != '"':
            raise refused("Expecting property name enclosed in double quotes", text, at)
        key, at = scalar(text, at)
        levels[-1].append(key)
        if skipped() != ":":
            raise refused("Expecting ':' delimiter", text, at)
        at += 1

    while True:
        mark = skipped()
        if mark and mark in "[{":
            if len(levels) == _DEEPEST:
                raise RecursionError
            levels.append([])
            closings.append("]" if mark == "[" else "}")
            at += 1
            if skipped() != closings[-1]:
                if mark == "{":
                    read_key()
                continue
        else:
            value, at = scalar(text, at)
            if levels:
                levels[-1].append(value)
        while levels and skipped() == closings[-1]:
            at += 1
            members = levels.pop()
            pairs = zip(members[::2], members[1::2], strict=closings[-1] == "}")
            value = _unique(list(pairs)) if closings.pop() == "}" else members
            if levels:
                levels[-1].append(value)
        if not levels:
            if skipped():
                raise refused("Extra data", text, at)
            return value
        if skipped() != ",":
            raise refused("Expecting ',' delimiter", text, at)
        at += 1
        if closings[-1] == "}":
            read_key()


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
    if not text[cause.pos :].strip() or said.startswith("unterminated string"):
        return f"{said} (the text ends too early)"
    begins = not text[: cause.pos].strip()
    return f"it begins with {shown(text.strip(), 30)}; name another file" if begins else said


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        owner = f" of {shown(record['name'])}" if twice != "name" and "name" in record else ""
        raise _DuplicateKey(f"the key {shown(twice)}{owner} appears twice")
    return record
