"""What costs of every kind have in common: a name, a unit of time, a problem, a digest, a file."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from scheduler.common.checks import FileKind, check_keys, check_name
from scheduler.common.errors import InvalidCosts
from scheduler.common.files import read_text, write_atomically
from scheduler.common.jsontext import digest, dump_record, parse_json
from scheduler.common.text import shown
from scheduler.report.notebook import InNotebooks
from scheduler.report.tables import WIDTH, fitted, wrapped
from solvers.chain.problem import Chain
from solvers.graph.problem import ComputeGraph, LayerGraph
from solvers.problem import LIMIT, InvalidProblem

_Costs = TypeVar("_Costs", bound="BaseCosts")
_Problem = TypeVar("_Problem", bound=Chain | LayerGraph | ComputeGraph)

NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
"""In one unit of time; of others nothing is known."""

MOST_LOST = 1e-3
"""Share of a time that may be lost by rounding it to ticks."""

_FIRST, _LAST = 30, 10
"""Rows shown of a table that is longer than both together."""

_MOST_READ = 3
"""Names shown of what a part reads."""


def _check_unit(where: str, name: str, value: object) -> str:
    unit = check_name(where, name, value)
    if not unit.strip():
        raise InvalidCosts(f"{where}: {name} must not be empty; 'ms' is usual")
    return unit


UNIT: Mapping[str, Any] = {"check": _check_unit}


def _check_note(where: str, name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidCosts(f"'{name}' must be text, got {shown(value)}")
    return value


NOTE: Mapping[str, Any] = {"check": _check_note}


class BaseCosts(InNotebooks, ABC):
    """Costs of some kind, each a frozen dataclass: what is asked of them without asking which.

    `noun` is what a part of them is called, "layer" or "node"; they stand in a field of the
    plural's name.
    """

    name: str
    time_unit: str
    note: str

    noun: ClassVar[str]
    kind: ClassVar[FileKind]
    _file: ClassVar[str]
    """What a message calls a file that cannot be read."""
    _there: ClassVar[str]
    """Where a message says that a field is unknown."""
    _fields: ClassVar[Collection[str]]
    """Of a file, in the order in which a message lists them."""
    _lacking: ClassVar[str]
    """What a message says of a file without the parts."""

    @property
    def noise(self) -> str:
        """A sentence where measured times are too far apart to be trusted, or nothing."""
        return ""

    @property
    @abstractmethod
    def size(self) -> str:
        """How many parts and edges there are, in words."""

    @abstractmethod
    def to_problem(self) -> Chain | LayerGraph | ComputeGraph:
        """The same problem in integers, as the solvers take it."""

    @abstractmethod
    def text(self, width: int = WIDTH) -> str:
        """The costs as a table, in lines of at most `width` characters."""

    @abstractmethod
    def _times(self) -> list[tuple[str, str, float]]:
        """Every time of every part: where it stands for a message, its field, and itself."""

    @abstractmethod
    def _content(self, *, canonical: bool = False) -> dict[str, Any]:
        """Parts, edges and sizes as a file has them; `canonical`: alike for equal problems."""

    def _parts(self) -> Sequence[Any]:
        parts: Sequence[Any] = getattr(self, f"{self.noun}s")
        return parts

    def __len__(self) -> int:
        return len(self._parts())

    def __str__(self) -> str:
        return self.text()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parts, in their order."""
        return tuple(part.name for part in self._parts())

    @property
    def usual_ticks(self) -> int:
        """Nanoseconds in one `time_unit`; of an unknown unit 1 where every time is whole, or 10⁶.

        `ticks_per_unit` where no time is too short for it.
        """
        if self.time_unit in NANOSECONDS:
            return NANOSECONDS[self.time_unit]
        return 1 if all(time == int(time) for _, _, time in self._times()) else 10**6

    @cached_property
    def ticks_per_unit(self) -> int:
        """Integer ticks of the solvers in one `time_unit`.

        The usual ones, times the power of ten that it takes for no time to lose more than
        `MOST_LOST` by being rounded.

        Raises
        ------
        InvalidCosts
            A time loses more in the finest ticks that the solvers can add, and is not so short that
            it is lost in a sum of floats too.
        """
        times, ticks = self._times(), self.usual_ticks
        total = sum(time for _, _, time in times)
        most = LIMIT / (2 * (len(self) + 1) * total) if total else 0
        short = [each for each in times if each[2] + total > total and _loses(each[2], ticks)]
        while short and 10 * ticks < min(most, 1e300):
            ticks *= 10
            short = [each for each in short if _loses(each[2], ticks)]
        for place, field, time in short:
            raise InvalidCosts(
                f"{place}: {field} {time:g} {self.time_unit} is too short to be counted beside the "
                f"sum of all times, {total:g} {self.time_unit}; make it 0 or longer"
            )
        return ticks

    @cached_property
    def sha256(self) -> str:
        """Digest of the costs: equal for those that are the same problem with the same names."""
        return digest({"time_unit": self.time_unit, **self._content(canonical=True)})

    def to_dict(self) -> dict[str, Any]:
        """The costs in the form of their file; a layer's fields at their default are left out."""
        said = {key: getattr(self, key) for key in ("name", "note") if getattr(self, key)}
        return {"schema": self.kind.schema, **said, "time_unit": self.time_unit, **self._content()}

    def to_json(self) -> str:
        """The text of such a file, one part or edge a line."""
        return dump_record(self.to_dict(), (f"{self.noun}s", "edges"))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write such a file, whole or not at all."""
        write_atomically(path, self.to_json())

    @classmethod
    def load(cls: type[_Costs], path: str | os.PathLike[str]) -> _Costs:
        """Read such a file."""
        return cls.from_json(read_text(path, cls._file, InvalidCosts), os.fspath(path))

    @classmethod
    def from_json(cls: type[_Costs], text: str, source: str = "the JSON text") -> _Costs:
        """Read the text of such a file; `source` is what a message calls it."""
        return cls.from_value(parse_json(text, source, InvalidCosts), source)

    @classmethod
    def from_value(cls: type[_Costs], value: object, source: str) -> _Costs:
        """Read the JSON value of such a file; `source` is what a message calls it."""
        try:
            return cls.from_dict(cls.kind.check(value))
        except InvalidCosts as error:
            raise InvalidCosts(f"{source}: {error}") from error

    @classmethod
    def from_dict(cls: type[_Costs], record: object) -> _Costs:
        """The costs in a mapping in the form of their file; the schema may be left out."""
        content = cls.kind.check(record, needs_schema=False)
        check_keys(cls._there, content, cls._fields, error=InvalidCosts)
        if f"{cls.noun}s" not in content:
            raise InvalidCosts(f"there is no '{cls.noun}s'; {cls._lacking}")
        return cls._made({key: content[key] for key in content if key != "schema"})

    @classmethod
    def _made(cls: type[_Costs], content: dict[str, Any]) -> _Costs:
        return cls(**content)


def _loses(time: float, ticks: int) -> bool:
    exact = time * ticks
    return abs(round(exact) - exact) > MOST_LOST * exact


def made_of(kind: Callable[..., _Problem], *given: object) -> _Problem:
    """A problem of the solvers; what they refuse are costs that are refused."""
    try:
        return kind(*given)
    except InvalidProblem as error:
        raise InvalidCosts(str(error)) from error


def costs_table(
    titles: Sequence[str],
    header: tuple[str, ...],
    parts: Sequence[Any],
    cells: Callable[[Any], tuple[str, ...]],
    edges: Sequence[tuple[int, int]] | None,
    *,
    nothing: str,
    width: int = WIDTH,
) -> str:
    """A table with a row for each run of equal parts that each read just the one before.

    `cells` is what a row says of a part beside its name. With `edges`, pairs of positions, it says
    what each part reads too, and `nothing` of one that reads no other; None: the parts are a chain.
    """
    reads: list[list[int]] = [[] for _ in parts]
    for a, b in [(i, i + 1) for i in range(len(parts) - 1)] if edges is None else edges:
        reads[b].append(a)
    plain = [replace(part, name="") for part in parts]
    starts = [
        i for i in range(len(parts)) if not i or plain[i] != plain[i - 1] or reads[i] != [i - 1]
    ]
    runs = list(zip(starts, [*(start - 1 for start in starts[1:]), len(parts) - 1], strict=True))
    hidden = len(runs) - _FIRST - _LAST
    remark = None
    if hidden > 0:
        runs, remark = runs[:_FIRST] + runs[-_LAST:], (_FIRST, f"… {hidden} more rows …")
    names = [part.name for part in parts]
    rows = [
        (
            names[first] if first == last else f"{names[first]}–{names[last]}",
            *cells(parts[first]),
            *([] if edges is None else [_listed([names[i] for i in reads[first]]) or nothing]),
        )
        for first, last in runs
    ]
    columns = header if edges is None else (*header, "reads")
    heads = [wrapped(title, width) for title in titles if title]
    return "\n".join([*heads, *fitted(columns, rows, width, remark=remark)])


def _listed(names: Sequence[str]) -> str:
    """A few of many names."""
    text, hidden = ", ".join(names[:_MOST_READ]), len(names) - _MOST_READ
    return f"{text} and {hidden} more" if hidden > 0 else text
