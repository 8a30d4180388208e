"""Costs of one operation of a compute graph, checked when they are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field

from scheduler.common.checks import check_name
from scheduler.common.errors import InvalidCosts
from scheduler.common.fields import BYTES, FLAG, NAME, TIME, as_records, check_values
from scheduler.common.text import shown

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

    name: str = field(default="", metadata=NAME)
    _: KW_ONLY
    time: float = field(metadata=TIME)
    bytes: int = field(metadata=BYTES)
    backward: bool = field(default=False, metadata=FLAG)

    def __post_init__(self) -> None:
        check_name("a node", "name", self.name)
        check_values(f"node {self.name!r}" if self.name else "a node without a name", self)


def as_nodes(items: object) -> tuple[NodeCost, ...]:
    """Nodes with names, from `NodeCost` and mappings of its fields.

    Raises
    ------
    InvalidCosts
        There is none, two share a name, or one is no node.
    """
    if isinstance(items, Mapping | str) or not isinstance(items, Iterable):
        raise InvalidCosts(f"the nodes must be a list, got {shown(items)}")
    return as_records(items, NodeCost, "node", "a graph needs at least one")
