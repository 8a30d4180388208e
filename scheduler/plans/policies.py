"""What a plan says of options: which results stay inside the layers that it keeps under one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from scheduler.common.errors import InvalidPlan
from scheduler.common.text import shown
from scheduler.costs.keeps import Keeps, check_keeps
from scheduler.costs.layer import LayerCost

__all__ = ["check_policies", "policies_of"]


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
