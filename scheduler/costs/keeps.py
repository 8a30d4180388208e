"""Which results inside a block an option keeps: operations by name, and which call of each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from scheduler.common.checks import plain
from scheduler.common.errors import InvalidPlan, SchedulerError
from scheduler.common.text import shown

if TYPE_CHECKING:
    from scheduler.costs.layer import LayerCost

__all__ = ["Keeps", "check_keeps", "check_policies", "policies_of"]

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


def policies_of(layers: Iterable[LayerCost], options: Mapping[int, str]) -> dict[str, Keeps]:
    """By name of layer what an option keeps, of the `options` by position whose costs say it."""
    chosen = {
        layer.name: next(o.keeps for o in layer.options if o.name == options[i])
        for i, layer in enumerate(layers)
        if i in options
    }
    return {name: keeps for name, keeps in chosen.items() if keeps}


def check_policies(value: object, names: Collection[str]) -> dict[str, Keeps]:
    """The policies of a plan that keeps the layers of these `names` under an option.

    Raises
    ------
    InvalidPlan
        They are no mapping of names to lists of pairs, a list is empty or no list of pairs, or a
        name is none of those.
    """
    if not isinstance(value, Mapping):
        raise InvalidPlan(
            f"'policies' must say for names of layers what to keep, got {shown(value)}"
        )
    policies: dict[str, Keeps] = {}
    for name, calls in value.items():
        where = f"policies[{shown(name)}]"
        if name not in names:
            raise InvalidPlan(f"{where}: the plan keeps no layer of that name under an option")
        policies[name] = check_keeps(where, calls, InvalidPlan)
        if not policies[name]:
            raise InvalidPlan(f"{where} is empty; leave it out")
    return policies


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
