"""Provably optimal activation checkpointing: from layer costs and a budget to a plan."""

from scheduler.api import compare, frontier, solve
from scheduler.costs import CostGraph, LayerCost
from scheduler.errors import (
    InfeasibleBudget,
    InvalidBudget,
    InvalidCosts,
    InvalidPlan,
    SchedulerError,
    UnknownMethod,
    UnsuitableMethod,
    UnsupportedModel,
)
from scheduler.plan import Plan

__all__ = [
    "CostGraph",
    "InfeasibleBudget",
    "InvalidBudget",
    "InvalidCosts",
    "InvalidPlan",
    "LayerCost",
    "Plan",
    "SchedulerError",
    "UnknownMethod",
    "UnsuitableMethod",
    "UnsupportedModel",
    "compare",
    "frontier",
    "solve",
]
