"""The plan of a graph: in which order its operations run, repeats included."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from scheduler.common.errors import InvalidPlan
from scheduler.common.jsontext import dump_record
from scheduler.common.text import format_bytes
from scheduler.costs.computegraph import ComputeCosts
from scheduler.costs.readers import Costs, as_any_costs
from scheduler.plans.facts import Measured
from scheduler.plans.file.items import SCHEMA
from scheduler.plans.file.steps import (
    first_runs,
    parse_steps,
    run_counts,
    steps_key_of,
    steps_to_json,
)
from scheduler.plans.graphtext import (
    graph_step_text,
    graph_summary_lines,
    operation_text,
    recomputed_lines,
)
from scheduler.plans.moments import Moment, graph_moments
from scheduler.plans.plan import Plan
from scheduler.report.tables import format_percent
from solvers.graph.problem import ComputeGraph, LayerGraph
from solvers.graph.replay import GraphReplay, LayerBackward, LayerForward
from solvers.graph.solution import Graph, Steps, replay_steps
from solvers.schedule import IllegalPlan, Item

__all__ = ["GraphPlan", "graph_plan", "keep_all_steps", "problem_of"]


@dataclass(frozen=True, repr=False, eq=False)
class GraphPlan(Plan):
    """In which order the operations of a graph run, with what is proven about it.

    It is read like a `Plan`, but for `items`: a graph's plan has `steps`. A value is let go right
    after its last use, so that no step drops anything.

    Attributes
    ----------
    layers
        Names of the nodes, or of the layers, in the order of their first run.
    steps
        For a compute graph positions in `layers`; for a layer graph
        `solvers.graph.replay.LayerForward` and `LayerBackward`.
    plan_class
        The class of plans in which the lower bound holds: "forward", "staged" or "any".
    lower_bound_time
        No plan of this class within the budget takes less.
    status
        "optimal" when none of this class is faster, else "feasible".
    note
        What else the solver has to say, as a sentence; mostly nothing. Not part of a plan file.
    """

    items: tuple[Item, ...] = field(init=False)  # there are none: see __getattr__
    steps: Steps = field(kw_only=True)
    plan_class: str = field(kw_only=True)
    note: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        if not self.steps:
            raise InvalidPlan("the plan of a graph needs at least one step")

    def __getattr__(self, name: str) -> Any:
        if name in ("items", "depth"):
            raise AttributeError(
                f"the plan of a graph has no {name}, which are for chains; read its steps"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def optimal_in(self) -> str | None:
        """The class of plans in which none is faster; None when that is not proven.

        "forward": operations run first in this plan's order, and only forward ones run again, only
        in the backward part. "staged": the same order of first runs, and before each, earlier
        operations run again at most once, in that order. "any": every plan that can be executed.
        """
        return self.plan_class if self.status == "optimal" else None

    @property
    def standing(self) -> str:
        """The status with its class: ``optimal in class staged``."""
        return f"optimal in class {self.plan_class}" if self.optimal_in else self.status

    @property
    def has_own_order(self) -> bool:
        """Whether it runs operations first in another order than that of the costs."""
        count = len(self.layers)
        order = tuple((False, i) for i in range(count))
        if self.noun == "layer":
            order += tuple((True, i) for i in reversed(range(count)))
        return first_runs(self.steps) != order

    @property
    def noun(self) -> str:
        """What `layers` are: "node" or "layer"."""
        return "node" if steps_key_of(self.steps) == "schedule" else "layer"

    @property
    def options(self) -> Mapping[int, str]:
        """None: options are for chains."""
        return {}

    @property
    def segments(self) -> list[tuple[int, int, int]]:
        """None: checkpoints are for chains."""
        return []

    @property
    def forwards(self) -> dict[str, int]:
        """How often each node is computed, or each layer's forward runs, in one step."""
        return dict(zip(self.layers, run_counts(self.steps, len(self.layers)), strict=True))

    def moments(self, costs: Costs) -> list[Moment]:
        """Every step on the plan's own costs."""
        return graph_moments(problem_of(costs), self.steps)

    def keep_all_moments(self, costs: Costs) -> list[Moment]:
        """The same of the plan that recomputes nothing."""
        graph = problem_of(costs)
        return graph_moments(graph, keep_all_steps(graph))

    def timeline(self, costs: object = None) -> list[tuple[str, int, int]]:
        """Every step: what it is, bytes live during it, and bytes live after it.

        Parameters
        ----------
        costs
            As for `replay`.

        Raises
        ------
        InvalidPlan
            As `replay`, but the plan's own peak and time are not compared.
        """
        done = self._run(problem_of(self._graph_costs(costs)))
        return [
            (graph_step_text(step, self.layers), moment.during_bytes, moment.after_bytes)
            for step, moment in zip(self.steps, done.moments, strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        """The plan in the form of a plan file."""
        key = steps_key_of(self.steps)
        return {**self._head(), key: steps_to_json(self.steps, self.layers)}

    def to_json(self) -> str:
        """The text of a plan file."""
        return dump_record(self.to_dict(), ("schedule", "actions"))

    def __repr__(self) -> str:
        count = len(self.layers)
        return (
            f"<GraphPlan: {count} {self.noun}{'s' * (count != 1)}, method {self.method}, "
            f"{self.standing}, peak {format_bytes(self.peak_bytes)}, "
            f"overhead {format_percent(self.overhead)}>"
        )

    def __str__(self) -> str:
        set_by = None
        if self._costs is not None:
            set_by = self._measured(None)[1].set_by
        return "\n".join([*graph_summary_lines(self, set_by), "", *recomputed_lines(self)])

    def _head(self) -> dict[str, Any]:
        hidden = ("steps", "plan_class", "note", *self._unsaid())
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in hidden}
        gap = None if self.gap == float("inf") else self.gap
        own = {"layers": list(self.layers), "class": self.plan_class, "gap": gap}
        return {"schema": SCHEMA, **values, **own}

    def _key(self) -> tuple[object, ...]:
        head = self._head()
        return (*self.layers, *self.steps, *(head[name] for name in head if name != "layers"))

    def _measured(self, given: object) -> tuple[int, Measured, Measured]:
        costs = self._graph_costs(given)
        graph = problem_of(costs)
        plan, all_kept = (
            Measured(done.peak_bytes, done.time, operation_text(steps[done.peak_step], self.layers))
            for steps, done in (
                (self.steps, self._run(graph)),
                (keep_all_steps(graph), replay_steps(graph, keep_all_steps(graph))),
            )
        )
        return costs.ticks_per_unit, plan, all_kept

    def _graph_costs(self, given: object) -> Costs:
        costs = as_any_costs(self._costs_at_hand(given))
        self._check_digest(costs.sha256)
        return costs

    def _run(self, graph: Graph) -> GraphReplay:
        if isinstance(graph, ComputeGraph) != (self.noun == "node"):
            raise InvalidPlan("the plan and its costs are of different kinds of graphs")
        try:
            return replay_steps(graph, self.steps)
        except IllegalPlan as error:
            raise InvalidPlan(f"the plan cannot be executed: {error}") from error


def graph_plan(values: Mapping[str, Any]) -> GraphPlan:
    """The plan from the checked fields of a plan file.

    Raises
    ------
    InvalidPlan
        Its steps are no steps of its layers.
    """
    rest = dict(values)
    key = "schedule" if "schedule" in rest else "actions"
    steps = parse_steps(key, rest.pop(key), rest["layers"])
    return GraphPlan(steps=steps, plan_class=rest.pop("class"), **rest)


def problem_of(costs: Costs) -> Graph:
    """The costs in integers, as the solvers of graphs take them."""
    if isinstance(costs, ComputeCosts):
        return costs.to_compute_graph()
    return costs.to_layer_graph()


def keep_all_steps(graph: Graph) -> Steps:
    """The plan that runs everything once, in the order of the graph."""
    if isinstance(graph, LayerGraph):
        n = len(graph)
        forwards = tuple(LayerForward(i, keep=True) for i in range(n))
        return forwards + tuple(LayerBackward(i) for i in reversed(range(n)))
    return tuple(range(len(graph)))
