"""Plans of one model by length: each step runs under that of the next longer point."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from scheduler.common.checks import FileKind, check_keys
from scheduler.common.errors import InvalidCosts, InvalidPlan
from scheduler.common.files import write_atomically
from scheduler.common.jsontext import dump_record
from scheduler.common.text import counted, format_both, format_bytes, format_time, shown
from scheduler.costs.bylength import check_lengths, next_length
from scheduler.plans.file.fields import KIND as PLAN_FILE
from scheduler.plans.file.loaded import Loaded
from scheduler.plans.pictures import WIDTH as PICTURE_WIDTH
from scheduler.plans.plan import Plan
from scheduler.report.figure import can_draw, plot
from scheduler.report.lengths import Lengths, Point
from scheduler.report.notebook import InNotebooks
from scheduler.report.svg import svg
from scheduler.report.tables import WIDTH, excess, fitted, format_percent, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCHEMA = "checkpoint-scheduler/plans-by-length/1"

KIND = FileKind(
    SCHEMA,
    "a file of plans by length",
    InvalidPlan,
    {**PLAN_FILE.others, "plan": "this file holds one plan; read it with Plan.load"},
)
_FIELDS = ("schema", "name", "batch", "points")
_OF_POINT = ("length", "longest_time", "plan")


class RunOverhead(NamedTuple):
    """Time that a run loses to recomputation, as a share of its time with everything kept.

    Attributes
    ----------
    by_length
        Each step under the plan of its length.
    longest
        All steps under the plan of the longest.
    """

    by_length: float
    longest: float


@dataclass(frozen=True, repr=False)
class PlansByLength(InNotebooks, Loaded, Mapping[int, Plan]):
    """Plans by the length of a step's sequences, each the best within the same budget.

    A mapping from lengths to plans; made by `scheduler.solve_by_length`, or read from a file. A
    step runs under the plan of the next longer point, within whose peak it stays: see `length_for`.

    Attributes
    ----------
    points
        By length, in tokens and increasing: the plan.
    batch
        Sequences in the batch that the plans were made for.
    longest_times
        By length: time of one step under the plan of the longest point.
    name
        Of the model; may be empty.
    """

    points: Mapping[int, Plan]
    batch: int
    longest_times: Mapping[int, float]
    name: str = ""

    def __post_init__(self) -> None:
        _checked(self.points)
        if not isinstance(self.batch, int) or isinstance(self.batch, bool) or self.batch < 1:
            raise InvalidPlan(f"'batch' must be a number of sequences, got {shown(self.batch)}")
        (first, one), *others = self.items()
        for length, plan in others:
            if plan.layers != one.layers or plan.kind != one.kind:
                raise InvalidPlan(
                    f"the plan of length {length} has other layers than that of length {first}; "
                    "plans by length are of one model"
                )
            if (plan.budget_bytes, plan.time_unit) != (one.budget_bytes, one.time_unit):
                raise InvalidPlan(
                    f"the plan of length {length} has another budget or time unit than that of "
                    f"length {first}; plans by length share both"
                )

    def __getitem__(self, length: int) -> Plan:
        return self.points[length]

    def __iter__(self) -> Iterator[int]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    @property
    def longest(self) -> int:
        """The longest of the lengths."""
        return max(self)

    def length_for(self, length: int, sequences: int = 1) -> int:
        """The length whose plan a step runs under: the next one in which its batch has room.

        There sequences are at least as long, and the batch has at least as many tokens. What a
        step keeps is a sum of terms that grow with the sequence, with the tokens, and (attention
        that is materialised, masks) with their product; each is then at most the point's.

        Parameters
        ----------
        length
            Tokens in each of the step's sequences, padding included.
        sequences
            How many they are.

        Raises
        ------
        InvalidPlan
            The step is larger than the longest point.
        """
        return next_length(tuple(self), self.batch, length, sequences)

    def run_overhead(self, lengths: Iterable[int]) -> RunOverhead:
        """What a run loses whose steps are so long, and what under the plan of the longest.

        A step's time with everything kept is interpolated between the points; of it is lost what
        the plan loses at its point.

        Parameters
        ----------
        lengths
            One a step, in tokens of each sequence.

        Raises
        ------
        InvalidPlan
            There are none, or a step is longer than the longest point.
        """
        whole = mine = worst = 0.0
        for length in lengths:
            at = self.length_for(length)
            time = self._keep_all_time(length, at)
            whole += time
            mine += time * self[at].time / (self[at].keep_all_time or 1)
            worst += time * self.longest_times[at] / (self[at].keep_all_time or 1)
        if not whole:
            raise InvalidPlan("the run has no steps; give the length of each, in tokens")
        return RunOverhead(excess(mine, whole), excess(worst, whole))

    def _keep_all_time(self, length: int, at: int) -> float:
        below = max((each for each in self if each < at), default=0)
        less = self[below].keep_all_time if below else 0.0
        return less + (self[at].keep_all_time - less) * (length - below) / (at - below)

    def to_dict(self, *, costs: bool = False) -> dict[str, Any]:
        """The plans in the form of their file, each with its costs, or without."""
        values = (
            (length, self.longest_times[length], plan.to_dict(costs=costs))
            for length, plan in self.items()
        )
        points = [dict(zip(_OF_POINT, each, strict=True)) for each in values]
        return dict(zip(_FIELDS, (SCHEMA, self.name, self.batch, points), strict=True))

    def to_json(self, *, costs: bool = False) -> str:
        """The text of the file."""
        return dump_record(self.to_dict(costs=costs), ("points",))

    def save(self, path: str | os.PathLike[str], *, costs: bool = False) -> None:
        """Write the file, whole or not at all; `costs` as of `Plan.save`."""
        write_atomically(path, self.to_json(costs=costs))

    @classmethod
    def from_dict(cls, record: object) -> PlansByLength:
        """The plans in a mapping in the form of such a file."""
        record = KIND.check(record)
        check_keys("the file", record, _FIELDS, _FIELDS, error=InvalidPlan)
        plans: dict[int, Plan] = {}
        times: dict[int, float] = {}
        for i, point in enumerate(_list(record["points"])):
            where = f"points[{i}]"
            if not isinstance(point, Mapping):
                raise InvalidPlan(f"{where} must be an object, got {shown(point)}")
            check_keys(where, point, _OF_POINT, _OF_POINT, error=InvalidPlan)
            *_, length = _checked([*plans, point["length"]])
            try:
                plans[length] = Plan.from_dict(point["plan"])
            except InvalidPlan as error:
                raise InvalidPlan(f"{where}: {error}") from error
            time = times[length] = point["longest_time"]
            if isinstance(time, bool) or not isinstance(time, int | float) or not time >= 0:
                raise InvalidPlan(f"{where}: 'longest_time' must be a time, got {shown(time)}")
        if not isinstance(record["name"], str):
            raise InvalidPlan(f"'name' must be text, got {shown(record['name'])}")
        return cls(plans, record["batch"], times, record["name"])

    def __repr__(self) -> str:
        lengths = f"{min(self)} to {self.longest} tokens"
        return f"<PlansByLength: {counted(len(self), 'plan')}, {lengths}>"

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int = WIDTH) -> str:
        """What each plan needs and loses, in lines of at most `width` characters."""
        header, *rows = self.cells()
        lines = [*fitted(header, rows, width, 0), "", wrapped(self.rule(), width)]
        return "\n".join([wrapped(f"{self.name or 'plans'}: {self.lead()}", width), "", *lines])

    def lead(self) -> str:
        """What they are of, and within which budget."""
        plan = self[self.longest]
        budget = "no budget" if plan.budget_bytes is None else format_both(plan.budget_bytes)
        reserved = ""
        if plan.reserved_bytes:
            reserved = f", {format_bytes(plan.reserved_bytes)} of it reserved"
        batch = counted(self.batch, "sequence")
        many = counted(len(plan.layers), plan.noun)
        return f"{many}; plans by length of {batch} a step; budget {budget}{reserved}"

    def rule(self) -> str:
        """Which plan a step runs under, as a sentence."""
        largest = f"{self.batch * self.longest:,} tokens"
        return (
            "Each step runs under the plan of the next longer point; one of more than "
            f"{largest} is refused."
        )

    def cells(self) -> list[tuple[str, ...]]:
        """A row a length, under a header."""
        return [
            ("tokens", "peak", "time", "overhead", "run again", "under the longest"),
            *(
                (
                    f"{self.batch * length:,}",
                    format_bytes(plan.peak_bytes),
                    format_time(plan.time, plan.time_unit),
                    format_percent(plan.overhead),
                    f"{sum(count > 1 for count in plan.forwards.values())} of {len(plan.layers)}",
                    format_percent(excess(self.longest_times[length], plan.keep_all_time)),
                )
                for length, plan in self.items()
            ),
        ]

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw peak and overhead by length, under the budget, on axes of matplotlib."""
        return plot(self._drawn(), ax)

    def picture(self, width: float = PICTURE_WIDTH) -> str:
        """The same as SVG; `width` in pixels."""
        return svg(self._drawn(), width)

    def _repr_svg_(self) -> str | None:
        return self.picture() if can_draw() else None

    def _drawn(self) -> Lengths:
        plan = self[self.longest]
        points = [
            Point(
                self.batch * length,
                each.peak_bytes,
                each.overhead,
                excess(self.longest_times[length], each.keep_all_time),
            )
            for length, each in self.items()
        ]
        return Lengths(self.name, points, plan.budget_bytes, plan.reserved_bytes)


def check_plan(plan: object, call: str, kinds: Any = (Plan, PlansByLength)) -> None:
    """Raise `InvalidPlan` where something else is in a plan's place; `call`: what to write."""
    if not isinstance(plan, kinds):
        raise InvalidPlan(
            f"got {type(plan).__name__} in the place of the plan, which solve or Plan.load gives; "
            f"write {call}"
        )


def _checked(lengths: Iterable[object]) -> tuple[int, ...]:
    try:
        return check_lengths(lengths)
    except InvalidCosts as error:
        raise InvalidPlan(str(error)) from None


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidPlan(f"'points' must be a list, got {shown(value)}")
    return value
