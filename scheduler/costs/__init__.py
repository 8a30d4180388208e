"""What each layer costs, in any form that users have it, and the files of it."""

from scheduler.costs.computegraph import ComputeCosts, NodeCost
from scheduler.costs.costgraph import CostGraph
from scheduler.costs.layer import LayerCost, OptionCost

__all__ = ["ComputeCosts", "CostGraph", "LayerCost", "NodeCost", "OptionCost"]
