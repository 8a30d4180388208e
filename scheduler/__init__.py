"""Provably optimal activation checkpointing: from layer costs and a budget to a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler.api import GraphPlan, compare, frontier, solve, solve_by_length
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
    from scheduler.costs import ComputeCosts, CostGraph, LayerCost, NodeCost
    from scheduler.pipeline import solve_pipeline
    from scheduler.plans.lengths import PlansByLength
    from scheduler.plans.plan import Plan
else:
    # Nothing is loaded before it is asked for, so that `--help` is immediate. Type checkers must
    # not see this function: they would believe that there is every name.
    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name in _PACKAGES:
            return import_module(f"{__name__}.{name}")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        homes = (import_module(f"{__name__}.{home}") for home in _HOMES)
        value = next(getattr(home, name) for home in homes if name in home.__all__)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_PACKAGES})


_HOMES = ("common.errors", "costs", "plans.plan", "api", "pipeline")
_PACKAGES = ("api", "costs", "export", "pipeline", "plans")

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
    "PlansByLength",
    "SchedulerError",
    "UnknownMethod",
    "UnsuitableMethod",
    "UnsupportedModel",
    "compare",
    "frontier",
    "solve",
    "solve_by_length",
    "solve_pipeline",
]
