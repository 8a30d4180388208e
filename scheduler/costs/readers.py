"""Every form in which costs may be handed over, as a `CostGraph` or a `ComputeCosts`.

pandas and networkx objects, and models, are known by their methods: none is imported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scheduler.common.checks import is_needed
from scheduler.common.errors import InvalidCosts
from scheduler.common.files import read_text
from scheduler.common.jsontext import parse_json
from scheduler.common.text import counted, ordinal, shown
from scheduler.costs.computegraph import ComputeCosts
from scheduler.costs.costgraph import CostGraph
from scheduler.costs.csvtext import check_columns, is_csv, read_csv
from scheduler.costs.layer import LayerCost, as_layers
from scheduler.costs.recorded.traces import is_trace

Costs = CostGraph | ComputeCosts
_Given = Mapping[str, Any]

_ACCEPTED = (
    "layer costs may be a CostGraph, a list of LayerCost or of mappings, a mapping of columns, "
    "rows with columns=, a pandas DataFrame, a networkx DiGraph, or the path of a cost file"
)
_MODEL = re.compile(r"[a-z][\w.-]*-[\w.-]+|[\w.-]+/[\w.-]+", re.IGNORECASE)
"""A name as models have it, and files without an ending hardly: llama-3-8b, Qwen/Qwen3-8B."""
_GRAPH_FIELDS = ("input_bytes", "time_unit")


def as_costs(
    obj: object,
    *,
    input_bytes: int | None = None,
    time_unit: str | None = None,
    columns: Iterable[str] | None = None,
) -> CostGraph:
    """The `CostGraph` that `obj` describes, where layers are needed; else as `as_any_costs`."""
    costs = as_any_costs(obj, input_bytes=input_bytes, time_unit=time_unit, columns=columns)
    if isinstance(costs, CostGraph):
        return costs
    raise InvalidCosts(
        f"this is a compute graph of {len(costs)} operations, and costs of layers are needed here"
    )


def as_any_costs(
    obj: object,
    *,
    input_bytes: int | None = None,
    time_unit: str | None = None,
    columns: Iterable[str] | None = None,
) -> Costs:
    """The costs that `obj` describes; `obj` is never changed.

    Parameters
    ----------
    obj
        A `CostGraph` or a `ComputeCosts`; a list, tuple or iterator of `LayerCost`, of mappings of
        its fields or of named tuples; rows (tuples, or an array of two dimensions) with `columns`;
        a mapping of equally long columns named by its fields (``input_bytes`` and ``time_unit`` may
        stand beside them); a mapping in the form of a cost file or of a compute graph's file; a
        pandas DataFrame, whose index names the layers if it is of text and no column does, an empty
        cell being a field at its default; a
        networkx DiGraph with the fields of a layer, or of a node (``time``, ``bytes``,
        ``backward``), as node attributes; or the path of a file of either kind, of a JSON list of
        layers, or of comma-separated values whose first line names the fields.
    input_bytes, time_unit
        Take precedence over what `obj` says.
    columns
        Of rows, or of a DataFrame whose own names do not count: the fields that their values are,
        in their order.

    Raises
    ------
    InvalidCosts
        `obj` is none of these, or its costs have no meaning.
    """
    said = {"input_bytes": input_bytes, "time_unit": time_unit}
    given: dict[str, Any] = {key: value for key, value in said.items() if value is not None}
    _refuse_model(obj)
    if columns is None:
        return _read(obj, given)
    if isinstance(columns, str):
        raise InvalidCosts(
            f"columns= lists names, as in columns=('forward_time', …), got {columns!r}"
        )
    if _is_frame(obj):
        return _from_frame(obj, given, list(columns))
    return _from_rows(obj, list(columns), given)


def read_costs_text(text: str, source: str, given: _Given | None = None) -> Costs:
    """The costs in the text of a file of any kind; `source` is what a message calls it.

    `given` are fields of the whole that take precedence over what the file says.
    """
    given = given or {}
    if is_csv(text, source):
        return read_csv(text, source, **given)
    value = parse_json(text, source, InvalidCosts)
    if isinstance(value, list) or _is_by_hand(value):
        try:
            return _read(value, given)
        except InvalidCosts as error:
            raise InvalidCosts(f"{source}: {error}") from error
    if is_trace(value):
        raise InvalidCosts(
            f"{source} is a trace of torch.profiler, which does not say what layers save: "
            "`checkpoint-scheduler show` prints its times by module, and "
            "scheduler.pytorch.profile(model, inputs) measures costs"
        )
    kind = ComputeCosts if ComputeCosts.kind.is_said_by(value) else CostGraph
    return kind.from_value(_with(given, value, kind), source)


def _is_by_hand(value: Any) -> bool:
    """Whether a JSON value has no schema, and is read as the mapping would be in Python."""
    told = {"layers", "nodes", *is_needed(LayerCost)} - {"name"}
    return isinstance(value, Mapping) and "schema" not in value and not told.isdisjoint(value)


def _with(given: _Given, value: Any, kind: type[Costs]) -> Any:
    """A mapping with the fields that are given beside it: what they say is checked as one."""
    if kind is ComputeCosts and "input_bytes" in given:
        raise InvalidCosts(
            "input_bytes describes layers, and this is a compute graph, whose inputs are nodes "
            "with their own bytes; leave it out"
        )
    return {**value, **given} if given and isinstance(value, Mapping) else value


def _read(obj: object, given: _Given) -> Costs:
    if isinstance(obj, CostGraph | ComputeCosts):
        changes = _with(given, {}, type(obj))
        return replace(obj, **changes) if changes else obj
    if isinstance(obj, str | os.PathLike):
        return _from_path(obj, given)
    if isinstance(obj, Mapping):
        if "nodes" in obj:
            return ComputeCosts.from_dict(_with(given, obj, ComputeCosts))
        whole = _with(given, obj, CostGraph)
        return CostGraph.from_dict(whole) if "layers" in obj else _from_columns(whole)
    if _is_frame(obj):
        return _from_frame(obj, given)
    if hasattr(obj, "nodes") and hasattr(obj, "edges") and hasattr(obj, "is_directed"):
        return _from_networkx(obj, given)
    if _has_rows(obj):
        return _from_rows(obj, None, given)
    raise InvalidCosts(f"cannot read layer costs from {shown(obj)}; {_ACCEPTED}")


def _refuse_model(obj: object) -> None:
    """First of all: a model may have any attribute that tells another form."""
    kind = obj if isinstance(obj, type) else type(obj)
    if hasattr(obj, "named_modules"):
        raise InvalidCosts(
            f"got a model ({kind.__name__}) in the place of its costs, which "
            "scheduler.pytorch.profile(model, inputs) measures"
        )
    if hasattr(getattr(obj, "model", None), "named_modules"):
        raise InvalidCosts(
            f"got a {kind.__name__} in the place of costs, which "
            "scheduler.pytorch.profile(….model, inputs) measures of its model"
        )
    if hasattr(obj, "model_type") and hasattr(obj, "to_dict"):
        raise InvalidCosts(
            f"got a config ({kind.__name__}) in the place of costs, which "
            "scheduler.memory.costs_from_shape(config, batch, sequence) makes of it"
        )


def _is_frame(obj: object) -> bool:
    return hasattr(obj, "columns") and hasattr(obj, "to_dict")


def _has_rows(obj: object) -> bool:
    if getattr(obj, "ndim", None) == 2 and hasattr(obj, "tolist"):
        return not hasattr(obj, "columns")
    return isinstance(obj, Iterator) or (
        isinstance(obj, Sequence) and not isinstance(obj, str | bytes)
    )


def _from_rows(rows: Any, columns: list[str] | None, given: _Given) -> CostGraph:
    if not _has_rows(rows):
        raise InvalidCosts(
            f"columns= says what the values of rows are, and {shown(rows)} has no rows; "
            "leave it out, or give a list of tuples or an array of two dimensions"
        )
    items: list[Any] = rows.tolist() if hasattr(rows, "tolist") else list(rows)
    if columns is not None:
        check_columns(columns)
    layers: list[object] = []
    for i, item in enumerate(items):
        _refuse_model(item)
        if columns is None and hasattr(item, "_asdict"):
            layers.append(item._asdict())
        elif not isinstance(item, tuple | list) and getattr(item, "ndim", None) != 1:
            if columns is not None:
                raise InvalidCosts(
                    f"the {ordinal(i + 1)} layer is {shown(item)}, and with columns= each is a "
                    "row of values"
                )
            layers.append(item)
        elif columns is None:
            raise InvalidCosts(
                f"the {ordinal(i + 1)} layer is {shown(item)}, values without names; say what they "
                "are, as in columns=('forward_time', 'backward_time', 'output_bytes', "
                "'saved_bytes')"
            )
        elif len(item) != len(columns):
            raise InvalidCosts(
                f"the {ordinal(i + 1)} layer has {counted(len(item), 'value')} in "
                f"{counted(len(columns), 'column')}; give every layer one of each"
            )
        else:
            layers.append(dict(zip(columns, item, strict=True)))
    return CostGraph(as_layers(layers), **given)


def _from_path(path: str | os.PathLike[str], given: _Given) -> Costs:
    if path in CostGraph.example_names() and not os.path.exists(path):
        raise InvalidCosts(
            f"there is no cost file {path!r}; the example of that name is "
            f"CostGraph.example({path!r})"
        )
    if _MODEL.fullmatch(os.fspath(path)) and not os.path.exists(path):
        raise InvalidCosts(
            f"there is no cost file {path!r}; check the path, or give costs of the model of that "
            f"name: scheduler.memory.costs_from_shape({path!r}, batch, sequence)"
        )
    return read_costs_text(read_text(path, "cost file", InvalidCosts), os.fspath(path), given)


def _from_columns(columns: Mapping[Any, object]) -> CostGraph:
    check_columns(columns, _GRAPH_FIELDS)
    lists = {key: _column(key, columns[key]) for key in columns if key not in _GRAPH_FIELDS}
    lengths = {key: len(values) for key, values in lists.items()}
    if len(set(lengths.values())) > 1:
        longest = max(lengths, key=lengths.__getitem__)
        shortest = min(lengths, key=lengths.__getitem__)
        raise InvalidCosts(
            f"column {longest!r} has {lengths[longest]} values and {shortest!r} has "
            f"{lengths[shortest]}; give every layer one of each"
        )
    rows = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
    around: dict[str, Any] = {key: columns[key] for key in _GRAPH_FIELDS if key in columns}
    return CostGraph(as_layers(rows), **around)


def _column(key: str, values: object) -> list[Any]:
    # numpy and pandas give plain Python numbers this way, in one go.
    as_list = getattr(values, "tolist", None) or getattr(values, "to_list", None)
    items = as_list() if callable(as_list) else values
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        raise InvalidCosts(
            f"column {key!r} must list one value a layer, got {shown(items)}; "
            "costs of one layer go in a list: [LayerCost(…)]"
        )
    return list(items)


def _from_frame(frame: Any, given: _Given, names: list[str] | None = None) -> CostGraph:
    labels = list(frame.columns)
    names = labels if names is None else names
    if len(names) != len(labels):
        raise InvalidCosts(
            f"columns= names {counted(len(names), 'column')}, and the DataFrame has "
            f"{len(labels)}; give each one a name"
        )
    check_columns(names, _GRAPH_FIELDS)
    columns = {name: frame[label] for name, label in zip(names, labels, strict=True)}
    for key in _GRAPH_FIELDS:
        if key in columns:
            raise InvalidCosts(
                f"a DataFrame has one row a layer, so {key!r} is no column; pass {key}= beside it"
            )
    index = list(getattr(frame, "index", ()))
    if "name" not in columns and index and all(isinstance(label, str) for label in index):
        columns["name"] = index
    lists = {name: _column(name, column) for name, column in columns.items()}
    needed = is_needed(LayerCost)
    rows = [
        {
            name: value
            for name, value in zip(lists, row, strict=True)
            if needed[name] or not _is_missing(value)
        }
        for row in zip(*lists.values(), strict=True)
    ]
    return CostGraph(as_layers(rows), **given)


def _is_missing(cell: object) -> bool:
    """Whether a cell of a frame is empty: those of pandas are not equal to themselves."""
    return cell is None or type(cell).__name__ == "NAType" or bool(cell != cell)


def _from_networkx(graph: Any, given: _Given) -> Costs:
    if not graph.is_directed():
        raise InvalidCosts("the graph has no directions; use a networkx DiGraph")
    nodes = list(graph.nodes)
    records: Any = [{"name": str(node), **graph.nodes[node]} for node in nodes]
    position = {node: i for i, node in enumerate(nodes)}
    # An edge of a multigraph has a key after its two ends.
    pairs = tuple((position[edge[0]], position[edge[1]]) for edge in graph.edges)
    of_nodes = any("time" in record or "bytes" in record for record in records)
    known = ("name", "time_unit") if of_nodes else ("name", *_GRAPH_FIELDS)
    said = {key: graph.graph[key] for key in known if key in graph.graph}
    around = _with(given, said, ComputeCosts if of_nodes else CostGraph)
    if of_nodes:
        return ComputeCosts(records, pairs, **around)
    layers = as_layers(records)
    edges = tuple((layers[a].name, layers[b].name) for a, b in pairs)
    return CostGraph(layers, edges=edges, **around)
