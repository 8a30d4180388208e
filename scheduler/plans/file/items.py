"""The plan file: JSON of schema ``checkpoint-scheduler/plan/1``.

A plan may nest as deep as it has layers, so nothing here recurses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduler.common.errors import InvalidPlan
from scheduler.common.jsontext import parse_json
from scheduler.common.text import did_you_mean, shown
from solvers.schedule import Checkpoint, Item, Keep, depth

SCHEMA = "checkpoint-scheduler/plan/1"

_MOST_NESTED = 100
"""Bodies inside bodies that are written as such; deeper plans are written flat."""


def parse_plan(text: str, source: str) -> object:
    """The JSON value of a plan file's text; `source` is what a message calls it."""
    if source.lower().endswith((".csv", ".tsv")):
        raise InvalidPlan(f"{source}: this is a list of layers, not a plan; solve makes one of it")
    return parse_json(text, source, InvalidPlan, deep=True)


def items_to_json(items: Sequence[Item]) -> list[Any]:
    """The items as JSON values.

    Bodies that nest deeper than most JSON writers and readers go are written flat: the body of
    such a checkpoint is a number, of how many of the items after it are its body.
    """
    if depth(items) > _MOST_NESTED:
        return _flat(items)
    result: list[Any] = []
    todo: list[tuple[Sequence[Item], list[Any]]] = [(items, result)]
    while todo:
        level, values = todo.pop()
        for item in level:
            if isinstance(item, Keep):
                values.append(_keep_to_json(item))
            else:
                body: list[Any] = []
                values.append({"checkpoint": [item.first, item.last], "body": body})
                todo.append((item.body, body))
    return result


def _flat(items: Sequence[Item]) -> list[Any]:
    values: list[Any] = []
    todo = list(reversed(items))
    while todo:
        item = todo.pop()
        if isinstance(item, Keep):
            values.append(_keep_to_json(item))
        else:
            values.append({"checkpoint": [item.first, item.last], "body": len(item.body)})
            todo.extend(reversed(item.body))
    return values


def _keep_to_json(item: Keep) -> int | dict[str, int | str]:
    if item.option is None:
        return item.layer
    return {"keep": item.layer, "option": item.option}


@dataclass(slots=True)
class _Level:
    """One list of items while it is read: what it must cover, and how far it has come."""

    values: Sequence[object]
    first: int
    last: int
    next_layer: int
    items: list[Item] = field(default_factory=list)


