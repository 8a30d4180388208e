"""A plan: which layers to keep, which to recompute, and what is known about that choice."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from scheduler.common.errors import InvalidPlan
from scheduler.common.files import read_text, write_atomically
from scheduler.common.text import format_bytes
from scheduler.costs.costgraph import CostGraph
from scheduler.costs.keeps import Keeps, check_policies, policies_of
from scheduler.costs.readers import Costs, as_any_costs, as_costs
from scheduler.plans.facts import Measured, PlanReplay
from scheduler.plans.file.fields import check_record, check_replayed, excess, steps_key
from scheduler.plans.file.items import SCHEMA, dump_plan, items_to_json, parse_items, parse_plan
from scheduler.plans.moments import Moment, chain_moments
from scheduler.plans.text import item_lines, peak_text, step_text, summary_lines
from scheduler.report.tables import format_percent
from solvers import replay as replays
from solvers.schedule import (
    Checkpoint,
    IllegalPlan,
    Item,
    Keep,
    check_cover,
    depth,
    forward_counts,
    keep_all,
    options_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Plan", "PlanReplay", "excess"]


@dataclass(frozen=True, repr=False, eq=False)
class Plan:
    """Which layers of a chain to keep and which to recompute, with what is proven about it.

    Plans come from `scheduler.solve`, from a frontier, or from a plan file. The plan of a graph
    is a `scheduler.plans.graphplan.GraphPlan`, which has steps in place of items.

    Attributes
    ----------
    layers
        Names of the layers.
    items
        `solvers.schedule.Keep` and `Checkpoint`, which cover the layers in order.
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
        "optimal" when no persistent plan within the budget is faster, else "feasible".
    lower_bound_time
        No persistent plan within the budget takes less.
    costs_sha256
        Digest of the costs that the plan was made for.
    reserved_bytes
        Bytes of the budget that were set aside before solving.
    solve_seconds
        How long solving took; None for a plan from a file. Not part of equality.
    measured_peak_bytes
        What `scheduler.pytorch.verify` measured with the plan; None before. In a plan file only
        when there is one.
    policies
        What to keep inside the layers that are kept under an option, by their names: pairs
        (operation, n) as in `OptionCost.keeps`. Of those options whose costs say it.
    """

    layers: tuple[str, ...]
    items: tuple[Item, ...]
    budget_bytes: int | None
    peak_bytes: int
    time: float
    keep_all_peak_bytes: int
    keep_all_time: float
    time_unit: str
    method: str
    status: str
    lower_bound_time: float
    costs_sha256: str
    reserved_bytes: int = 0
    solve_seconds: float | None = None
    measured_peak_bytes: int | None = field(default=None, kw_only=True)
    policies: Mapping[str, Keeps] = field(default_factory=dict, kw_only=True)
    _costs: object = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        try:
            check_cover(self.items, 0, len(self.layers) - 1)
        except IllegalPlan as error:
            raise InvalidPlan(str(error)) from error
        names = [self.layers[i] for i in options_of(self.items)]
        checked = MappingProxyType(check_policies(self.policies, names))
        object.__setattr__(self, "policies", checked)

    @property
    def overhead(self) -> float:
        """Time lost to recomputation, as a share of the time of keeping everything."""
        return excess(self.time, self.keep_all_time)

    @property
    def gap(self) -> float:
        """How far the time is above the lower bound at most, as a share of that bound."""
        return excess(self.time, self.lower_bound_time)

    @property
    def margin_bytes(self) -> int:
        """Bytes by which a step was measured above `peak_bytes`; 0 where none was.

        Add it to `reserved` when the same run is solved for again.
        """
        return max((self.measured_peak_bytes or 0) - self.peak_bytes, 0)

    @property
    def optimal_in(self) -> str | None:
        """The class of plans in which none is faster; None when that is not proven.

        "persistent": a stored value stays until its backward.
        """
        return "persistent" if self.status == "optimal" else None

    @property
    def forwards(self) -> dict[str, int]:
        """How often each layer's forward is entered in one step.

        Once more for a layer kept under an option, whose forward its backward runs again in part.
        """
        return dict(zip(self.layers, forward_counts(self.items, len(self.layers)), strict=True))

    @property
    def depth(self) -> int:
        """How deep checkpoints nest; 0 when everything is kept."""
        return depth(self.items)

    @property
    def noun(self) -> str:
        """What `layers` are: "layer", or "node" of a graph."""
        return "layer"

    @property
    def options(self) -> Mapping[int, str]:
        """The options of the layers that are kept under one, by their positions."""
        return options_of(self.items)

    @property
    def segments(self) -> list[tuple[int, int, int]]:
        """First layer, last layer and depth of each checkpoint, in order of their first layers."""
        found: list[tuple[int, int, int]] = []
        todo: list[tuple[Item, int]] = [(item, 0) for item in reversed(self.items)]
        while todo:
            item, level = todo.pop()
            if isinstance(item, Checkpoint):
                found.append((item.first, item.last, level))
                todo += [(inner, level + 1) for inner in reversed(item.body)]
        return found

    @property
    def has_costs(self) -> bool:
        """Whether it carries the costs that it was solved for."""
        return self._costs is not None

    def own_costs(self, costs: object = None) -> Costs:
        """The costs that the plan was made for, as given or as it carries them.

        Raises
        ------
        InvalidPlan
            As `replay`: the plan is executed, and its figures are compared with the replay's.
        """
        self.replay(costs)
        return as_any_costs(self._costs_at_hand(costs))

    def moments(self, costs: Costs) -> list[Moment]:
        """Every action of one step on the plan's own costs."""
        return chain_moments(as_costs(costs).to_chain(), self.items)

    def keep_all_moments(self, costs: Costs) -> list[Moment]:
        """The same of the plan that recomputes nothing."""
        chain = as_costs(costs).to_chain()
        return chain_moments(chain, keep_all(len(chain)))

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
        ticks, done, everything = self._measured(costs)
        claims = (
            ("a peak", self.peak_bytes, done.peak_bytes),
            ("a keep-all peak", self.keep_all_peak_bytes, everything.peak_bytes),
        )
        for what, said, found in claims:
            if said != found:
                raise InvalidPlan(
                    f"the plan says {what} of {said} bytes, its replay gives {found}; "
                    "it was changed after it was solved: solve again"
                )
        times = (
            ("a time", self.time, done.ticks / ticks),
            ("a keep-all time", self.keep_all_time, everything.ticks / ticks),
        )
        for what, said_time, found_time in times:
            if said_time != found_time:
                raise InvalidPlan(
                    f"the plan says {what} of {said_time} {self.time_unit}, its replay gives "
                    f"{found_time}; it was changed after it was solved: solve again"
                )
        check_replayed(self._head())
        return PlanReplay(done.peak_bytes, done.ticks / ticks, done.set_by)

    def timeline(self, costs: object = None) -> list[tuple[str, int, int]]:
        """Every action of one step: what it is, bytes live during it, and bytes live after it.

        Parameters
        ----------
        costs
            As for `replay`.

        Raises
        ------
        InvalidPlan
            As `replay`, but the plan's own peak and time are not compared.
        """
        done = self._executed(self._own_costs(costs), keep_steps=True)
        return [
            (step_text(step.action, self.layers), step.during_bytes, step.after_bytes)
            for step in done.steps
        ]

    def applied(self, model: Any, blocks: str | Iterable[str] = "auto") -> Any:
        """Apply the plan to a torch model for the length of a ``with`` block.

        Short for `scheduler.pytorch.apply`, whose parameters, result and errors it has.
        """
        from scheduler.pytorch import apply  # torch is loaded only here

        return apply(self, model, blocks)

    def to_dict(self) -> dict[str, Any]:
        """The plan in the form of a plan file."""
        return {**self._head(), "items": items_to_json(self.items)}

    def to_json(self) -> str:
        """The text of a plan file."""
        return dump_plan(self._head(), self.items)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a plan file, whole or not at all."""
        write_atomically(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan file; `replay` with its costs tells whether it still holds.

        The file of a graph's plan gives a `scheduler.plans.graphplan.GraphPlan`.

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
        if isinstance(record, Mapping) and steps_key(record) != "items":
            # It is a Plan itself, so that it cannot be imported above.
            from scheduler.plans.graphplan import graph_plan

            return graph_plan(values)
        values.pop("class", None)
        values["items"] = parse_items(values["items"], values["layers"])
        return cls(**values)

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Plan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __reduce__(self) -> tuple[Any, ...]:
        # pickle recurses into items, which may nest deeper than it can go.
        rest = {name: getattr(self, name) for name in ("solve_seconds", "_costs")}
        return (_restored, (self.to_json(), rest))

    def __repr__(self) -> str:
        layers = "1 layer" if len(self.layers) == 1 else f"{len(self.layers)} layers"
        return (
            f"<Plan: {layers}, method {self.method}, {self.status}, "
            f"peak {format_bytes(self.peak_bytes)}, overhead {format_percent(self.overhead)}>"
        )

    def __str__(self) -> str:
        return "\n".join([*summary_lines(self), "", *item_lines(self.items, self.layers)])

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
        InvalidPlan
            As `replay`.
        """
        from scheduler.plans.pictures import plot_plan  # only who draws it needs it

        return plot_plan(self, ax)

    def _repr_svg_(self) -> str | None:
        from scheduler.plans.pictures import plan_picture  # only who draws it needs it

        return plan_picture(self)

    def _head(self) -> dict[str, Any]:
        """The plan file without its items."""
        names = [f.name for f in fields(self) if f.name not in self._unsaid()]
        values = {name: getattr(self, name) for name in names}
        if self.policies:
            values["policies"] = {
                name: [list(pair) for pair in keeps] for name, keeps in self.policies.items()
            }
        return {"schema": SCHEMA, **values, "layers": list(self.layers), "class": "persistent"}

    def _unsaid(self) -> tuple[str, ...]:
        """Fields that a plan file does not have as such."""
        measured = () if self.measured_peak_bytes is not None else ("measured_peak_bytes",)
        return ("items", "policies", "solve_seconds", "_costs", *measured)

    def _key(self) -> tuple[object, ...]:
        # Comparing or hashing the items themselves would recurse as deep as they nest.
        flat: list[object] = []
        todo: list[Item] = list(reversed(self.items))
        while todo:
            item = todo.pop()
            if isinstance(item, Keep):
                flat.append((item.layer, item.option))
            else:
                flat.append((item.first, item.last, len(item.body)))
                todo.extend(reversed(item.body))
        head = self._head()
        rest = (head[name] for name in head if name not in ("layers", "policies"))
        return (*flat, *self.layers, *rest, *sorted(self.policies.items()))

    def _measured(self, given: object) -> tuple[int, Measured, Measured]:
        """Ticks in a unit of time, and what the plan and keeping everything do on its costs."""
        costs = self._own_costs(given)
        done = self._executed(costs)
        if policies_of(costs.layers, options_of(self.items)) != self.policies:
            raise InvalidPlan(
                "the plan's 'policies' are not what its costs say that its options keep; it was "
                "changed after it was solved: solve again"
            )
        everything = replays.replay(costs.to_chain(), keep_all(len(costs)))
        plan, all_kept = (
            Measured(each.peak_bytes, each.time, peak_text(each.peak_action, self.layers))
            for each in (done, everything)
        )
        return costs.ticks_per_unit, plan, all_kept

    def _own_costs(self, given: object) -> CostGraph:
        costs = as_costs(self._costs_at_hand(given))
        self._check_digest(costs.sha256)
        if not costs.is_chain:
            raise InvalidPlan("the plan is one of a chain, and these costs are a graph")
        return costs

    def _costs_at_hand(self, given: object) -> object:
        costs = self._costs if given is None else given
        if costs is None:
            raise InvalidPlan("a plan from a file does not carry its costs; pass the layer costs")
        return costs

    def _check_digest(self, sha256: str) -> None:
        if sha256 != self.costs_sha256:
            raise InvalidPlan(
                f"the plan belongs to other costs: it was made for those with digest "
                f"{self.costs_sha256[:8]}…, these have {sha256[:8]}…"
            )

    def _executed(self, costs: CostGraph, *, keep_steps: bool = False) -> replays.Replay:
        try:
            return replays.replay(costs.to_chain(), self.items, keep_steps=keep_steps)
        except IllegalPlan as error:
            raise InvalidPlan(f"the plan cannot be executed: {error}") from error


def _restored(text: str, rest: dict[str, Any]) -> Plan:
    return replace(Plan.from_json(text, "the pickle"), **rest)
