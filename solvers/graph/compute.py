"""Compute graphs: their costs, and the one judge of their schedules.

A copy of a value is freed right after its last use; computing a node makes a fresh copy, which
serves every use until the node is computed again. So nothing is ever dropped by an action: drops
follow from the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from solvers.graph.edges import Edged, Edges, freed_after
from solvers.graph.schedule import Nodes
from solvers.problem import InvalidProblem, check_quantity, check_sum
from solvers.replay import Moment, Replay, Role
from solvers.schedule import Compute, IllegalPlan
from solvers.solution import PlanClass


@dataclass(frozen=True, slots=True)
class Node:
    """One operation of a compute graph.

    Attributes
    ----------
    name
        What a schedule calls it.
    time
        In one integer unit.
    bytes
        Size of its output.
    backward
        Does it belong to the backward part? Class "forward" never computes such a node twice.
    """

    name: str
    time: int
    bytes: int
    backward: bool = False


@dataclass(frozen=True)
class ComputeGraph(Edged):
    """Operations with one output each; any output may be dropped and computed again.

    Attributes
    ----------
    nodes
        At least one, in a topological order.
    edges
        Pairs (u, v): v reads the output of u; u < v.

    Raises
    ------
    InvalidProblem
        There is no node, a cost is negative or no integer, sums would overflow, or an edge leads
        nowhere, backward, or twice the same way.
    """

    nodes: tuple[Node, ...]
    edges: Edges = ()

    def __post_init__(self) -> None:
        if not self.nodes:
            raise InvalidProblem("a graph needs at least one node")
        for node in self.nodes:
            for field in ("time", "bytes"):
                check_quantity(f"node {node.name!r}", field, getattr(node, field))
        self.check_edges()
        # A staged schedule computes a node at most once in each of its stages.
        check_sum("the times", (len(self) + 1) * self.least_time)
        check_sum("the sizes", sum(node.bytes for node in self.nodes))

    what: ClassVar[str] = "compute graphs"
    """What a message calls such problems."""
    floor_class: ClassVar[PlanClass] = PlanClass.ANY
    """Where nothing fits below the floor."""

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the nodes."""
        return tuple(node.name for node in self.nodes)

    @property
    def least_time(self) -> int:
        """Time of every node once: no schedule takes less."""
        return sum(node.time for node in self.nodes)

    @property
    def is_training(self) -> bool:
        """Whether it has a backward part."""
        return any(node.backward for node in self.nodes)

    def keep_all(self) -> Nodes:
        """The schedule that computes everything once, in the order of the graph."""
        return Nodes(tuple(range(len(self))))

    def replay(self, schedule: Nodes) -> Replay:
        """Execute a schedule.

        While a node is computed, all live outputs and its own count. The output of a node that
        nothing reads is freed at once.

        Raises
        ------
        IllegalPlan
            A node is unknown or never computed, or an input is not live where it is read.
        """
        steps, nodes = schedule.steps, self.nodes
        freed = self._freed(steps)
        live, moments, seen = 0, [], set[int]()
        for step, v in enumerate(steps):
            node = nodes[v]
            live += node.bytes
            during = live
            live -= sum(nodes[u].bytes for u in freed[step])
            role: Role = "again" if v in seen else "back" if node.backward else "first"
            seen.add(v)
            moments.append(Moment(Compute(v), role, node.time, during, live))
        return Replay.of(moments)

    def _freed(self, steps: Sequence[int]) -> list[list[int]]:
        """For each step the nodes whose newest copy has its last use there."""
        n = len(self)
        for v in steps:
            if not 0 <= v < n:
                raise IllegalPlan(
                    f"the schedule computes node {v}, but there are nodes 0 to {n - 1}"
                )
        missing = set(range(n)).difference(steps)
        if missing:
            raise IllegalPlan(f"the schedule never computes {self.nodes[min(missing)].name!r}")
        return freed_after(
            steps,
            (self.inputs[v] for v in steps),
            lambda step, u: (
                f"{self.nodes[steps[step]].name!r} is computed while its input "
                f"{self.nodes[u].name!r}"
            ),
        )

    @cached_property
    def floor(self) -> tuple[int, int]:
        """Bytes that any schedule needs, and the node that needs them: max_v(m_v + Σ inputs)."""
        needs = [
            node.bytes + sum(self.nodes[u].bytes for u in self.inputs[v])
            for v, node in enumerate(self.nodes)
        ]
        worst = max(range(len(needs)), key=needs.__getitem__)
        return needs[worst], worst
