"""What a plan says of options: which results stay inside the layers that it keeps under one.

And in how many tiles these layers run, where they do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from scheduler.common.checks import plain
from scheduler.common.errors import InvalidPlan
from scheduler.common.text import shown
from scheduler.costs.keeps import Keeps, check_keeps
from scheduler.costs.layer import LayerCost, OptionCost


def policies_of(layers: Iterable[LayerCost], options: Mapping[int, str]) -> dict[str, Keeps]:
    """By name of layer what an option keeps, of the `options` by position whose costs say it."""
    return {name: each.keeps for name, each in _chosen(layers, options) if each.keeps}


def tiles_of(layers: Iterable[LayerCost], options: Mapping[int, str]) -> dict[str, int]:
    """By name of layer in how many tiles it runs, of the `options` by position that have any."""
    return {name: each.tiles for name, each in _chosen(layers, options) if each.tiles}


def _chosen(
    layers: Iterable[LayerCost], options: Mapping[int, str]
) -> Iterable[tuple[str, OptionCost]]:
    for i, layer in enumerate(layers):
        if i in options:
            yield layer.name, next(o for o in layer.options if o.name == options[i])


def check_tiles(value: object, names: Collection[str]) -> dict[str, int]:
    """The tiles of a plan that keeps the layers of these `names` under an option."""
    if not isinstance(value, Mapping):
        raise InvalidPlan(f"'tiles' must give names of layers a number, got {shown(value)}")
    tiles: dict[str, int] = {}
    for name, count in value.items():
        if name not in names:
            raise InvalidPlan(
                f"tiles[{shown(name)}]: the plan keeps no layer of that name under an option"
            )
        number = plain(count)
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise InvalidPlan(
                f"tiles[{shown(name)}] must be a whole number from 1 on, got {shown(count)}"
            )
        tiles[name] = number
    return tiles


def check_policies(value: object, names: Collection[str]) -> dict[str, Keeps]:
    """The policies of a plan that keeps the layers of these `names` under an option."""
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
