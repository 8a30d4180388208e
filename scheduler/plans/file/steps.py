"""The steps of a graph's plan as a plan file spells them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scheduler.common.errors import InvalidPlan
from scheduler.common.text import did_you_mean, shown
from solvers.graph.schedule import LayerAction
from solvers.schedule import Backward, Forward

__all__ = ["actions_to_json", "parse_actions", "parse_nodes"]

_ACTION = 'an action is ["forward", NAME, "keep" or "drop"] or ["backward", NAME]'


def parse_nodes(values: object, names: Sequence[str]) -> tuple[int, ...]:
    """Nodes from the JSON `values` of ``schedule``.

    Whether they can be executed is for a replay to say.

    Raises
    ------
    InvalidPlan
        A value is no node, or a node never runs; the message names the place.
    """
    position = {name: i for i, name in enumerate(names)}
    steps = enumerate(_list("schedule", values))
    nodes = tuple(_index(f"schedule[{i}]", value, position) for i, value in steps)
    _check_all_there(names, set(nodes), "the schedule never computes {}")
    return nodes


def parse_actions(values: object, names: Sequence[str]) -> tuple[LayerAction, ...]:
    """The same of actions, from the JSON `values` of ``actions``."""
    position = {name: i for i, name in enumerate(names)}
    steps = enumerate(_list("actions", values))
    actions = tuple(_action(f"actions[{i}]", value, position) for i, value in steps)
    for kind, what in ((Forward, "forward"), (Backward, "backward")):
        there = {action.layer for action in actions if isinstance(action, kind)}
        _check_all_there(names, there, f"the actions have no {what} of {{}}")
    return actions


def actions_to_json(steps: Sequence[LayerAction], names: Sequence[str]) -> list[object]:
    """The actions as JSON values."""
    return [
        ["forward", names[step.layer], "keep" if step.keep else "drop"]
        if isinstance(step, Forward)
        else ["backward", names[step.layer]]
        for step in steps
    ]


def _list(key: str, values: object) -> Sequence[object]:
    if not isinstance(values, list | tuple):
        raise InvalidPlan(f"{key!r} must be a list, got {shown(values)}")
    return values


def _action(place: str, value: object, position: dict[str, int]) -> LayerAction:
    if isinstance(value, list | tuple):
        if len(value) == 2 and value[0] == "backward":
            return Backward(_index(place, value[1], position))
        if len(value) == 3 and value[0] == "forward" and value[2] in ("keep", "drop"):
            return Forward(_index(place, value[1], position), value[2] == "keep")
    raise InvalidPlan(f"{place}: {_ACTION}, got {shown(value)}")


def _index(place: str, name: object, position: dict[str, int]) -> int:
    if isinstance(name, str) and name in position:
        return position[name]
    near = did_you_mean(name, position) if isinstance(name, str) else ""
    raise InvalidPlan(f"{place}: {shown(name)} is none of the plan's 'layers'{near}")


def _check_all_there(names: Sequence[str], there: Iterable[int], sentence: str) -> None:
    missing = sorted(set(range(len(names))).difference(there))
    if missing:
        raise InvalidPlan(f"{sentence.format(repr(names[missing[0]]))}; it is not a whole plan")
