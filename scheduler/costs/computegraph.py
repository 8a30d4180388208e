"""Costs of a compute graph: operations with one output each, any of which may be made again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scheduler.common.checks import check_name, ticks_per_unit
from scheduler.common.errors import InvalidCosts
from scheduler.common.files import read_text, write_atomically
from scheduler.common.jsontext import digest, dump_record, parse_json
from scheduler.common.text import did_you_mean, format_bytes, format_time, shown
from scheduler.costs.edges import in_order, index_pairs
from scheduler.costs.node import NodeCost, as_nodes
from scheduler.costs.table import folded_table, inputs_of, reads_text
from scheduler.report.tables import WIDTH
from solvers.graph.problem import ComputeGraph, Node
from solvers.problem import InvalidProblem

__all__ = ["SCHEMA", "ComputeCosts", "NodeCost"]

SCHEMA = "checkpoint-scheduler/graph/1"

_KEYS = ("schema", "name", "note", "time_unit", "nodes", "edges")
_OTHER_FILES = {
    "checkpoint-scheduler/costs/": (
        "this is a cost file of layers, not a compute graph; read it with CostGraph.load"
    ),
    "checkpoint-scheduler/plan/": (
        "this is a plan, not a compute graph; read it with Plan.load or 'checkpoint-scheduler "
        "show', or give the graph that it was made from"
    ),
}


@dataclass(frozen=True, repr=False)
class ComputeCosts:
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

    Raises
    ------
    InvalidCosts
        Two nodes share a name, there are none, an edge leads nowhere, to where it starts, twice
        the same way or in a circle, or the costs add up to 2⁶² or more.
    """

    nodes: tuple[NodeCost, ...]
    edges: tuple[tuple[int, int], ...] = ()
    name: str = ""
    time_unit: str = "ms"

    def __post_init__(self) -> None:
        where = "the graph"
        nodes = as_nodes(self.nodes)
        names = [node.name for node in nodes]
        ordered = in_order(names, index_pairs(self.edges, len(nodes)), "node")
        checked = {
            "nodes": tuple(nodes[i] for i in ordered.order),
            "edges": ordered.edges,
            "name": check_name(where, "name", self.name),
            "time_unit": check_name(where, "time_unit", self.time_unit),
        }
        for field, value in checked.items():
            object.__setattr__(self, field, value)
        if not self.time_unit.strip():
            raise InvalidCosts(f"{where}: time_unit must not be empty; 'ms' is usual")
        # What the solvers would refuse is refused here, so that a graph that exists can be solved.
        self.to_compute_graph()

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        time = format_time(sum(node.time for node in self.nodes), self.time_unit)
        outputs = format_bytes(sum(node.bytes for node in self.nodes))
        return f"<ComputeCosts{name}: {self.size}, time {time}, outputs {outputs}>"

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int = WIDTH) -> str:
        """The costs as a table, in lines of at most `width` characters."""
        reads = inputs_of(len(self), self.edges)
        names = [node.name for node in self.nodes]

        def row(first: int, last: int) -> tuple[str, ...]:
            node = self.nodes[first]
            return (
                names[first] if first == last else f"{names[first]}–{names[last]}",
                f"{node.time:.10g}",
                format_bytes(node.bytes),
                "backward" if node.backward else "",
                reads_text(reads[first], names, "–"),
            )

        title = f"{self.name or 'compute graph'}: {self.size}, times in {self.time_unit}"
        equal = [(node.time, node.bytes, node.backward) for node in self.nodes]
        header = ("node", "time", "output", "part", "reads")
        return folded_table(title, header, equal, reads, row, width)

    @property
    def size(self) -> str:
        """``73 nodes (37 backward), 149 edges``."""
        nodes = "1 node" if len(self) == 1 else f"{len(self)} nodes"
        backward = sum(node.backward for node in self.nodes)
        part = f" ({backward} backward)" if backward else ""
        edges = "1 edge" if len(self.edges) == 1 else f"{len(self.edges)} edges"
        return f"{nodes}{part}, {edges}"

    @property
    def ticks_per_unit(self) -> int:
        """Integer ticks of the solvers in one `time_unit`, by the rule of `CostGraph`."""
        return ticks_per_unit(self.time_unit, (node.time for node in self.nodes))

    @property
    def sha256(self) -> str:
        """Digest of the costs: equal for graphs that are the same problem with the same names."""
        record = self.to_dict()
        return digest({key: record[key] for key in ("time_unit", "nodes", "edges")})

    def to_compute_graph(self) -> ComputeGraph:
        """The same problem in integers, as the solvers take it."""
        ticks = self.ticks_per_unit
        nodes = (Node(n.name, round(n.time * ticks), n.bytes, n.backward) for n in self.nodes)
        try:
            return ComputeGraph(tuple(nodes), self.edges)
        except InvalidProblem as error:
            raise InvalidCosts(str(error)) from error

    def to_dict(self) -> dict[str, Any]:
        """The graph in the form of a compute graph's file."""
        return {
            "schema": SCHEMA,
            **({"name": self.name} if self.name else {}),
            "time_unit": self.time_unit,
            "nodes": [
                {"name": n.name, "time": n.time, "bytes": n.bytes, "backward": n.backward}
                for n in self.nodes
            ],
            "edges": [list(edge) for edge in self.edges],
        }

    def to_json(self) -> str:
        """The text of such a file."""
        return dump_record(self.to_dict(), ("nodes", "edges"))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file of a compute graph, whole or not at all."""
        write_atomically(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ComputeCosts:
        """Read the file of a compute graph."""
        return cls.from_json(read_text(path, "graph file", InvalidCosts), os.fspath(path))

    @classmethod
    def from_json(cls, text: str, source: str = "the JSON text") -> ComputeCosts:
        """Read the text of such a file; `source` is what a message calls it."""
        return cls.from_value(parse_json(text, source, InvalidCosts), source)

    @classmethod
    def from_value(cls, value: object, source: str) -> ComputeCosts:
        """Read the JSON value of such a file; `source` is what a message calls it."""
        try:
            if isinstance(value, Mapping) and "schema" not in value:
                raise InvalidCosts(
                    f'there is no \'schema\'; a compute graph\'s file says "schema": "{SCHEMA}"'
                )
            return cls.from_dict(value)
        except InvalidCosts as error:
            raise InvalidCosts(f"{source}: {error}") from error

    @classmethod
    def from_dict(cls, record: object) -> ComputeCosts:
        """The graph in a mapping in the form of its file; the schema may be left out."""
        if not isinstance(record, Mapping):
            raise InvalidCosts(f"a compute graph's file is a JSON object, this is {shown(record)}")
        _check_schema(record.get("schema", SCHEMA))
        for key in record:
            if key not in _KEYS:
                hint = did_you_mean(key, _KEYS) or f"; the fields are {', '.join(_KEYS)}"
                raise InvalidCosts(f"unknown field {shown(key)} in the compute graph{hint}")
        if "nodes" not in record:
            raise InvalidCosts("there is no 'nodes'; a compute graph lists its operations there")
        if not isinstance(record.get("note", ""), str):
            raise InvalidCosts(f"'note' must be text, got {shown(record['note'])}")
        return cls(
            as_nodes(record["nodes"]),
            record.get("edges", ()),
            record.get("name", ""),
            record.get("time_unit", "ms"),
        )


def _check_schema(schema: object) -> None:
    if schema == SCHEMA:
        return
    for prefix, sentence in _OTHER_FILES.items():
        if isinstance(schema, str) and schema.startswith(prefix):
            raise InvalidCosts(sentence)
    raise InvalidCosts(f"unknown schema {shown(schema)}; a compute graph has {SCHEMA!r}")
