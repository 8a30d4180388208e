"""What a plan says of options: which results stay inside the layers that it keeps under one.

And in how many tiles these layers run, where they do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypedDict

from scheduler.common.checks import plain
from scheduler.common.errors import InvalidPlan
from scheduler.common.text import shown
from scheduler.costs.keeps import Keeps, check_keeps, check_parts
from scheduler.costs.layer import OptionCost


class Chosen(TypedDict):
    """What a plan says of its options, as fields of it, by names of layers."""

    policies: dict[str, Keeps]
    tiles: dict[str, int]
    tiled: dict[str, tuple[str, ...]]


def chosen(costs: Any, options: Mapping[int, str]) -> Chosen:
    """What the costs say of the `options`, which are given by the positions of their layers."""
    found: dict[str, OptionCost] = {}
    for i, name in options.items():
        layer = costs.layers[i]
        found[layer.name] = next(option for option in layer.options if option.name == name)
    return {
        "policies": {name: each.keeps for name, each in found.items() if each.keeps},
        "tiles": {name: each.tiles for name, each in found.items() if each.tiles},
        "tiled": {name: each.tiled for name, each in found.items() if each.tiled},
    }


def check_tiles(value: object, names: Collection[str]) -> dict[str, int]:
    """The tiles of a plan that keeps the layers of these `names` under an option."""
    if not isinstance(value, Mapping):
        raise InvalidPlan(f"'tiles' must give names of layers a number, got {shown(value)}")
    tiles: dict[str, int] = {}
    for where, name, count in _of_layers("tiles", value, names):
        number = plain(count)
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise InvalidPlan(f"{where} must be a whole number from 1 on, got {shown(count)}")
        tiles[name] = number
    return tiles


def check_tiled(value: object, names: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The modules in tiles of a plan that runs the layers of these `names` in tiles."""
    if not isinstance(value, Mapping):
        raise InvalidPlan(f"'tiled' must give names of layers modules, got {shown(value)}")
    return {
        name: check_parts(where, parts, InvalidPlan)
        for where, name, parts in _of_layers("tiled", value, names)
    }


def check_policies(value: object, names: Collection[str]) -> dict[str, Keeps]:
    """The policies of a plan that keeps the layers of these `names` under an option."""
    if not isinstance(value, Mapping):
        raise InvalidPlan(
            f"'policies' must say for names of layers what to keep, got {shown(value)}"
        )
    policies: dict[str, Keeps] = {}
    for where, name, calls in _of_layers("policies", value, names):
        policies[name] = check_keeps(where, calls, InvalidPlan)
        if not policies[name]:
            raise InvalidPlan(f"{where} is empty; leave it out")
    return policies


def _of_layers(
    field: str, value: Mapping[Any, Any], names: Collection[str]
) -> Iterator[tuple[str, str, object]]:
    """The place, the name of the layer, and what is said of it."""
    for name, said in value.items():
        where = f"{field}[{shown(name)}]"
        if name not in names:
            raise InvalidPlan(f"{where}: the plan keeps no layer of that name under an option")
        yield where, name, said
