"""A plan: what to keep, what to run again, and what is known about that choice."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from scheduler.common.errors import InvalidPlan
from scheduler.common.files import read_text, write_atomically
from scheduler.common.jsontext import dump_record
from scheduler.common.text import format_bytes
from scheduler.costs.readers import Costs
from scheduler.plans.facts import PlanFacts
from scheduler.plans.file.fields import check_record, check_replayed, excess, steps_key
from scheduler.plans.file.items import SCHEMA, parse_plan
from scheduler.plans.kinds import KINDS
from scheduler.plans.policies import policies_of
from scheduler.plans.summary import summary_lines
from scheduler.plans.text import peak_text, step_text
from scheduler.report.table import format_percent
from solvers.problem import Problem
from solvers.replay import Moment, Replay
from solvers.schedule import IllegalPlan

__all__ = ["Plan", "PlanReplay", "excess"]


@dataclass(frozen=True)
class PlanReplay:
    """What a plan does when it is executed on its costs.

    Attributes
    ----------
    peak_bytes
        The largest number of bytes live at any moment, without reserved ones.
    time
        Time of one step, in the plan's time unit.
    set_by
        What needs that much first: ``the backward of 'head'``.
    """

    peak_bytes: int
    time: float
    set_by: str


@dataclass(frozen=True, repr=False, eq=False)
class Plan(PlanFacts):
    """What to keep and what to run again, with what is proven about it.

    Plans come from `scheduler.solve`, from a frontier, or from a plan file. That of a chain has
    `items`, that of a graph `steps`; in all else they are alike.

    Attributes
    ----------
    layers
        Names of the layers, or of the nodes of a compute graph, in the order of the costs.
    schedule
        What runs: `solvers.schedule.Items` of a chain, `solvers.graph.schedule.Nodes` or
        `Actions` of a graph.
    budget_bytes
        The budget that was asked for; None where there was none.
    peak_bytes
        What the plan needs at its worst moment, without `reserved_bytes`.
    time
        Time of one training step, in `time_unit`, like all times here.
    keep_all_peak_bytes, keep_all_time
        The same of the plan that recomputes nothing.
    time_unit
        Unit of every time.
    method
        The method that made the plan.
    status
        "optimal" when no plan of `plan_class` within the budget is faster, else "feasible".
    lower_bound_time
        No plan of this class within the budget takes less.
    costs_sha256
        Digest of the costs that the plan was made for.
    reserved_bytes
        Bytes of the budget that were set aside before solving.
    solve_seconds
        How long solving took; None for a plan from a file. Not part of equality.
    plan_class
        The class of plans in which the bound holds: "persistent" of chains; "forward", "staged"
        or "any" of graphs.
    note
        What else the solver has to say, as a sentence; mostly nothing. Not part of a plan file.
    measured_peak_bytes
        What `scheduler.pytorch.verify` measured with the plan; None before. In a plan file only
        when there is one.
    policies
        What to keep inside the layers that are kept under an option, by their names: pairs
        (operation, n) as in `OptionCost.keeps`. Of those options whose costs say it.
    """

    _costs: object = field(default=None, kw_only=True)

    def replay(self, costs: object = None) -> PlanReplay:
        """Execute the plan on its costs, tensor by tensor.

        Parameters
        ----------
        costs
            Any form of layer costs; a plan that was just solved carries its own.

        Raises
        ------
        InvalidPlan
            No costs are at hand, they are not those of the plan, the plan cannot be executed, its
            peak, time or policies are not what the plan says, or its bound contradicts them.
        """
        own = self._costs_of_plan(costs)
        done = self._executed(own)
        options = self.schedule.options()
        if options and policies_of(own.layers, options) != self.policies:  # type: ignore[union-attr]
            raise InvalidPlan(
                "the plan's 'policies' are not what its costs say that its options keep; it was "
                "changed after it was solved: solve again"
            )
        problem = self.problem(own)
        everything = problem.replay(problem.keep_all())
        ticks, unit = own.ticks_per_unit, self.time_unit
        claims: tuple[tuple[str, str, float, float], ...] = (
            ("a peak", "bytes", self.peak_bytes, done.peak_bytes),
            ("a keep-all peak", "bytes", self.keep_all_peak_bytes, everything.peak_bytes),
            ("a time", unit, self.time, done.time / ticks),
            ("a keep-all time", unit, self.keep_all_time, everything.time / ticks),
        )
        for what, of, said, found in claims:
            if said != found:
                raise InvalidPlan(
                    f"the plan says {what} of {said} {of}, its replay gives {found}; "
                    "it was changed after it was solved: solve again"
                )
        check_replayed(self._head())
        set_by = peak_text(done.peak_action, self.layers)
        return PlanReplay(done.peak_bytes, done.time / ticks, set_by)

    def problem(self, costs: object = None) -> Problem[Any]:
        """Its costs in integers; parameters and errors as of `moments`."""
        return self._kind.problem(self._costs_of_plan(costs))

    def own_costs(self, costs: object = None) -> Costs:
        """The costs that the plan was made for, as given or as it carries them, replayed.

        Raises
        ------
        InvalidPlan
            As `replay`.
        """
        own = self._costs_of_plan(costs)
        self.replay(own)
        return own

    def moments(self, costs: object = None) -> tuple[Moment, ...]:
        """Every action of one step, with what it is for, its time in ticks and its bytes.

        Parameters
        ----------
        costs
            As for `replay`.

        Raises
        ------
        InvalidPlan
            As `replay`, but the plan's own peak and time are not compared.
        """
        return self._executed(self._costs_of_plan(costs)).moments

    def timeline(self, costs: object = None) -> list[tuple[str, int, int]]:
        """Every action of one step: what it is, bytes live during it, and bytes live after it.

        Parameters
        ----------
        costs
            As for `replay`.

        Raises
        ------
        InvalidPlan
            As `moments`.
        """
        return [
            (step_text(each.action, self.layers), each.during_bytes, each.after_bytes)
            for each in self.moments(costs)
        ]

    def to_dict(self) -> dict[str, Any]:
        """The plan in the form of a plan file."""
        return {**self._head(), self._kind.key: self._kind.to_json(self.schedule, self.layers)}

    def to_json(self) -> str:
        """The text of a plan file."""
        return dump_record(self.to_dict(), (self._kind.key,))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a plan file, whole or not at all."""
        write_atomically(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan file; `replay` with its costs tells whether it still holds.

        Raises
        ------
        InvalidPlan
            The file is no plan, or says what cannot be.
        """
        return cls.from_json(read_text(path, "plan file", InvalidPlan), os.fspath(path))

    @classmethod
    def from_json(cls, text: str, source: str = "the JSON text") -> Plan:
        """Read the text of a plan file; `source` is what a message calls it."""
        value = parse_plan(text, source)
        try:
            return cls.from_dict(value)
        except RecursionError as error:  # a message that shows what is nested too deeply
            raise InvalidPlan(f"{source}: a value is nested too deeply to be a plan's") from error
        except InvalidPlan as error:
            raise InvalidPlan(f"{source}: {error}") from error

    @classmethod
    def from_dict(cls, record: object) -> Plan:
        """The plan in a mapping in the form of a plan file."""
        values = check_record(record)
        key = steps_key(values)
        kind = next(each for each in KINDS.values() if each.key == key)
        values["schedule"] = kind.parse(values.pop(key), values["layers"])
        if "class" in values:
            values["plan_class"] = values.pop("class")
        return cls(**values)

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Plan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __reduce__(self) -> tuple[Any, ...]:
        # pickle recurses into items, which may nest deeper than it can go.
        rest = {name: getattr(self, name) for name in ("solve_seconds", "note", "_costs")}
        return (_restored, (self.to_json(), rest))

    def __repr__(self) -> str:
        return (
            f"<Plan: {self.size.partition(',')[0]}, method {self.method}, {self.standing}, "
            f"peak {format_bytes(self.peak_bytes)}, overhead {format_percent(self.overhead)}>"
        )

    def __str__(self) -> str:
        set_by = None
        if self._costs is not None and self._names_class:
            set_by = peak_text(self._executed(self._costs_of_plan(None)).peak_action, self.layers)
        return "\n".join([*summary_lines(self, set_by), "", *self._kind.lines(self)])

    def _repr_svg_(self) -> str:
        # What draws plans knows what they are, so that it cannot be imported above.
        from scheduler.plans.pictures import plan_picture

        return plan_picture(self)

    def _head(self) -> dict[str, Any]:
        """The plan file without its schedule."""
        unsaid = ["schedule", "solve_seconds", "note", "plan_class", "_costs"]
        if self.measured_peak_bytes is None:
            unsaid.append("measured_peak_bytes")
        if not self.policies:
            unsaid.append("policies")
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in unsaid}
        if self.policies:
            values["policies"] = {
                name: [list(pair) for pair in keeps] for name, keeps in self.policies.items()
            }
        values |= {"layers": list(self.layers), "class": self.plan_class}
        if self._names_class:
            values["gap"] = None if self.gap == float("inf") else self.gap
        return {"schema": SCHEMA, **values}

    def _key(self) -> tuple[object, ...]:
        head = self._head()
        rest = (head[name] for name in head if name not in ("layers", "policies"))
        return (self.schedule, self.layers, *rest, *sorted(self.policies.items()))

    def _costs_of_plan(self, given: object) -> Costs:
        costs = self._costs if given is None else given
        if costs is None:
            raise InvalidPlan("a plan from a file does not carry its costs; pass the layer costs")
        own = self._kind.costs(costs)
        if own.sha256 != self.costs_sha256:
            raise InvalidPlan(
                f"the plan belongs to other costs: it was made for those with digest "
                f"{self.costs_sha256[:8]}…, these have {own.sha256[:8]}…"
            )
        return own

    def _executed(self, costs: Costs) -> Replay:
        try:
            return self.problem(costs).replay(self.schedule)
        except IllegalPlan as error:
            raise InvalidPlan(f"the plan cannot be executed: {error}") from error


def _restored(text: str, rest: Mapping[str, Any]) -> Plan:
    return replace(Plan.from_json(text, "the pickle"), **rest)
