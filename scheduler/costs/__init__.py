"""What each layer costs, in any form that users have it, and the files of it."""

from scheduler.costs.computegraph import ComputeCosts
from scheduler.costs.costgraph import CostGraph
from scheduler.costs.layer import LayerCost, OptionCost
from scheduler.costs.node import NodeCost

__all__ = ["ComputeCosts", "CostGraph", "LayerCost", "NodeCost", "OptionCost"]
