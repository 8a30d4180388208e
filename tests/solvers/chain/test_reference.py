"""Answers computed elsewhere: an exact solver apart from this project, and a closed form."""

from __future__ import annotations

import csv
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from scheduler import CostGraph, InfeasibleBudget, frontier, solve
from scheduler.api import Frontier
from solvers.chain.exact.frontier import Frontier as ChainFrontier
from solvers.chain.exact.optimum import solve as solve_chain
from solvers.chain.problem import Chain
from solvers.problem import Layer

DATA = Path(__file__).parents[2] / "data"
REFERENCE: dict[str, dict[str, Any]] = json.loads((DATA / "chains_reference.json").read_text())
NAMES = sorted(path.stem for path in (DATA / "chains").glob("*.json") if path.stem in REFERENCE)
with (DATA / "binomial_optimal.csv").open() as _file:
    BINOMIAL = [
        (int(row["L"]), int(row["snapshots"]), int(row["t+L_total_forward_steps_incl_L_taped"]))
        for row in csv.DictReader(_file)
    ]

LONG = 500
"""Chains so long take a second a budget: two are solved alone, all looked up in one frontier."""


@cache
def costs(name: str) -> CostGraph:
    return CostGraph.load(DATA / "chains" / f"{name}.json")


@cache
def whole(name: str) -> Frontier:
    return frontier(costs(name))


def test_every_chain_has_a_reference() -> None:
    assert len(NAMES) == len(list((DATA / "chains").glob("*.json"))) == 11


@pytest.mark.parametrize("name", NAMES)
def test_ends_of_the_frontier(name: str) -> None:
    wanted, found = REFERENCE[name], whole(name)
    assert found.exact
    peak, time = found[0]
    assert peak == wanted["smallest_peak_bytes"]
    assert time == pytest.approx(wanted["time_at_smallest_peak"], rel=1e-9)
    assert found.keep_all_peak_bytes == wanted["keep_all_peak_bytes"]
    assert found.keep_all_time == pytest.approx(wanted["keep_all_time"], rel=1e-9)
    assert found[-1] == (found.keep_all_peak_bytes, found.keep_all_time)


@pytest.mark.parametrize("name", NAMES)
def test_eight_budgets(name: str) -> None:
    wanted = REFERENCE[name]
    assert len(wanted["points"]) == 8
    for point in wanted["points"]:
        budget, time = point["budget_bytes"], point["time"]
        if time is None:
            for refused in (solve_at(name, budget), plan_at(name, budget)):
                assert isinstance(refused, InfeasibleBudget)
                assert refused.smallest_budget_bytes == wanted["smallest_peak_bytes"]
            continue
        assert solve_at(name, budget) == plan_at(name, budget) == pytest.approx(time, rel=1e-9)


def solve_at(name: str, budget: int) -> float | InfeasibleBudget:
    try:
        plan = solve(costs(name), budget=budget)
    except InfeasibleBudget as error:
        return error
    assert plan.status == "optimal"
    assert plan.peak_bytes <= budget
    return plan.time


def plan_at(name: str, budget: int) -> float | InfeasibleBudget:
    try:
        plan = whole(name).plan(budget=budget)
    except InfeasibleBudget as error:
        return error
    assert plan.status == "optimal"
    assert plan.peak_bytes <= budget
    return plan.time


def test_there_are_182_pairs() -> None:
    assert len(BINOMIAL) == 182


def equal_layers(length: int) -> Chain:
    """An interior so large that only one layer is ever kept, and a step's time is its forwards."""
    layers = (
        Layer(f"l{i}", 1, 0, 1, length + 10, 1, input_saved=True, output_saved=False)
        for i in range(length)
    )
    return Chain(tuple(layers), 1)


def budget_of(length: int, snapshots: int) -> int:
    """Snapshots; and of the layer that is kept: its input, saved set, output and gradient."""
    return snapshots + length + 10 + 3


@pytest.mark.parametrize(
    ("length", "snapshots", "forwards"),
    [row for row in BINOMIAL if row[0] < LONG or row[1] in (2, 100)],
)
def test_solve_finds_the_closed_form(length: int, snapshots: int, forwards: int) -> None:
    solution = solve_chain(equal_layers(length), budget_of(length, snapshots))
    assert solution.time == solution.lower_bound_time == forwards


@pytest.mark.parametrize("length", sorted({row[0] for row in BINOMIAL if row[0] >= LONG}))
def test_the_frontier_has_the_closed_form(length: int) -> None:
    found = ChainFrontier(equal_layers(length))
    assert found.exact
    for _, snapshots, forwards in (row for row in BINOMIAL if row[0] == length):
        budget = budget_of(length, snapshots)
        assert min(time for peak, time in found.points if peak <= budget) == forwards
