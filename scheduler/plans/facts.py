"""What a plan says, what follows from that, and what it does when it is executed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, TypeVar

from scheduler.common.errors import InvalidPlan
from scheduler.common.text import counted
from scheduler.costs.base import MOST_LOST
from scheduler.costs.keeps import Keeps
from scheduler.costs.readers import Costs
from scheduler.plans.file.fields import check_replayed
from scheduler.plans.file.items import SCHEMA
from scheduler.plans.kind import Kind
from scheduler.plans.kinds import kind_of
from scheduler.plans.policies import check_policies, check_tiled, check_tiles, chosen
from scheduler.plans.text import peak_text
from scheduler.report.tables import excess
from solvers.problem import Problem
from solvers.replay import Moment, Replay
from solvers.schedule import IllegalPlan
from solvers.solution import PlanClass

_Costs = TypeVar("_Costs", bound=Costs)


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


def held_to(
    sha256: str, given: object, carried: object, read: Callable[[object], _Costs]
) -> _Costs:
    """The costs of a plan, which have this digest: those that are given, or else it carries.

    Raises
    ------
    InvalidPlan
        There are none, or they are others.
    """
    costs = carried if given is None else given
    if costs is None:
        raise InvalidPlan("this plan does not carry its costs; pass the layer costs")
    own = read(costs)
    if own.sha256 != sha256:
        raise InvalidPlan(
            f"the plan belongs to other costs: it was made for those with digest {sha256[:8]}…, "
            f"these have {own.sha256[:8]}…"
        )
    return own


@dataclass(frozen=True, repr=False, eq=False)
class PlanFacts:
    """What a plan says and does, below its face: `scheduler.plans.plan.Plan` has the words."""

    layers: tuple[str, ...]
    schedule: Any  # a Schedule, of the class that its problem takes
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
    plan_class: str = field(default=PlanClass.PERSISTENT.value, kw_only=True)
    note: str = field(default="", kw_only=True)
    proven_bytes: int | None = field(default=None, kw_only=True)
    measured_peak_bytes: int | None = field(default=None, kw_only=True)
    policies: Mapping[str, Keeps] = field(default_factory=dict, kw_only=True)
    tiles: Mapping[str, int] = field(default_factory=dict, kw_only=True)
    tiled: Mapping[str, tuple[str, ...]] = field(default_factory=dict, kw_only=True)
    _costs: object = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.plan_class not in [each.value for each in self._kind.classes]:
            raise InvalidPlan(
                f"the plan of a {self.kind} cannot be of class {self.plan_class!r}; give the class "
                "that its bound holds in"
            )
        self._kind.check(self.schedule, self.layers)
        names = [self.layers[i] for i in self.schedule.options()]
        policies = MappingProxyType(check_policies(self.policies, names))
        object.__setattr__(self, "policies", policies)
        object.__setattr__(self, "tiles", MappingProxyType(check_tiles(self.tiles, names)))
        tiled = MappingProxyType(check_tiled(self.tiled, self.tiles))
        object.__setattr__(self, "tiled", tiled)

    @property
    def _kind(self) -> Kind:
        return kind_of(self.schedule)

    @property
    def _names_class(self) -> bool:
        return len(self._kind.classes) > 1

    @property
    def kind(self) -> str:
        """What is scheduled: "chain", "compute graph" or "layer graph"."""
        return self._kind.name

    @property
    def noun(self) -> str:
        """What `layers` are: "node" or "layer"."""
        return self._kind.noun

    @property
    def size(self) -> str:
        """How many they are, and how deep checkpoints nest: ``12 layers``."""
        return f"{counted(len(self.layers), self.noun)}{self._kind.remarks(self)}"

    @property
    def items(self) -> Any:
        """Of a chain's plan: `solvers.schedule.Keep` and `Checkpoint`, which cover the layers."""
        return self._of_schedule("items")

    @property
    def steps(self) -> Any:
        """Of a graph's plan, in the order of execution.

        Of a compute graph positions in `layers`; of a layer graph `solvers.schedule.Forward` and
        `Backward`.
        """
        return self._of_schedule("steps")

    @property
    def depth(self) -> int:
        """Of a chain's plan: how deep checkpoints nest; 0 when everything is kept."""
        depth: int = self._of_schedule("depth")
        return depth

    def _of_schedule(self, name: str) -> Any:
        try:
            return getattr(self.schedule, name)
        except AttributeError:
            raise AttributeError(self._kind.absent.format(name)) from None

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

        "persistent", of chains: a stored value stays until its backward. Of graphs "forward":
        operations run first in this plan's order, and only forward ones run again, only in the
        backward part. "staged": the same order of first runs, and before each, earlier operations
        run again at most once, in that order. "any": every plan that can be executed.
        """
        return self.plan_class if self.status == "optimal" else None

    @property
    def standing(self) -> str:
        """The status, with its class and order where there are several.

        As in ``optimal in class staged in the given order``.
        """
        if self.optimal_in is None or not self._names_class:
            return self.status
        return f"optimal in class {self.plan_class}{self._kind.order_words(self)}"

    @property
    def bound_words(self) -> str:
        """Which plans `lower_bound_time` speaks of: ``no persistent plan``."""
        return self._kind.bound_words(self)

    @property
    def has_own_order(self) -> bool:
        """Whether it runs operations first in another order than that of the costs."""
        own: bool = self.schedule.has_own_order(len(self.layers))
        return own

    @property
    def forwards(self) -> dict[str, int]:
        """How often each layer's forward is entered in one step, or each node computed.

        Once more for a layer kept under an option, whose forward its backward runs again in part;
        not for one in tiles alone, whose backward runs what is in tiles again, and not the layer.
        """
        counts = zip(self.layers, self.schedule.counts(len(self.layers)), strict=True)
        alone = self.tiles.keys() - self.policies.keys()
        return {name: count - (name in alone) for name, count in counts}

    @property
    def carries_costs(self) -> bool:
        """Whether it has its costs with it: just solved, or saved with them."""
        return self._costs is not None

    def replay(self, costs: object = None) -> PlanReplay:
        """Execute the plan on its costs, tensor by tensor.

        Parameters
        ----------
        costs
            Any form of layer costs; a plan that was just solved, or saved with them, carries its
            own.

        Raises
        ------
        InvalidPlan
            No costs are at hand, they are not those of the plan, the plan cannot be executed, its
            peak, time or policies are not what the plan says, or its bound contradicts them or was
            proven for a smaller budget.
        """
        own = self._costs_of_plan(costs)
        problem = self._kind.problem(own)
        done = self._executed(problem)
        for what, said in chosen(own, self.schedule.options()).items():
            if said != getattr(self, what):
                raise InvalidPlan(
                    f"the plan's {what!r} are not what its costs say of its options; it was "
                    "changed after it was solved: solve again"
                )
        everything = problem.replay(problem.keep_all())
        ticks, unit = own.ticks_per_unit, self.time_unit
        # Of times too short for the usual ticks, older plans were made in those all the same.
        lost = 0.0 if ticks == own.usual_ticks else MOST_LOST
        claims: tuple[tuple[str, str, float, float], ...] = (
            ("a peak", "bytes", self.peak_bytes, done.peak_bytes),
            ("a keep-all peak", "bytes", self.keep_all_peak_bytes, everything.peak_bytes),
            ("a time", unit, self.time, done.time / ticks),
            ("a keep-all time", unit, self.keep_all_time, everything.time / ticks),
        )
        for what, of, said, found in claims:
            if said != found and not (of == unit and math.isclose(said, found, rel_tol=lost)):
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
        return self._executed(self.problem(costs)).moments

    def _head(self) -> dict[str, Any]:
        """The plan file without its schedule."""
        unsaid = ["schedule", "solve_seconds", "note", "plan_class", "_costs"]
        unsaid += ["policies", "tiles", "tiled"]
        optional = ("proven_bytes", "measured_peak_bytes")
        unsaid += [name for name in optional if getattr(self, name) is None]
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in unsaid}
        if self.policies:
            values["policies"] = {
                name: [list(pair) for pair in keeps] for name, keeps in self.policies.items()
            }
        if self.tiles:
            values["tiles"] = dict(self.tiles)
        if self.tiled:
            values["tiled"] = {name: list(parts) for name, parts in self.tiled.items()}
        values |= {"layers": list(self.layers), "class": self.plan_class}
        if self._names_class:
            values["gap"] = None if self.gap == float("inf") else self.gap
        return {"schema": SCHEMA, **values}

    def _costs_of_plan(self, given: object) -> Costs:
        return held_to(self.costs_sha256, given, self._costs, self._kind.costs)

    def _executed(self, problem: Problem[Any]) -> Replay:
        try:
            return problem.replay(self.schedule)
        except IllegalPlan as error:
            raise InvalidPlan(f"the plan cannot be executed: {error}") from error
