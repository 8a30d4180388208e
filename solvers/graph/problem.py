"""Problems on general graphs: compute graphs, and layer graphs.

In both the nodes stand in a topological order: every edge goes from a lower to a higher index.
"""

from __future__ import annotations

from solvers.graph.compute import ComputeGraph, Node
from solvers.graph.edges import Edges
from solvers.graph.layers import LayerGraph

__all__ = ["ComputeGraph", "Edges", "Graph", "LayerGraph", "Node"]

Graph = ComputeGraph | LayerGraph
