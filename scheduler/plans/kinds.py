"""Every kind of schedule, by its class and by its field of a plan file."""

from __future__ import annotations

from scheduler.plans.chain import CHAIN
from scheduler.plans.graph import COMPUTE_GRAPH, LAYER_GRAPH
from scheduler.plans.kind import Kind
from solvers.graph.schedule import Actions, Nodes
from solvers.schedule import Items, Schedule

__all__ = ["KINDS", "kind_of"]

KINDS: dict[type, Kind] = {Items: CHAIN, Nodes: COMPUTE_GRAPH, Actions: LAYER_GRAPH}
"""A new kind of problem adds its schedule here."""


def kind_of(schedule: Schedule) -> Kind:
    """The kind of a schedule."""
    return KINDS[type(schedule)]
