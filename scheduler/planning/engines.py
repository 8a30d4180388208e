"""Which engine a problem has: the one place that asks what kind it is."""

from __future__ import annotations

from scheduler.costs.readers import Costs
from scheduler.planning.chain.engine import CHAIN
from scheduler.planning.engine import Engine
from scheduler.planning.graph.engine import GRAPH
from solvers.chain.problem import Chain
from solvers.graph.problem import ComputeGraph, LayerGraph

ENGINES: dict[type, Engine] = {Chain: CHAIN, ComputeGraph: GRAPH, LayerGraph: GRAPH}
"""A new kind of problem adds its engine here."""


def engine_for(costs: Costs) -> tuple[Engine, Chain | ComputeGraph | LayerGraph]:
    """The engine of these costs, and the problem in integers that it takes."""
    problem = costs.to_problem()
    return ENGINES[type(problem)], problem
