"""A plan: what to keep, what to run again, and what is known about that choice."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from scheduler.common.errors import InvalidCosts, InvalidPlan
from scheduler.common.files import write_atomically
from scheduler.common.jsontext import dump_record
from scheduler.common.text import counted, format_both, format_bytes, format_time
from scheduler.plans.facts import PlanFacts, PlanReplay
from scheduler.plans.file.fields import check_record, steps_key
from scheduler.plans.file.loaded import Loaded
from scheduler.plans.kinds import KINDS
from scheduler.plans.text import labelled, peak_text, step_text
from scheduler.report.notebook import InNotebooks
from scheduler.report.tables import format_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Plan", "PlanReplay", "summary_lines"]


@dataclass(frozen=True, repr=False, eq=False)
class Plan(InNotebooks, Loaded, PlanFacts):
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
    proven_bytes
        Bytes, without reserved ones, within which `lower_bound_time` was proven: it says nothing of
        a larger budget. None where there was no budget, or an older file does not say.
    measured_peak_bytes
        What `scheduler.pytorch.verify` measured with the plan; None before. In a plan file only
        when there is one.
    policies
        What to keep inside the layers that are kept under an option, by their names: pairs
        (operation, n) as in `OptionCost.keeps`. Of those options whose costs say it.
    tiles
        In how many tiles layers run that are kept under an option, by their names. Such a plan's
        gradients are the model's to rounding, not bit by bit.
    tiled
        Of those that are blocks: which modules inside them run in tiles, by their names there.
    """

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

    def to_dict(self, *, costs: bool = False) -> dict[str, Any]:
        """The plan in the form of a plan file, with its costs, as it carries them, or without."""
        head = self._head() | ({"costs": self._costs_of_plan(None).to_dict()} if costs else {})
        return {**head, self._kind.key: self._kind.to_json(self.schedule, self.layers)}

    def to_json(self, *, costs: bool = False) -> str:
        """The text of a plan file."""
        return dump_record(self.to_dict(costs=costs), (self._kind.key,))

    def save(self, path: str | os.PathLike[str], *, costs: bool = False) -> None:
        """Write a plan file, whole or not at all.

        `costs`: with those that it was made for, which replays, reports and exports that choose
        flags need.
        """
        write_atomically(path, self.to_json(costs=costs))

    @classmethod
    def from_dict(cls, record: object) -> Plan:
        """The plan in a mapping in the form of a plan file."""
        values = check_record(record)
        key = steps_key(values)
        kind = next(each for each in KINDS.values() if each.key == key)
        values["schedule"] = kind.parse(values.pop(key), values["layers"])
        if "class" in values:
            values["plan_class"] = values.pop("class")
        costs = values.pop("costs", None)
        plan = cls(**values)
        if costs is None:
            return plan
        try:
            return replace(plan, _costs=plan._costs_of_plan(costs))
        except InvalidCosts as error:
            raise InvalidPlan(f"the plan's 'costs': {error}") from error

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Plan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __reduce__(self) -> tuple[Any, ...]:
        # pickle recurses into items, which may nest deeper than it can go.
        rest = {name: getattr(self, name) for name in ("solve_seconds", "note", "_costs")}
        return (_restored, (self.to_json(), rest))

    def __repr__(self) -> str:
        many = counted(len(self.layers), self.noun)
        return (
            f"<Plan: {many}, method {self.method}, {self.standing}, "
            f"peak {format_bytes(self.peak_bytes)}, overhead {format_percent(self.overhead)}>"
        )

    def __str__(self) -> str:
        set_by = None
        if self._costs is not None and self._names_class:
            set_by = peak_text(self._executed(self.problem()).peak_action, self.layers)
        return "\n".join([*summary_lines(self, set_by), "", *self._kind.lines(self)])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the memory of one step, or without costs at hand what happens to each layer.

        Parameters
        ----------
        ax
            Axes of matplotlib to draw on; None makes a figure with a heading and a legend, which
            ``plan.plot().figure.savefig("plan.pdf")`` saves.

        Raises
        ------
        SchedulerError
            matplotlib is not installed.
        """
        from scheduler.plans.pictures import plot_plan  # only who draws it needs it

        return plot_plan(self, ax)

    def _repr_svg_(self) -> str | None:
        from scheduler.plans.pictures import plan_picture  # only who draws it needs it

        return plan_picture(self)

    def _key(self) -> tuple[object, ...]:
        head = self._head()
        of_layers = ("policies", "tiles", "tiled")
        rest = (head[name] for name in head if name not in ("layers", *of_layers))
        said = (item for name in of_layers for item in sorted(getattr(self, name).items()))
        return (self.schedule, self.layers, *rest, *said)


def _restored(text: str, rest: Mapping[str, Any]) -> Plan:
    return replace(Plan.from_json(text, "the pickle"), **rest)


def summary_lines(plan: PlanFacts, set_by: str | None = None) -> list[str]:
    """What is known of a plan, each figure beside its label; `set_by` is what sets its peak."""
    unit = plan.time_unit
    lines = [
        (
            "time",
            f"{format_time(plan.time, unit)} a step, {format_percent(plan.overhead)} over the "
            f"{format_time(plan.keep_all_time, unit)} for keeping everything",
        ),
        (
            "peak",
            f"{format_bytes(plan.peak_bytes)}; keeping everything needs "
            f"{format_bytes(plan.keep_all_peak_bytes)}",
        ),
    ]
    if set_by is not None:
        lines.append(("", f"set by {set_by}"))
    if plan.budget_bytes is not None:
        reserved = (
            f", {format_both(plan.reserved_bytes)} of it reserved" if plan.reserved_bytes else ""
        )
        lines.append(("budget", f"{format_both(plan.budget_bytes)}{reserved}"))
    lines += [
        (
            "status",
            f"{plan.standing}; {plan.bound_words} within the budget takes less than "
            f"{format_time(plan.lower_bound_time, unit)} (gap {format_percent(plan.gap)})",
        ),
        ("method", f"{plan.method}, {plan.size}"),
    ]
    if plan.solve_seconds is not None:
        lines.append(("solved", f"in {format_time(plan.solve_seconds, 's')}"))
    if plan.note:
        lines.append(("note", plan.note))
    return labelled(lines)
