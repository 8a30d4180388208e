"""Costs of a whole model: layers in a chain, checked, on file and as integers for the solvers."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from importlib import resources
from typing import Any

from scheduler.costfile import SCHEMA, dump_costs, parse_costs
from scheduler.costtable import costs_table
from scheduler.errors import InvalidCosts
from scheduler.files import read_text, write_atomically
from scheduler.layers import LayerCost, OptionCost, as_layers, to_record
from scheduler.text import did_you_mean, format_bytes, format_time, shown
from scheduler.values import check_bytes, check_name
from solvers.problem import Chain, InvalidProblem, Layer, Option

__all__ = ["CostGraph", "LayerCost", "OptionCost"]

_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


@dataclass(frozen=True, repr=False)
class CostGraph:
    """The costs of a model: a chain of layers, each reading the output of the one before.

    Parameters
    ----------
    layers
        At least one; those without a name are called "layer 0", "layer 1", … by position.
    input_bytes
        Size of the chain's input.
    name
        What reports call it.
    time_unit
        Unit of every time; ``s``, ``ms``, ``us`` and ``ns`` are understood, others are kept.

    Raises
    ------
    InvalidCosts
        Two layers share a name, there are none, or costs contradict each other.
    """

    layers: tuple[LayerCost, ...]
    input_bytes: int = 0
    name: str = ""
    time_unit: str = "ms"

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
        # What the solvers would refuse is refused here, so that a graph that exists can be solved.
        self.to_chain()

    def __len__(self) -> int:
        return len(self.layers)

    def __repr__(self) -> str:
        forward = format_time(sum(layer.forward_time for layer in self.layers), self.time_unit)
        backward = format_time(sum(layer.backward_time for layer in self.layers), self.time_unit)
        saved = format_bytes(sum(layer.saved_bytes for layer in self.layers))
        name = f" {self.name!r}" if self.name else ""
        layers = "1 layer" if len(self) == 1 else f"{len(self)} layers"
        return (
            f"<CostGraph{name}: {layers}, forward {forward}, backward {backward}, "
            f"saved inside layers {saved}>"
        )

    def __str__(self) -> str:
        return costs_table(self.layers, self.input_bytes, self.name, self.time_unit)

    @property
    def ticks_per_unit(self) -> int:
        """Integer ticks of the solvers in one `time_unit`.

        Nanoseconds where the unit is known; otherwise one where every time is whole, else 10⁶.
        """
        known = _NANOSECONDS.get(self.time_unit)
        if known is not None:
            return known
        return 1 if all(time == int(time) for time in self._times()) else 10**6

    @property
    def sha256(self) -> str:
        """Digest of the costs: equal for graphs that are the same problem with the same names."""
        content = {
            "time_unit": self.time_unit,
            "input_bytes": self.input_bytes,
            "layers": [
                to_record(layer)
                | {"recompute_time": _recompute(layer), "drop_transient_bytes": _drop(layer)}
                for layer in self.layers
            ],
        }
        text = json.dumps(_whole_as_int(content), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def to_chain(self) -> Chain:
        """The same problem in integers, as the solvers take it."""
        ticks = self.ticks_per_unit
        try:
            return Chain(
                tuple(_to_layer(layer, ticks) for layer in self.layers),
                self.input_bytes,
            )
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
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a cost file, whole or not at all."""
        write_atomically(path, dump_costs(self.to_dict()))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CostGraph:
        """Read a cost file."""
        return cls.from_json(read_text(path, "cost file", InvalidCosts), os.fspath(path))

    @classmethod
    def from_json(cls, text: str, source: str = "the JSON text") -> CostGraph:
        """Read the text of a cost file; `source` is what a message calls it."""
        content = parse_costs(text, source)
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
        file = resources.files("scheduler") / "examples" / f"{name}.json"
        return cls.from_json(file.read_text(encoding="utf-8"), f"example {name!r}")

    @staticmethod
    def example_names() -> tuple[str, ...]:
        """Names of the cost files that come with the package, sorted."""
        files = (resources.files("scheduler") / "examples").iterdir()
        return tuple(sorted(f.name[:-5] for f in files if f.name.endswith(".json")))

    def _times(self) -> list[float]:
        return [
            time
            for layer in self.layers
            for time in (
                layer.forward_time,
                layer.backward_time,
                _recompute(layer),
                *(option.recompute_time for option in layer.options),
            )
        ]


def _recompute(layer: LayerCost) -> float:
    return layer.forward_time if layer.recompute_time is None else layer.recompute_time


def _drop(layer: LayerCost) -> int:
    drop = layer.drop_transient_bytes
    return layer.forward_transient_bytes if drop is None else drop


def _to_layer(layer: LayerCost, ticks: int) -> Layer:
    return Layer(
        name=layer.name,
        forward_time=round(layer.forward_time * ticks),
        backward_time=round(layer.backward_time * ticks),
        output_bytes=layer.output_bytes,
        saved_bytes=layer.saved_bytes,
        recompute_time=round(_recompute(layer) * ticks),
        forward_transient_bytes=layer.forward_transient_bytes,
        drop_transient_bytes=_drop(layer),
        backward_transient_bytes=layer.backward_transient_bytes,
        backward_overlap_bytes=layer.backward_overlap_bytes,
        gradient_bytes=layer.gradient_bytes,
        input_saved=layer.input_saved,
        output_saved=layer.output_saved,
        recomputable=layer.recomputable,
        options=tuple(
            Option(option.name, option.saved_bytes, round(option.recompute_time * ticks))
            for option in layer.options
        ),
    )


def _whole_as_int(value: Any) -> Any:
    # 1 and 1.0 are the same cost, but not the same text.
    if isinstance(value, dict):
        return {key: _whole_as_int(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole_as_int(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
