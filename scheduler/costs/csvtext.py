"""Costs of a chain as comma-separated values: a line names the fields, then a line a layer."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable
from typing import Any

from scheduler.common.checks import is_needed
from scheduler.common.errors import InvalidCosts
from scheduler.common.text import counted, did_you_mean, shown
from scheduler.costs.costgraph import CostGraph
from scheduler.costs.layer import LayerCost

_SEPARATORS = ",;\t"
_ENDINGS = (".csv", ".tsv")
_MOST = 5
"""Unknown columns that a message names."""


def is_csv(text: str, source: str) -> bool:
    """Whether a text is read as comma-separated values: by its file's name, or by its first line.

    JSON never begins with a line that names a field of a layer without quotes and a separator.
    """
    if source.lower().endswith(_ENDINGS):
        return True
    first = text.lstrip().partition("\n")[0]
    return first[:1] not in ("{", "[") and any(
        cell.strip(' "\r') in is_needed(LayerCost) for cell in first.split(_separator(first))
    )


def read_csv(text: str, source: str, **around: Any) -> CostGraph:
    """The costs in such a text; `source` is what a message calls it, `around` goes with layers.

    Columns are separated by commas, semicolons or tabs. An empty cell is a field at its default.
    """
    first = text.lstrip().partition("\n")[0]
    reader = csv.reader(io.StringIO(text), delimiter=_separator(first), skipinitialspace=True)
    layers: list[LayerCost] = []
    names: list[str] | None = None
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            if names is None:
                names = cells
                _check_header(names)
            else:
                layers.append(_layer(names, cells, len(layers)))
    except (InvalidCosts, csv.Error) as error:
        raise InvalidCosts(f"{source}, line {max(1, reader.line_num)}: {error}") from error
    try:
        return CostGraph(tuple(layers), **around)
    except InvalidCosts as error:
        raise InvalidCosts(f"{source}: {error}") from error


def check_columns(names: Iterable[object], others: Collection[str] = ()) -> None:
    """Refuse columns that are no fields of a layer, nor `others`, and two of one name."""
    known, seen = is_needed(LayerCost), list(names)
    unknown = [name for name in seen if name not in known and name not in others]
    if unknown:
        near = did_you_mean(unknown[0], known) if len(unknown) == 1 else ""
        listed = ", ".join(shown(name, 30) for name in unknown[:_MOST])
        more = f" and {len(unknown) - _MOST} more" if len(unknown) > _MOST else ""
        noun = "column" if len(unknown) == 1 else "columns"
        needed = ", ".join(name for name, is_one in known.items() if is_one)
        hint = near or f"; the columns are {', '.join(known)} (needed: {needed})"
        raise InvalidCosts(f"unknown {noun} {listed}{more}{hint}")
    twice = [name for i, name in enumerate(seen) if name in seen[:i]]
    if twice:
        raise InvalidCosts(f"two columns are named {shown(twice[0])}; rename one")


def _separator(first: str) -> str:
    return max(_SEPARATORS, key=first.count)


def _check_header(names: list[str]) -> None:
    check_columns(names)
    needed = [name for name, is_one in is_needed(LayerCost).items() if is_one]
    for name in needed:
        if name not in names:
            *most, last = needed
            raise InvalidCosts(
                f"there is no column {name!r}; it needs {', '.join(most)} and {last}"
            )


def _layer(names: list[str], cells: list[str], position: int) -> LayerCost:
    if len(cells) != len(names):
        raise InvalidCosts(
            f"{counted(len(cells), 'value')} in {counted(len(names), 'column')}; give each one"
        )
    needed = is_needed(LayerCost)
    record: dict[str, Any] = {"name": f"layer {position}"}
    for name, cell in zip(names, cells, strict=True):
        if cell:
            record[name] = cell if name == "name" else _value(cell)
        elif needed[name]:
            raise InvalidCosts(f"{name} is empty; every layer needs one")
    return LayerCost(**record)


def _value(cell: str) -> object:
    """A number, true or false; what is none is left to the check of its field."""
    if cell.lower() in ("true", "false"):
        return cell.lower() == "true"
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            pass
    return cell
