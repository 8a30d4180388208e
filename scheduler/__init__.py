"""Provably optimal activation checkpointing: from layer costs and a budget to a plan."""

from scheduler.api import GraphPlan, compare, frontier, solve
from scheduler.common.errors import (
    InfeasibleBudget,
    InfeasibleGraph,
    InvalidBudget,
    InvalidCosts,
    InvalidPlan,
    NoPlanFound,
    SchedulerError,
    UnknownMethod,
    UnsuitableMethod,
    UnsupportedModel,
)
from scheduler.costs.computegraph import ComputeCosts, NodeCost
from scheduler.costs.costgraph import CostGraph, LayerCost
from scheduler.plans.plan import Plan

__all__ = [
    "ComputeCosts",
    "CostGraph",
    "GraphPlan",
    "InfeasibleBudget",
    "InfeasibleGraph",
    "InvalidBudget",
    "InvalidCosts",
    "InvalidPlan",
    "LayerCost",
    "NoPlanFound",
    "NodeCost",
    "Plan",
    "SchedulerError",
    "UnknownMethod",
    "UnsuitableMethod",
    "UnsupportedModel",
    "compare",
    "frontier",
    "solve",
]
