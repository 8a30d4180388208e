"""Costs of a whole model: layers in a chain or a graph, checked, on file and as integers."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from importlib import resources
from typing import Any, ClassVar, TypeVar

from scheduler.common.checks import BYTES, NAME, FileKind, check_values, filled
from scheduler.common.errors import InvalidCosts
from scheduler.common.text import counted, did_you_mean, format_bytes, format_time, shown
from scheduler.costs.base import NOTE, UNIT, BaseCosts, costs_table, made_of
from scheduler.costs.edges import in_order, name_pairs
from scheduler.costs.layer import LayerCost, OptionCost, as_layers, canonical_record, to_record
from scheduler.report.tables import WIDTH, format_percent
from solvers.chain.problem import Chain
from solvers.graph.problem import LayerGraph
from solvers.problem import OF_CHAINS, OF_FORWARDS, Layer, Option, most_overlap

_KIND = FileKind(
    "checkpoint-scheduler/costs/1",
    "a cost file",
    InvalidCosts,
    {
        "graph": "this is a compute graph, not costs of layers; solve takes it as it is, and "
        "ComputeCosts.load reads it",
        "plan": "this is a plan, not costs; read it with Plan.load or 'checkpoint-scheduler show', "
        "or give the cost file that it was made from",
    },
)
_Solved = TypeVar("_Solved", Layer, Option)

_NOISY = 0.1
"""Spread of measured times, as a share of them, beyond which they are not to be trusted."""


def _layers(where: str, name: str, value: Any) -> tuple[LayerCost, ...]:
    return as_layers(value)


@dataclass(frozen=True, repr=False)
class CostGraph(BaseCosts):
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
    note
        What they are of, such as the machine whose times these are. Not part of equality.

    Raises
    ------
    InvalidCosts
        Two layers share a name, there are none, or costs contradict each other. Edges lead
        nowhere, to where they start, twice the same way or in a circle, or there are options,
        which only chains can use.
    """

    layers: tuple[LayerCost, ...] = field(metadata={"check": _layers})
    input_bytes: int = field(default=0, metadata=BYTES)
    name: str = field(default="", metadata=NAME)
    time_unit: str = field(default="ms", metadata=UNIT)
    edges: tuple[tuple[str, str], ...] | None = None
    note: str = field(default="", compare=False, metadata=NOTE)

    noun: ClassVar[str] = "layer"
    kind: ClassVar[FileKind] = _KIND
    _file = "cost file"
    _there = "the cost file"
    _fields = ("schema", "name", "note", "time_unit", "input_bytes", "layers", "edges")
    _lacking = "a cost file lists the costs of its layers there"

    def __post_init__(self) -> None:
        check_values("the graph", self)
        if self.edges is not None:
            names = self.names
            order, pairs = in_order(names, name_pairs(self.edges, names), "layer")
            edges = tuple((names[order[a]], names[order[b]]) for a, b in pairs)
            object.__setattr__(self, "layers", tuple(self.layers[i] for i in order))
            object.__setattr__(self, "edges", None if pairs == _path(len(self)) else edges)
        # What the solvers would refuse is refused here, so that a graph that exists can be solved.
        self.to_problem()

    def __repr__(self) -> str:
        forward = format_time(sum(layer.forward_time for layer in self.layers), self.time_unit)
        backward = format_time(sum(layer.backward_time for layer in self.layers), self.time_unit)
        saved = format_bytes(sum(layer.saved_bytes for layer in self.layers))
        name = f" {self.name!r}" if self.name else ""
        return (
            f"<CostGraph{name}: {self.size}, forward {forward}, backward {backward}, "
            f"saved inside layers {saved}>"
        )

    def text(self, width: int = WIDTH) -> str:
        """The costs as a table, in lines of at most `width` characters."""
        spread = any(layer.time_spread for layer in self.layers)
        return costs_table(
            (
                f"{self.name or 'costs'}: {self.size}, input {format_bytes(self.input_bytes)}",
                self.note,
                self.noise,
            ),
            ("layer", "forward", "backward", *(["spread"] * spread), "output", "saved"),
            self.layers,
            lambda layer: (
                format_time(layer.forward_time, self.time_unit),
                format_time(layer.backward_time, self.time_unit),
                *([spread_text(layer)] * spread),
                format_bytes(layer.output_bytes),
                format_bytes(layer.saved_bytes),
            ),
            None if self.is_chain else self.to_layer_graph().edges,
            nothing="the input",
            width=width,
        )

    @property
    def size(self) -> str:
        """``5 layers, 6 edges``; of a chain its layers alone."""
        layers = counted(len(self), "layer")
        return layers if self.edges is None else f"{layers}, {counted(len(self.edges), 'edge')}"

    @property
    def noise(self) -> str:
        """A sentence where measured times are too far apart to be trusted, or nothing."""
        total = sum(layer.forward_time + layer.backward_time for layer in self.layers)
        apart = sum(
            layer.time_spread * (layer.forward_time + layer.backward_time) for layer in self.layers
        )
        if apart <= _NOISY * total:
            return ""
        return (
            "The machine was too noisy for these times to be trusted: repeated runs were "
            f"{format_percent(apart / total)} longer or shorter. Measure again when nothing else "
            "runs; a plan keeps its budget all the same."
        )

    @property
    def is_chain(self) -> bool:
        """Whether each layer reads the output of the one before."""
        return self.edges is None

    def to_problem(self) -> Chain | LayerGraph:
        """The same problem in integers, as the solvers take it: a chain where it is one."""
        return self.to_chain() if self.is_chain else self.to_layer_graph()

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
                f"{counted(len(self.edges), 'edge')}, and this needs a chain"
            )
        return made_of(Chain, self._integer_layers(), self.input_bytes)

    def to_layer_graph(self) -> LayerGraph:
        """The same problem in integers, as the solvers of graphs take it; a chain is one too.

        Raises
        ------
        InvalidCosts
            A layer has options, which only chains can use.
        """
        position = {layer.name: i for i, layer in enumerate(self.layers)}
        edges = tuple((position[a], position[b]) for a, b in self.edges or ())
        if self.edges is None:
            edges = _path(len(self))
        first, *others = map(_as_in_graph, self._integer_layers())
        held = self.input_bytes + sum(layer.beside_bytes for layer in self.layers)
        if self.edges is None:  # the first layer of a graph counts the gradient of its input
            most = most_overlap(first, first.ways[0], held)
            overlap = min(first.backward_overlap_bytes, most)
            first = replace(first, backward_overlap_bytes=overlap)
        return made_of(LayerGraph, (first, *others), edges, held)

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

    @classmethod
    def _made(cls, content: dict[str, Any]) -> CostGraph:
        if not isinstance(content["layers"], list | tuple):
            raise InvalidCosts(f"'layers' must be a list, got {shown(content['layers'])}")
        if content.get("edges", ()) is None:
            raise InvalidCosts("'edges' must be a list of pairs of layer names, got None")
        return cls(**content)

    def _content(self, *, canonical: bool = False) -> dict[str, Any]:
        record = canonical_record if canonical else to_record
        return {
            "input_bytes": self.input_bytes,
            "layers": [record(layer) for layer in self.layers],
            **({} if self.edges is None else {"edges": [list(edge) for edge in self.edges]}),
        }

    def _integer_layers(self) -> tuple[Layer, ...]:
        ticks = self.ticks_per_unit
        return tuple(
            _in_ticks(
                Layer,
                layer,
                ticks,
                options=tuple(_in_ticks(Option, each, ticks) for each in layer.options),
            )
            for layer in self.layers
        )

    def _times(self) -> list[tuple[str, str, float]]:
        costs: list[tuple[str, LayerCost | OptionCost]] = []
        for layer in self.layers:
            place = f"layer {layer.name!r}"
            costs.append((place, layer))
            costs += [(f"{place}, option {each.name!r}", each) for each in layer.options]
        return [
            (place, name, value)
            for place, cost in costs
            for name, value in filled(cost).items()
            if name.endswith("_time")
        ]