class _Reader:
    """Turns JSON values into items, and knows where it is for the message."""

    def __init__(self, values: object, layers: Sequence[str]) -> None:
        self.layers = layers
        self.levels: list[_Level] = []
        self._enter("items", values, 0, len(layers) - 1)

    def read(self) -> tuple[Item, ...]:
        while True:
            level = self.levels[-1]
            at = len(level.items)
            if at < len(level.values):
                self._value(level, level.values[at])
                continue
            items = tuple(level.items)
            if level.next_layer <= level.last:
                raise InvalidPlan(
                    f"{self._place(inner=False)}: ends before layer {self._layer(level.next_layer)}"
                    f"; it must reach layer {self._layer(level.last)}"
                )
            self.levels.pop()
            if not self.levels:
                return items
            self._add(self.levels[-1], Checkpoint(level.first, level.last, items), level.last)

    def _value(self, level: _Level, value: object) -> None:
        if isinstance(value, Mapping) and ("checkpoint" in value or "body" in value):
            first, last = self._span(self._fields(value, "checkpoint", "body")["checkpoint"])
            self._check_order(level, first)
            if last > level.last:
                raise InvalidPlan(
                    f"{self._place()}: goes on to layer {self._layer(last)}, but the list that it "
                    f"is in ends with layer {self._layer(level.last)}"
                )
            self._enter(f"{self._place()}.body", value["body"], first, last)
            return
        option = None
        if isinstance(value, Mapping):
            record = self._fields(value, "keep", "option")
            value, option = record["keep"], record["option"]
            if not isinstance(option, str):
                raise InvalidPlan(f"{self._place()}: 'option' must be a name, got {shown(option)}")
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidPlan(
                f"{self._place()}: an item is the index of a layer to keep, "
                '{"keep": index, "option": name} or {"checkpoint": [first, last], "body": items}, '
                f"got {shown(value)}"
            )
        self._check_index(value)
        self._check_order(level, value)
        self._add(level, Keep(value, option), value)

    def _fields(self, value: Mapping[Any, Any], *known: str) -> Mapping[str, Any]:
        for key in value:
            if key not in known:
                hint = did_you_mean(key, known) or f"; its fields are {' and '.join(known)}"
                raise InvalidPlan(f"{self._place()}: unknown field {shown(key)}{hint}")
        for key in known:
            if key not in value:
                raise InvalidPlan(
                    f"{self._place()}: there is no {key!r}; it needs {' and '.join(known)}"
                )
        return value

    def _span(self, span: object) -> tuple[int, int]:
        if not isinstance(span, list | tuple) or len(span) != 2:
            raise InvalidPlan(
                f"{self._place()}: 'checkpoint' must be a pair [first, last] of indices, "
                f"got {shown(span)}"
            )
        for index in span:
            self._check_index(index)
        first, last = span
        if last < first:
            raise InvalidPlan(
                f"{self._place()}: the checkpoint ends at layer {last}, before its first, {first}"
            )
        return first, last

    def _check_index(self, index: object) -> None:
        if not isinstance(index, int) or isinstance(index, bool):
            raise InvalidPlan(f"{self._place()}: a layer is an index, got {shown(index)}")
        if not 0 <= index < len(self.layers):
            raise InvalidPlan(
                f"{self._place()}: there is no layer {shown(index)}; "
                f"the plan has layers 0 to {len(self.layers) - 1}"
            )

    def _check_order(self, level: _Level, first: int) -> None:
        if level.next_layer > level.last:
            raise InvalidPlan(
                f"{self._place()}: starts at layer {self._layer(first)}, but the list that it is "
                f"in ends with layer {self._layer(level.last)}"
            )
        if first != level.next_layer:
            raise InvalidPlan(
                f"{self._place()}: starts at layer {self._layer(first)}, but items cover the "
                f"layers in order, each once, and layer {self._layer(level.next_layer)} is next"
            )

    def _enter(self, place: str, values: object, first: int, last: int) -> None:
        if not isinstance(values, list | tuple):
            raise InvalidPlan(f"{place}: must be a list of items, got {shown(values)}")
        self.levels.append(_Level(values, first, last, first))

    def _add(self, level: _Level, item: Item, last: int) -> None:
        level.items.append(item)
        level.next_layer = last + 1

    def _layer(self, index: int) -> str:
        return f"{index} ({shown(self.layers[index])})"

    def _place(self, *, inner: bool = True) -> str:
        """``items[3].body[0]``; not `inner`: the list that it is in."""
        places = [f"[{len(level.items)}]" for level in self.levels]
        text = "items" + ".body".join(places if inner else [*places[:-1], ""])
        return text if len(text) <= 200 else f"{text[:100]}…{text[-99:]}"


def parse_items(values: object, layers: Sequence[str]) -> tuple[Item, ...]:
    """Items from the JSON `values` of a plan of `layers`.

    Raises
    ------
    InvalidPlan
        A value is no item, or the items do not cover the layers in order; the message names the
        place, as in ``items[3].body[0]``.
    """
    return _Reader(_nested(values), layers).read()


def _nested(values: object) -> object:
    """The values with flat bodies (see `items_to_json`) as lists; others stay as they are."""
    if not isinstance(values, list | tuple) or not any(map(_flat_body, values)):
        return values
    nested: list[object] = []
    above: list[tuple[list[object], int]] = []
    level, left = nested, len(values)  # of the outermost list the end of the values is the end
    for value in values:
        left -= 1
        count = _flat_body(value)
        body: list[object] = []
        level.append({**value, "body": body} if count else value)
        if count:
            above.append((level, left))
            level, left = body, count
        while not left and above:
            level, left = above.pop()
    if above:
        raise InvalidPlan(
            f"items: the list ends, and {left} more items belong to a 'body' before; it is not a "
            "whole plan"
        )
    return nested


def _flat_body(value: Any) -> int:
    body = value.get("body") if isinstance(value, Mapping) else None
    return body if isinstance(body, int) and not isinstance(body, bool) and body > 0 else 0
