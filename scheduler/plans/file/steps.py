"""The steps of a graph's plan: as a plan file spells them, and how often they run what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from scheduler.common.errors import InvalidPlan
from scheduler.common.text import did_you_mean, shown
from solvers.graph.replay import LayerAction, LayerBackward, LayerForward
from solvers.graph.solution import Steps

__all__ = ["first_runs", "parse_steps", "run_counts", "steps_key_of", "steps_to_json"]

_ACTION = 'an action is ["forward", NAME, "keep" or "drop"] or ["backward", NAME]'


def steps_key_of(steps: Steps) -> str:
    """The field of a plan file that `steps` stand in: ``schedule`` or ``actions``."""
    return "schedule" if isinstance(steps[0], int) else "actions"


def run_counts(steps: Steps, count: int) -> list[int]:
    """How often each of `count` nodes is computed, or each layer's forward runs."""
    runs = Counter(
        step if isinstance(step, int) else step.layer
        for step in steps
        if not isinstance(step, LayerBackward)
    )
    return [runs[i] for i in range(count)]


def first_runs(steps: Steps) -> tuple[tuple[bool, int], ...]:
    """The order in which operations run first: pairs (is it a backward, which node or layer)."""
    runs = (
        (False, step) if isinstance(step, int) else (isinstance(step, LayerBackward), step.layer)
        for step in steps
    )
    return tuple(dict.fromkeys(runs))


def steps_to_json(steps: Steps, names: Sequence[str]) -> list[object]:
    """The steps as JSON values: names of nodes, or actions."""
    return [_to_json(step, names) for step in steps]


def _to_json(step: int | LayerAction, names: Sequence[str]) -> object:
    if isinstance(step, int):
        return names[step]
    if isinstance(step, LayerForward):
        return ["forward", names[step.layer], "keep" if step.keep else "drop"]
    return ["backward", names[step.layer]]


def parse_steps(key: str, values: object, names: Sequence[str]) -> Steps:
    """Steps from the JSON `values` of the field `key`, ``schedule`` or ``actions``.

    Whether they can be executed is for a replay to say.

    Raises
    ------
    InvalidPlan
        A value is no step, or a node never runs; the message names the place.
    """
    if not isinstance(values, list | tuple):
        raise InvalidPlan(f"{key!r} must be a list, got {shown(values)}")
    position = {name: i for i, name in enumerate(names)}
    if key == "schedule":
        nodes = tuple(_index(f"schedule[{i}]", value, position) for i, value in enumerate(values))
        _check_all_there(names, set(nodes), "the schedule never computes {}")
        return nodes
    actions = tuple(_action(f"actions[{i}]", value, position) for i, value in enumerate(values))
    for kind, what in ((LayerForward, "forward"), (LayerBackward, "backward")):
        there = {action.layer for action in actions if isinstance(action, kind)}
        _check_all_there(names, there, f"the actions have no {what} of {{}}")
    return actions


def _action(place: str, value: object, position: dict[str, int]) -> LayerAction:
    if isinstance(value, list | tuple):
        if len(value) == 2 and value[0] == "backward":
            return LayerBackward(_index(place, value[1], position))
        if len(value) == 3 and value[0] == "forward" and value[2] in ("keep", "drop"):
            return LayerForward(_index(place, value[1], position), value[2] == "keep")
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
