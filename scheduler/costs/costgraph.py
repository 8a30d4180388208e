"""Costs of a whole model: layers in a chain or a graph, checked, on file and as integers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import resources
from typing import Any

from scheduler.common.checks import check_bytes, check_name, ticks_per_unit
from scheduler.common.errors import InvalidCosts
from scheduler.common.files import read_text, write_atomically
from scheduler.common.jsontext import digest, parse_json
from scheduler.common.text import did_you_mean, format_bytes, format_time, shown
from scheduler.costs.edges import in_order, name_pairs
from scheduler.costs.file import SCHEMA, dump_costs, read_value
from scheduler.costs.layer import (
    LayerCost,
    OptionCost,
    as_layers,
    canonical_record,
    drop_transient_of,
    recompute_of,
    to_record,
)
from scheduler.costs.table import costs_table
from scheduler.report.tables import WIDTH
from solvers.graph.problem import LayerGraph
from solvers.problem import Chain, InvalidProblem, Layer, Option

__all__ = ["CostGraph", "LayerCost", "OptionCost"]


@dataclass(frozen=True, repr=False)
class CostGraph:
    """The costs of a model: a chain of layers, or a graph of layers with `edges`.

    In a chain each layer reads the output of the one before. In a graph a layer reads the outputs
    of the layers that edges lead from, or the graph's input where there are none, and the
    gradients of the layers that nothing reads are live from the start. Several inputs, several
    outputs and parts without any edge between them are allowed.

    Parameters
    ----------
    layers
        At least one; those without a name are called "layer 0", "layer 1", … by position. With
        `edges` they are put in a topological order; where they are in one, they stay as they are.
    input_bytes
        Size of the input of the chain or graph.
    name
        What reports call it.
    time_unit
        Unit of every time; ``s``, ``ms``, ``us`` and ``ns`` are understood, others are kept.
    edges
        Pairs (name, name): the second layer reads the output of the first. None, or the edges of
        one path over all layers: a chain, for which it is None afterwards.

    Raises
    ------
    InvalidCosts
        Two layers share a name, there are none, or costs contradict each other. Edges lead
        nowhere, to where they start, twice the same way or in a circle, or there are options,
        which only chains can use.
    """

    layers: tuple[LayerCost, ...]
    input_bytes: int = 0
    name: str = ""
    time_unit: str = "ms"
    edges: tuple[tuple[str, str], ...] | None = None

    def __post_init__(self) -> None:
        where = "the graph"
        checked = {
            "layers": as_layers(self.layers),
            "input_bytes": check_bytes(where, "input_bytes", self.input_bytes),
            "name": check_name(where, "name", self.name),
            "time_unit": check_name(where, "time_unit", self.time_unit),
        }
        for field, value in checked.items():
            object.__setattr__(self, field, value)
        if not self.time_unit.strip():
            raise InvalidCosts(f"{where}: time_unit must not be empty; 'ms' is usual")
        if self.edges is not None:
            self._order(name_pairs(self.edges, [layer.name for layer in self.layers]))
        # What the solvers would refuse is refused here, so that a graph that exists can be solved.
        if self.is_chain:
            self.to_chain()
        else:
            self.to_layer_graph()

    def _order(self, pairs: list[tuple[int, int]]) -> None:
        names = [layer.name for layer in self.layers]
        order, edges, is_path = in_order(names, pairs, "layer")
        layers = tuple(self.layers[i] for i in order)
        named = tuple((layers[a].name, layers[b].name) for a, b in edges)
        object.__setattr__(self, "layers", layers)
        object.__setattr__(self, "edges", None if is_path else named)

    def __len__(self) -> int:
        return len(self.layers)

    def __repr__(self) -> str:
        forward = format_time(sum(layer.forward_time for layer in self.layers), self.time_unit)
        backward = format_time(sum(layer.backward_time for layer in self.layers), self.time_unit)
        saved = format_bytes(sum(layer.saved_bytes for layer in self.layers))
        name = f" {self.name!r}" if self.name else ""
        return (
            f"<CostGraph{name}: {self.size}, forward {forward}, backward {backward}, "
            f"saved inside layers {saved}>"
        )

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int = WIDTH) -> str:
        """The costs as a table, in lines of at most `width` characters."""
        return costs_table(
            self.layers,
            self.input_bytes,
            f"{self.name or 'costs'}: {self.size}",
            self.time_unit,
            None if self.is_chain else self.to_layer_graph().edges,
            width,
        )

    @property
    def size(self) -> str:
        """``5 layers, 6 edges``; of a chain its layers alone."""
        layers = _count(len(self), "layer")
        return layers if self.edges is None else f"{layers}, {_count(len(self.edges), 'edge')}"

    @property
    def is_chain(self) -> bool:
        """Whether each layer reads the output of the one before."""
        return self.edges is None

    @property
    def ticks_per_unit(self) -> int:
        """Integer ticks of the solvers in one `time_unit`.

        Nanoseconds where the unit is known; otherwise one where every time is whole, else 10⁶.
        """
        return ticks_per_unit(self.time_unit, self._times())

    @property
    def sha256(self) -> str:
        """Digest of the costs: equal for graphs that are the same problem with the same names."""
        content = {
            "time_unit": self.time_unit,
            "input_bytes": self.input_bytes,
            "layers": [canonical_record(layer) for layer in self.layers],
            **({} if self.edges is None else {"edges": [list(edge) for edge in self.edges]}),
        }
        return digest(content)

    def to_chain(self) -> Chain:
        """The same problem in integers, as the solvers take it.

        Raises
        ------
        InvalidCosts
            The layers are no chain.
        """
        if self.edges is not None:
            raise InvalidCosts(
                f"these {len(self)} layers are no chain but a graph of "
                f"{_count(len(self.edges), 'edge')}, and this needs a chain"
            )
        try:
            return Chain(self._integer_layers(), self.input_bytes)
        except InvalidProblem as error:
            raise InvalidCosts(str(error)) from error

    def to_layer_graph(self) -> LayerGraph:
        """The same problem in integers, as the solvers of graphs take it; a chain is one too.

        Raises
        ------
        InvalidCosts
            A layer has options, which only chains can use.
        """
        position = {layer.name: i for i, layer in enumerate(self.layers)}
        if self.edges is None:
            edges = tuple((i, i + 1) for i in range(len(self) - 1))
        else:
            edges = tuple((position[a], position[b]) for a, b in self.edges)
        try:
            return LayerGraph(self._integer_layers(), edges, self.input_bytes)
        except InvalidProblem as error:
            raise InvalidCosts(str(error)) from error

    def to_dict(self) -> dict[str, Any]:
        """The graph in the form of a cost file; fields at their default are left out."""
        return {
            "schema": SCHEMA,
            **({"name": self.name} if self.name else {}),
            "time_unit": self.time_unit,
            "input_bytes": self.input_bytes,
            "layers": [to_record(layer) for layer in self.layers],
            **({} if self.edges is None else {"edges": [list(edge) for edge in self.edges]}),
        }

    def to_json(self) -> str:
        """The text of a cost file."""
        return dump_costs(self.to_dict())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a cost file, whole or not at all."""
        write_atomically(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CostGraph:
        """Read a cost file."""
        return cls.from_json(read_text(path, "cost file", InvalidCosts), os.fspath(path))

    @classmethod
    def from_json(cls, text: str, source: str = "the JSON text") -> CostGraph:
        """Read the text of a cost file; `source` is what a message calls it."""
        return cls.from_value(parse_json(text, source, InvalidCosts), source)

    @classmethod
    def from_value(cls, value: object, source: str) -> CostGraph:
        """Read the JSON value of a cost file; `source` is what a message calls it."""
        content = read_value(value, source)
        try:
            return cls(*content)
        except InvalidCosts as error:
            raise InvalidCosts(f"{source}: {error}") from error

    @classmethod
    def example(cls, name: str) -> CostGraph:
        """One of the cost files that come with the package; see `example_names`."""
        names = cls.example_names()
        if name not in names:
            hint = did_you_mean(name, names)
            raise InvalidCosts(
                f"there is no example {shown(name)}{hint} (the examples are {', '.join(names)})"
            )
        file = resources.files("scheduler.costs") / "examples" / f"{name}.json"
        return cls.from_json(file.read_text(encoding="utf-8"), f"example {name!r}")

    @staticmethod
    def example_names() -> tuple[str, ...]:
        """Names of the cost files that come with the package, sorted."""
        files = (resources.files("scheduler.costs") / "examples").iterdir()
        return tuple(sorted(f.name[:-5] for f in files if f.name.endswith(".json")))

    def _integer_layers(self) -> tuple[Layer, ...]:
        ticks = self.ticks_per_unit
        return tuple(_to_layer(layer, ticks) for layer in self.layers)

    def _times(self) -> list[float]:
        return [
            time
            for layer in self.layers
            for time in (
                layer.forward_time,
                layer.backward_time,
                recompute_of(layer),
                *(option.recompute_time for option in layer.options),
            )
        ]


def _count(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number} {what}s"


def _to_layer(layer: LayerCost, ticks: int) -> Layer:
    return Layer(
        name=layer.name,
        forward_time=round(layer.forward_time * ticks),
        backward_time=round(layer.backward_time * ticks),
        output_bytes=layer.output_bytes,
        saved_bytes=layer.saved_bytes,
        recompute_time=round(recompute_of(layer) * ticks),
        forward_transient_bytes=layer.forward_transient_bytes,
        drop_transient_bytes=drop_transient_of(layer),
        backward_transient_bytes=layer.backward_transient_bytes,
        backward_overlap_bytes=layer.backward_overlap_bytes,
        gradient_bytes=layer.gradient_bytes,
        input_saved=layer.input_saved,
        output_saved=layer.output_saved,
        recomputable=layer.recomputable,
        options=tuple(
            Option(
                name=option.name,
                saved_bytes=option.saved_bytes,
                recompute_time=round(option.recompute_time * ticks),
                forward_transient_bytes=option.forward_transient_bytes,
                backward_transient_bytes=option.backward_transient_bytes,
                backward_overlap_bytes=option.backward_overlap_bytes,
                input_saved=option.input_saved,
                output_saved=option.output_saved,
            )
            for option in layer.options
        ),
    )
