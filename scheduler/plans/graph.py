"""Plans of graphs: in which order operations run, repeats included.

A value is let go right after its last use, so that no step drops anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduler.common.errors import InvalidPlan
from scheduler.common.text import counted
from scheduler.costs.readers import Costs, as_any_costs
from scheduler.plans.file.steps import actions_to_json, parse_actions, parse_nodes
from scheduler.plans.kind import FoldedRow, PlanLike
from scheduler.plans.text import more_rows, span
from scheduler.report.tables import aligned
from solvers.graph.schedule import Actions, GraphSchedule, Nodes
from solvers.replay import Moment
from solvers.solution import PlanClass

MOST_ROWS = 20
"""Rows shown of what is recomputed; what follows is counted."""


class _GraphKind:
    """What the two kinds of graphs share; see `scheduler.plans.kind.Kind`."""

    noun: str
    verb: str
    made_by: str
    """The method of costs that makes the problem; a chain's costs make a layer graph too."""
    classes: tuple[PlanClass, ...] = (PlanClass.FORWARD, PlanClass.STAGED, PlanClass.ANY)
    absent = "the plan of a graph has no {}, which are for chains; read its steps"

    def costs(self, given: object) -> Costs:
        return as_any_costs(given)

    def problem(self, costs: Any) -> Any:
        make = getattr(costs, self.made_by, None)
        if make is None:
            raise InvalidPlan("the plan and its costs are of different kinds of graphs")
        return make()

    def check(self, schedule: GraphSchedule, layers: Sequence[str]) -> None:
        if not schedule.steps:
            raise InvalidPlan("the plan of a graph needs at least one step")

    def remarks(self, plan: PlanLike) -> str:
        return ""

    def bound_words(self, plan: PlanLike) -> str:
        order = self.order_words(plan) if plan.has_own_order else ""
        return f"no plan of class {plan.plan_class}{order}"

    def order_words(self, plan: PlanLike) -> str:
        if plan.plan_class == PlanClass.ANY.value:
            return ""
        if plan.has_own_order:
            return " in this order of first runs"
        # Class forward is of training steps, whose order is theirs.
        return " in the given order" if plan.plan_class == PlanClass.STAGED.value else ""

    def lines(self, plan: PlanLike) -> list[str]:
        """What runs more than once and how often, neighbours in one row, at most `MOST_ROWS`."""
        counts = list(plan.forwards.values())
        rows = [row for row in self.rows(plan) if counts[row.first] > 1]
        if not rows:
            return ["Nothing is recomputed."]
        again = [count - 1 for count in counts if count > 1]
        head = (
            f"{len(again)} of {counted(len(counts), self.noun)} {self.verb} more than once, "
            f"{counted(sum(again), 'extra run')} in all:"
        )
        names = [span(plan.layers, row.first, row.last) for row in rows[:MOST_ROWS]]
        times = (f"{counts[row.first]} times" for row in rows)
        lines = [*aligned(list(zip(names, times, strict=False)), left=2)]
        return [head, *(f"  {each}" for each in [*lines, *more_rows(len(rows) - MOST_ROWS)])]

    def rows(self, plan: PlanLike) -> list[FoldedRow]:
        counts = list(plan.forwards.values())
        starts = [i for i in range(len(counts)) if not i or counts[i] != counts[i - 1]]
        ends = [*(start - 1 for start in starts[1:]), len(counts) - 1]
        return [
            FoldedRow(0, start, end, self._times(counts[start]))
            for start, end in zip(starts, ends, strict=True)
        ]

    def held(self, plan: PlanLike, moments: Sequence[Moment], costs: Costs) -> None:
        return None

    def treatments(self, plan: PlanLike) -> list[str]:
        return [self._times(count) for count in plan.forwards.values()]

    def spans(self, schedule: GraphSchedule) -> list[tuple[int, int, int]]:
        return []

    def _times(self, count: int) -> str:
        return f"{self.verb} once" if count == 1 else f"{self.verb} {count} times"


class _ComputeGraph(_GraphKind):
    """See `scheduler.plans.kind.Kind`."""

    name = "compute graph"
    noun = "node"
    verb = "computed"
    key = "schedule"
    made_by = "to_compute_graph"

    def to_json(self, schedule: Nodes, names: Sequence[str]) -> list[Any]:
        return [names[node] for node in schedule.steps]

    def parse(self, values: object, names: Sequence[str]) -> Nodes:
        return Nodes(parse_nodes(values, names))


class _LayerGraph(_GraphKind):
    """See `scheduler.plans.kind.Kind`."""

    name = "layer graph"
    noun = "layer"
    verb = "run"
    key = "actions"
    made_by = "to_layer_graph"

    def to_json(self, schedule: Actions, names: Sequence[str]) -> list[Any]:
        return actions_to_json(schedule.steps, names)

    def parse(self, values: object, names: Sequence[str]) -> Actions:
        return Actions(parse_actions(values, names))


COMPUTE_GRAPH = _ComputeGraph()
LAYER_GRAPH = _LayerGraph()