def spread_text(layer: LayerCost) -> str:
    """The spread of a layer's times: ``±4.20%``; an en dash where they were not measured."""
    return f"±{format_percent(layer.time_spread)}" if layer.time_spread else "–"


def _path(length: int) -> tuple[tuple[int, int], ...]:
    """The edges of a chain."""
    return tuple((i, i + 1) for i in range(length - 1))


def _as_in_graph(layer: Layer) -> Layer:
    """The layer with the most that any of its forwards needs in all of them."""
    most = max(getattr(layer, field) for field in OF_FORWARDS)
    way = layer.ways[0]
    none: dict[str, Any] = dict.fromkeys(OF_CHAINS, 0)
    kept = max(way.forward_transient_bytes + most, way.ending_transient_bytes)
    return replace(
        layer,
        forward_transient_bytes=kept,
        ending_transient_bytes=kept,
        drop_transient_bytes=layer.drop_transient_bytes + most,
        **none,
    )


def _in_ticks(
    kind: type[_Solved], cost: LayerCost | OptionCost, ticks: int, **more: Any
) -> _Solved:
    """A layer or an option of the solvers, whose fields have the names of those of costs."""
    values = filled(cost) | more
    return kind(
        **{
            each.name: round(values[each.name] * ticks)
            if each.name.endswith("_time")
            else values[each.name]
            for each in fields(kind)
        }
    )
