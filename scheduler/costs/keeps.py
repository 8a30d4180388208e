"""What an option says of the inside of a block: results by operation and call, modules by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scheduler.common.checks import plain
from scheduler.common.errors import SchedulerError
from scheduler.common.text import shown

Keep = tuple[str, int] | tuple[str, int, int]
Keeps = tuple[Keep, ...]
"""Pairs (operation, n): the result of call n, counted from 0, of an operation such as
``aten.mm.default`` in the block's forward. Or (operation, n, of), where the block must run it `of`
times: else it is none that the costs are of."""


def check_keeps(where: str, value: object, error: type[SchedulerError]) -> Keeps:
    """The pairs in a list of pairs, or of triples, which may be empty.

    `error` is raised where it is no list of them, a name is empty, a call is no whole number of
    at least zero and below the number of calls, or a pair is there twice.
    """
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise error(f"{where} must be a list of pairs, got {shown(value)}; {_FORM}")
    found: dict[tuple[str, int], Keep] = {}
    for i, item in enumerate(value):
        pair = _pair(item)
        if pair is None:
            raise error(f"{where}[{i}] must be a pair, got {shown(item)}; {_FORM}")
        if pair[:2] in found:
            raise error(f"{where}[{i}] is {list(pair[:2])} once more; leave it out")
        found[pair[:2]] = pair
    return tuple(found.values())


def check_parts(where: str, value: object, error: type[SchedulerError]) -> tuple[str, ...]:
    """The names of modules in a list of them, each once, which may be empty."""
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise error(f"{where} must be a list of names of modules, got {shown(value)}")
    found: list[str] = []
    for name in value:
        if not isinstance(name, str) or not name or not name.isprintable() or name in found:
            raise error(f"{where} must be names of modules, each once, got {shown(name)}")
        found.append(str(name))
    return tuple(found)


_FORM = 'write ["aten.mm.default", 3] for the fourth call of that operation'


def _pair(item: object) -> Keep | None:
    if not isinstance(item, list | tuple) or len(item) not in (2, 3):
        return None
    name, *numbers = item
    numbers = [plain(number) for number in numbers]
    if not isinstance(name, str) or not name or not name.isprintable():
        return None
    if any(not isinstance(n, int) or isinstance(n, bool) or n < 0 for n in numbers):
        return None
    return None if numbers[1:] and numbers[0] >= numbers[1] else (str(name), *numbers)
