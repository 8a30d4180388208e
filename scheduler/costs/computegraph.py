"""Costs of a compute graph: operations with one output each, any of which may be made again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field
from typing import Any, ClassVar

from scheduler.common.checks import (
    BYTES,
    FLAG,
    NAME,
    TIME,
    FileKind,
    as_records,
    check_name,
    check_values,
)
from scheduler.common.errors import InvalidCosts
from scheduler.common.text import counted, format_bytes, format_time, shown
from scheduler.costs.base import NOTE, UNIT, BaseCosts, costs_table, made_of
from scheduler.costs.edges import in_order, index_pairs
from scheduler.report.tables import WIDTH
from solvers.graph.problem import ComputeGraph, Node

_KIND = FileKind(
    "checkpoint-scheduler/graph/1",
    "a compute graph's file",
    InvalidCosts,
    {
        "costs": "this is a cost file of layers, not a compute graph; read it with CostGraph.load",
        "plan": "this is a plan, not a compute graph; read it with Plan.load or "
        "'checkpoint-scheduler show', or give the graph that it was made from",
    },
)


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


def _nodes(where: str, name: str, value: object) -> tuple[NodeCost, ...]:
    """Nodes with names, from `NodeCost` and mappings of its fields."""
    if isinstance(value, Mapping | str) or not isinstance(value, Iterable):
        raise InvalidCosts(f"the nodes must be a list, got {shown(value)}")
    return as_records(value, NodeCost, "node", "a graph needs at least one")


@dataclass(frozen=True, repr=False)
class ComputeCosts(BaseCosts):
    """The costs of a compute graph: operations, forward and backward ones alike, and edges.

    While a node is computed, its own output counts, and all outputs that are still to be read.
    Several inputs, several outputs and parts without any edge between them are allowed.

    Parameters
    ----------
    nodes
        `NodeCost` or mappings of its fields, at least one; those without a name are called
        "node 0", "node 1", … by position. They are put in a topological order; where they are in
        one, they stay as they are. The order is that of the first computations in classes
        "forward" and "staged".
    edges
        Pairs of positions (u, v) in `nodes`: v reads the output of u.
    name
        What reports call it.
    time_unit
        Unit of every time; ``s``, ``ms``, ``us`` and ``ns`` are understood, others are kept.
    note
        What they are of. Not part of equality.

    Raises
    ------
    InvalidCosts
        Two nodes share a name, there are none, an edge leads nowhere, to where it starts, twice
        the same way or in a circle, or the costs add up to 2⁶² or more.
    """

    nodes: tuple[NodeCost, ...] = field(metadata={"check": _nodes})
    edges: tuple[tuple[int, int], ...] = ()
    name: str = field(default="", metadata=NAME)
    time_unit: str = field(default="ms", metadata=UNIT)
    note: str = field(default="", compare=False, metadata=NOTE)

    noun: ClassVar[str] = "node"
    kind: ClassVar[FileKind] = _KIND
    _file = "graph file"
    _there = "the compute graph"
    _fields = ("schema", "name", "note", "time_unit", "nodes", "edges")
    _lacking = "a compute graph lists its operations there"

    def __post_init__(self) -> None:
        check_values("the graph", self)
        order, edges = in_order(self.names, index_pairs(self.edges, len(self)), "node")
        object.__setattr__(self, "nodes", tuple(self.nodes[i] for i in order))
        object.__setattr__(self, "edges", edges)
        # What the solvers would refuse is refused here, so that a graph that exists can be solved.
        self.to_problem()

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        time = format_time(sum(node.time for node in self.nodes), self.time_unit)
        outputs = format_bytes(sum(node.bytes for node in self.nodes))
        return f"<ComputeCosts{name}: {self.size}, time {time}, outputs {outputs}>"

    def text(self, width: int = WIDTH) -> str:
        """The costs as a table, in lines of at most `width` characters."""
        return costs_table(
            (f"{self.name or 'compute graph'}: {self.size}", self.note),
            ("node", "time", "output", "part"),
            self.nodes,
            lambda node: (
                format_time(node.time, self.time_unit),
                format_bytes(node.bytes),
                "backward" if node.backward else "",
            ),
            self.edges,
            nothing="–",
            width=width,
        )

    @property
    def size(self) -> str:
        """``73 nodes (37 backward), 149 edges``."""
        backward = sum(node.backward for node in self.nodes)
        part = f" ({backward} backward)" if backward else ""
        return f"{counted(len(self), 'node')}{part}, {counted(len(self.edges), 'edge')}"

    def to_problem(self) -> ComputeGraph:
        """As `to_compute_graph`."""
        return self.to_compute_graph()

    def to_compute_graph(self) -> ComputeGraph:
        """The same problem in integers, as the solvers take it."""
        ticks = self.ticks_per_unit
        nodes = (Node(n.name, round(n.time * ticks), n.bytes, n.backward) for n in self.nodes)
        return made_of(ComputeGraph, tuple(nodes), self.edges)

    def _content(self, *, canonical: bool = False) -> dict[str, Any]:
        return {
            "nodes": [asdict(node) for node in self.nodes],
            "edges": [list(edge) for edge in self.edges],
        }

    def _times(self) -> list[tuple[str, str, float]]:
        return [(f"node {node.name!r}", "time", node.time) for node in self.nodes]
