"""What each layer costs, in any form that users have it, and the files of it."""

from scheduler.costs.costgraph import CostGraph
from scheduler.costs.layer import LayerCost, OptionCost

__all__ = ["CostGraph", "LayerCost", "OptionCost"]
