"""What a graph solver returns, raises and reports on its way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from solvers.graph.problem import ComputeGraph, LayerGraph
from solvers.graph.replay import GraphReplay, LayerAction, replay_actions, replay_schedule
from solvers.solution import Status

__all__ = ["Graph", "GraphInfeasible", "GraphSolution", "PlanClass", "Progress", "Report", "Steps"]
__all__ += ["least_time", "replay_steps"]

Graph = ComputeGraph | LayerGraph
Steps = tuple[int, ...] | tuple[LayerAction, ...]
"""Node indices of a compute graph, or actions of a layer graph, in the order of execution."""


class PlanClass(str, Enum):
    """The schedules among which a claim of optimality holds, each within the next.

    FORWARD: the given order; only forward nodes are computed again, only in the backward part.
    STAGED: the given order of first computations; before each, earlier nodes are computed again
    at most once, in that order. ANY: every legal schedule.
    """

    FORWARD = "forward"
    STAGED = "staged"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class GraphSolution:
    """A schedule with its certificate.

    Attributes
    ----------
    steps
        The schedule.
    peak_bytes, time
        What its replay gives; time in the graph's integer unit.
    lower_bound_time
        No schedule of class `bound_class` within the budget takes less.
    bound_class
        Where the bound holds.
    note
        What else there is to say, as a sentence; mostly nothing.
    """

    steps: Steps
    peak_bytes: int
    time: int
    lower_bound_time: int
    bound_class: PlanClass
    note: str = ""

    @property
    def status(self) -> Status:
        """`OPTIMAL` only when the bound proves it, in `bound_class`."""
        return Status.OPTIMAL if self.time <= self.lower_bound_time else Status.FEASIBLE


class GraphInfeasible(Exception):
    """No schedule fits the budget, or none was found.

    Attributes
    ----------
    floor_bytes, floor_node
        What any schedule needs, and the index of the operation that needs it.
    plan_class
        The class in which it is proven that nothing fits; None: nothing is proven, the search
        came to an end without a schedule.
    out_of_time
        That end was the time limit.
    """

    def __init__(
        self,
        floor_bytes: int,
        floor_node: int,
        plan_class: PlanClass | None,
        *,
        out_of_time: bool = False,
    ) -> None:
        super().__init__(f"nothing fits; the floor is {floor_bytes} bytes")
        self.out_of_time = out_of_time
        self.floor_bytes = floor_bytes
        self.floor_node = floor_node
        self.plan_class = plan_class


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a solver is.

    Attributes
    ----------
    stage
        What it does, in a word or two.
    time
        Of the best schedule so far; None: there is none yet.
    lower_bound_time
        Proven so far.
    seconds
        Since it began.
    """

    stage: str
    time: int | None
    lower_bound_time: int
    seconds: float


Report = Callable[[Progress], None]


def least_time(graph: Graph) -> int:
    """Time of every operation once: no schedule takes less."""
    if isinstance(graph, ComputeGraph):
        return sum(node.time for node in graph.nodes)
    return sum(layer.forward_time + layer.backward_time for layer in graph.layers)


def replay_steps(graph: Graph, steps: Steps) -> GraphReplay:
    """Execute the steps of either kind of graph."""
    if isinstance(graph, ComputeGraph):
        return replay_schedule(graph, steps)  # type: ignore[arg-type]
    return replay_actions(graph, steps)  # type: ignore[arg-type]
