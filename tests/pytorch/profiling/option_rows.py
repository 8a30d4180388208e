"""What options are worth on an architecture of the suite: against whole blocks and by-hand choices.

Times are those of the fake profile, which do not depend on the machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from scheduler import CostGraph, Plan, solve
from scheduler.costs.options.policies import POLICIES
from scheduler.plans.settings import option_settings, outcome_of
from scheduler.pytorch import profile
from tests.pytorch.models import Case, plan_of
from tests.pytorch.suite import SUITE, budgets

__all__ = ["Everywhere", "OptionRow", "Options", "everywhere", "option_rows", "profiled", "whole"]


@dataclass(frozen=True)
class OptionRow:
    """The optimum at one budget, with options and of whole blocks."""

    label: str
    budget_bytes: int
    best: Plan
    whole: Plan


@dataclass(frozen=True)
class Everywhere:
    """One option on every block, as people set it, and the optimum at its peak."""

    option: str
    plan: Plan
    best: Plan

    @property
    def by_hand(self) -> bool:
        """Whether it is a policy that people choose, and not one of the Pareto set."""
        return self.option in POLICIES


@dataclass(frozen=True)
class Options:
    """An architecture's costs with options, and what they give."""

    costs: CostGraph
    rows: list[OptionRow]
    everywhere: list[Everywhere]


def whole(costs: CostGraph) -> CostGraph:
    """The same blocks without options: kept whole, or recomputed whole."""
    return replace(costs, layers=tuple(replace(layer, options=()) for layer in costs.layers))


def everywhere(costs: CostGraph, *, by_hand: bool = False) -> list[Everywhere]:
    """Each option that every block has, or of them those that people choose, on every block."""
    chain = costs.to_chain()
    found = []
    for setting in option_settings("option:", chain):
        assert setting.option is not None
        if by_hand and setting.option not in POLICIES:
            continue
        plan = plan_of(costs, outcome_of(chain, setting).items)
        found.append(Everywhere(setting.option, plan, solve(costs, budget=plan.peak_bytes)))
    return found


@cache
def profiled(name: str) -> tuple[Case, CostGraph]:
    """An architecture that is a chain, and its fake profile with options."""
    one = SUITE[name]
    case = one.make()
    costs = profile(case.model, case.inputs, case.loss_fn, one.blocks, options=True, fake=True)
    return case, costs


def option_rows(costs: CostGraph) -> Options:
    """The optimum at the suite's three budgets, and every option on all blocks."""
    bare = whole(costs)
    rows = [
        OptionRow(label, budget, solve(costs, budget=budget), solve(bare, budget=budget))
        for label, budget in budgets(bare).items()
    ]
    return Options(costs, rows, everywhere(costs))
