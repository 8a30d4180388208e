"""Which results inside a block an option keeps: operations by name, and which call of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scheduler.common.checks import plain
from scheduler.common.errors import SchedulerError
from scheduler.common.text import shown

__all__ = ["Keeps", "check_keeps"]

Keeps = tuple[tuple[str, int], ...]
"""Pairs (operation, n): the result of call n, counted from 0, of an operation such as
``aten.mm.default`` in the block's forward."""


def check_keeps(where: str, value: object, error: type[SchedulerError]) -> Keeps:
    """The pairs in a list of pairs.

    Parameters
    ----------
    where
        What a message calls the place.
    value
        The list; it may be empty.
    error
        What to raise where it is no list of pairs, a name is empty, a call is no whole number of
        at least zero, or a pair is there twice.
    """
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise error(f"{where} must be a list of pairs, got {shown(value)}; {_FORM}")
    pairs: dict[tuple[str, int], None] = {}
    for i, item in enumerate(value):
        pair = _pair(item)
        if pair is None:
            raise error(f"{where}[{i}] must be a pair, got {shown(item)}; {_FORM}")
        if pair in pairs:
            raise error(f"{where}[{i}] is {list(pair)} once more; leave it out")
        pairs[pair] = None
    return tuple(pairs)


_FORM = 'write ["aten.mm.default", 3] for the fourth call of that operation'


def _pair(item: object) -> tuple[str, int] | None:
    if not isinstance(item, list | tuple) or len(item) != 2:
        return None
    name, call = item[0], plain(item[1])
    if not isinstance(name, str) or not name or not name.isprintable():
        return None
    if not isinstance(call, int) or isinstance(call, bool) or call < 0:
        return None
    return str(name), call
