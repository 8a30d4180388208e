"""How well the peak of plans is predicted on the suite, and whether real steps go as planned."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from scheduler import CostGraph, Plan, solve
from scheduler.pytorch import apply, apply_graph, measure, profile, profile_graph, trace
from scheduler.pytorch.model.find import find_blocks
from tests.pytorch.models import Case, bytes_of, gradients, without_cache
from tests.pytorch.suite import SUITE, budgets


@dataclass(frozen=True)
class Row:
    """One plan on one architecture: what was predicted, what a real step took."""

    architecture: str
    plan: str
    budget_bytes: int
    predicted_bytes: int
    measured_bytes: int
    gradients_equal: bool
    forwards_as_planned: bool

    @property
    def error(self) -> float:
        """Predicted above measured, as a share of measured."""
        return self.predicted_bytes / self.measured_bytes - 1


@dataclass(frozen=True)
class Accuracy:
    """What an architecture's profiles and plans are worth."""

    fake_is_real: bool
    rows: list[Row]


class Chain:
    """An architecture as a chain of its blocks."""

    def __init__(self, case: Case, blocks: str | list[str]) -> None:
        self.case, self.blocks = case, blocks
        without_cache(case.model)  # whose own scalars only fake tensors are seen to take
        self.modules = find_blocks(case.model, blocks, case.inputs)

    def costs(self, fake: bool) -> CostGraph:
        """Profile it."""
        case = self.case
        return profile(case.model, case.inputs, case.loss_fn, self.blocks, fake=fake)

    def solve(self, costs: CostGraph, budget: int) -> Plan:
        """Find the best plan."""
        return solve(costs, budget=budget)

    def apply(self, plan: Plan) -> AbstractContextManager[Any]:
        """Apply a plan."""
        return apply(plan, self.case.model, self.modules)

    def forwards(self, plan: Plan) -> dict[str, int]:
        """How often each module is to run."""
        return {block: plan.forwards[block] for block in self.modules}


class Graph:
    """An architecture as a graph of its leaves and what is between them."""

    def __init__(self, case: Case, leaves: list[str]) -> None:
        self.case, self.leaves = case, leaves
        self.graph = trace(case.model, case.inputs, leaves)
        self.modules = sorted({module for node in self.graph.nodes for module in node.modules})

    def costs(self, fake: bool) -> CostGraph:
        """Profile it."""
        case = self.case
        return profile_graph(case.model, case.inputs, case.loss_fn, self.leaves, fake=fake)

    def solve(self, costs: CostGraph, budget: int) -> Plan:
        """Find the best plan that torch can run."""
        return solve(costs, budget=budget, optimal_in="forward")

    def apply(self, plan: Plan) -> AbstractContextManager[Any]:
        """Apply a plan."""
        return apply_graph(plan, self.graph, self.case.model)

    def forwards(self, plan: Plan) -> dict[str, int]:
        """How often each module is to run: with each of the layers that call it."""
        counts: Counter[str] = Counter()
        for node in self.graph.nodes:
            counts.update(dict.fromkeys(node.modules, plan.forwards[node.name]))
        return dict(counts)


def accuracy(name: str) -> Accuracy:
    """Profile an architecture, solve for the three budgets, and run real steps of each plan.

    The plans are those of the fake profile: its times do not depend on the machine.
    """
    one = SUITE[name]
    way = Graph(one.make(), one.leaves) if one.leaves else Chain(one.make(), one.blocks)
    costs = way.costs(fake=True)
    plans = {"keep-all": way.solve(costs, 10**15)}
    plans |= {label: way.solve(costs, budget) for label, budget in budgets(costs).items()}
    reference = gradients(way.case.model, way.case.inputs, way.case.loss_fn)
    rows = [_row(name, label, plan, way, reference) for label, plan in plans.items()]
    return Accuracy(bytes_of(costs) == bytes_of(way.costs(fake=False)), rows)


def _row(
    name: str, label: str, plan: Plan, way: Chain | Graph, reference: dict[str, torch.Tensor]
) -> Row:
    case = way.case
    with way.apply(plan):
        measured = measure(case.model, case.inputs, case.loss_fn, way.modules)
        found = gradients(case.model, case.inputs, case.loss_fn)
    equal = found.keys() == reference.keys() and all(
        torch.equal(found[key], reference[key]) for key in reference
    )
    as_planned = measured.forwards == way.forwards(plan)
    budget = plan.peak_bytes if label == "keep-all" else plan.budget_bytes
    assert budget is not None
    return Row(name, label, budget, plan.peak_bytes, measured.peak_bytes, equal, as_planned)
