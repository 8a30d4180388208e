"""Costs of one operation of a compute graph, checked when they are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, MISSING, dataclass, fields, replace
from typing import Any

from scheduler.common.checks import check_bytes, check_flag, check_name, check_time
from scheduler.common.errors import InvalidCosts
from scheduler.common.text import did_you_mean, ordinal, shown

__all__ = ["NodeCost", "as_nodes"]


@dataclass(frozen=True, slots=True)
class NodeCost:
    """Costs of one operation: its time in the graph's time unit, its output in bytes.

    numpy scalars are accepted everywhere and stored as plain Python numbers.

    Parameters
    ----------
    name
        Empty: the graph calls it "node 3" by its 0-based position.
    time
        Time to compute it once.
    bytes
        Size of its output.
    backward
        Does it belong to the backward part? Class "forward" never computes such a node twice.

    Raises
    ------
    InvalidCosts
        A value is negative, not finite or of the wrong kind; the message names node and field.
    """

    name: str = ""
    _: KW_ONLY
    time: float
    bytes: int
    backward: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", check_name("a node", "name", self.name))
        where = f"node {self.name!r}" if self.name else "a node without a name"
        object.__setattr__(self, "time", check_time(where, "time", self.time))
        object.__setattr__(self, "bytes", check_bytes(where, "bytes", self.bytes))
        object.__setattr__(self, "backward", check_flag(where, "backward", self.backward))


_NEEDED = {field.name: field.default is MISSING for field in fields(NodeCost)}


def as_nodes(items: object) -> tuple[NodeCost, ...]:
    """Nodes with names, from `NodeCost` and mappings of its fields.

    Raises
    ------
    InvalidCosts
        There is none, two share a name, or one is no node.
    """
    if isinstance(items, Mapping | str) or not isinstance(items, Iterable):
        raise InvalidCosts(f"the nodes must be a list, got {shown(items)}")
    nodes = tuple(_as_node(i, item) for i, item in enumerate(items))
    if not nodes:
        raise InvalidCosts("there are no nodes; a graph needs at least one")
    first: dict[str, int] = {}
    for i, node in enumerate(nodes):
        if first.setdefault(node.name, i) != i:
            raise InvalidCosts(
                f"two nodes are named {node.name!r}, the {ordinal(first[node.name] + 1)} and the "
                f"{ordinal(i + 1)}; give each a name of its own"
            )
    return nodes


def _as_node(i: int, item: object) -> NodeCost:
    name = f"node {i}"
    if isinstance(item, NodeCost):
        return item if item.name else replace(item, name=name)
    position = f"{ordinal(i + 1)} node"
    if not isinstance(item, Mapping):
        raise InvalidCosts(
            f"the {position} is {shown(item)}; a node is a NodeCost or a mapping of its fields"
        )
    given = item.get("name")
    given = name if given is None or given == "" else given
    _check_keys(f"node {shown(given)} ({position})", item)
    return NodeCost(**{**item, "name": given})


def _check_keys(where: str, record: Mapping[Any, object]) -> None:
    for key in record:
        if key not in _NEEDED:
            hint = did_you_mean(key, _NEEDED) or f"; the fields are {', '.join(_NEEDED)}"
            raise InvalidCosts(f"unknown field {shown(key)} in {where}{hint}")
    for field, needed in _NEEDED.items():
        if needed and field not in record:
            raise InvalidCosts(f"{where} has no {field!r}; it needs time and bytes")
