"""Plans by length: solved within one budget, kept in a file, and what a run loses under them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scheduler import (
    CostGraph,
    InfeasibleBudget,
    InvalidCosts,
    InvalidPlan,
    Plan,
    PlansByLength,
    frontier,
    solve,
    solve_by_length,
)
from scheduler.memory import costs_from_shape
from tests.planning.test_api import sentence

LENGTHS = (64, 128, 256, 512)
SHAPE = "gpt2"


def costs(length: int, **how: Any) -> CostGraph:
    return costs_from_shape(SHAPE, 2, length, **how)


@pytest.fixture(scope="module")
def plans() -> PlansByLength:
    return solve_by_length({n: costs(n) for n in LENGTHS}, 0.8, batch=2)


def test_each_is_the_best_within_the_budget(plans: PlansByLength) -> None:
    assert tuple(plans) == LENGTHS
    for length, plan in plans.items():
        assert plan == solve(costs(length), 0.8)
    overheads = [plan.overhead for plan in plans.values()]
    assert overheads == sorted(overheads)
    assert 0 == overheads[0] < overheads[-1]


@pytest.mark.parametrize("how", [{}, {"attention": "eager"}, {"padding_mask": True}], ids=str)
def test_a_shorter_step_needs_no_more_under_the_same_plan(how: dict[str, Any]) -> None:
    """On any number of tokens, attention materialised or not, whatever the plan's budget."""
    sweep = frontier(costs(512, **how), max_points=64)
    plans = [sweep.plan(budget=peak) for peak, _ in sweep.points[:: len(sweep) // 4]]
    peaks = [plan.peak_bytes for plan in plans]
    for length in (511, 400, 257, 100, 7, 1):
        problem = costs(length, **how).to_problem()
        shorter = [problem.replay(plan.schedule).peak_bytes for plan in plans]
        assert all(less <= more for less, more in zip(shorter, peaks, strict=True))
        peaks = shorter
    # More sequences that are shorter: as many tokens, and a smaller product of the two.
    problem = costs_from_shape(SHAPE, 8, 128, **how).to_problem()
    for plan in plans:
        assert problem.replay(plan.schedule).peak_bytes <= plan.peak_bytes


def test_the_next_longer_point(plans: PlansByLength) -> None:
    assert [plans.length_for(n) for n in (1, 64, 65, 512)] == [64, 64, 128, 512]
    # Of more sequences the tokens decide, of fewer their length.
    assert [plans.length_for(100, n) for n in (1, 2, 3, 6)] == [128, 128, 256, 512]
    said = sentence(InvalidPlan, plans.length_for, 200, 6)
    assert said.startswith("a step of 6 × 200 tokens is larger than the longest that is planned")


def test_what_a_run_loses(plans: PlansByLength) -> None:
    lost = plans.run_overhead([512])
    assert lost.by_length == lost.longest == pytest.approx(plans[512].overhead)
    both = plans.run_overhead([64, 512])
    whole = plans[64].keep_all_time + plans[512].keep_all_time
    assert both.by_length == pytest.approx((plans[64].time + plans[512].time) / whole - 1)
    problem, ticks = costs(64).to_problem(), costs(64).ticks_per_unit
    longest = problem.replay(plans[512].schedule).time / ticks
    assert both.longest == pytest.approx((longest + plans[512].time) / whole - 1)
    assert plans.run_overhead([40]).by_length == 0 < plans.run_overhead([40]).longest
    assert "the run has no steps" in sentence(InvalidPlan, plans.run_overhead, [])


def test_the_file(plans: PlansByLength, tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    plans.save(path)
    again = PlansByLength.load(path)
    assert again == plans
    assert str(again) == str(plans)
    assert repr(again) == "<PlansByLength: 4 plans, 64 to 512 tokens>"
    assert "read it with PlansByLength.load" in sentence(InvalidPlan, Plan.load, path)
    plans[64].save(path)
    assert "read it with Plan.load" in sentence(InvalidPlan, PlansByLength.load, path)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"points": []}, "no lengths given"),
        ({"points": 3}, "'points' must be a list"),
        ({"points": [3]}, "points[0] must be an object"),
        ({"batch": 0}, "'batch' must be a number of sequences"),
        ({"name": 3}, "'name' must be text"),
        ({"more": 3}, "unknown field 'more'"),
        ({0: {"length": 128}}, "the lengths must increase, but 128 stands after 128"),
        ({0: {"longest_time": -1}}, "points[0]: 'longest_time' must be a time"),
        ({0: {"plan": {}}}, "points[0]: there is no 'schema'"),
        ({0: {"peak_bytes": 10**10}}, "points[0]: the plan says a peak of 10000000000"),
        ({0: {"budget_bytes": 10**10}}, "length 128 has another budget"),
        ({0: {"layers": [f"x{i}" for i in range(14)]}}, "length 128 has other layers"),
    ],
)
def test_a_bad_file(plans: PlansByLength, changed: dict[Any, Any], words: str) -> None:
    record = json.loads(plans.to_json())
    for key, value in changed.items():
        if isinstance(key, str):
            record[key] = value
            continue
        for name, inner in value.items():
            point = record["points"][key]
            (point if name in point else point["plan"])[name] = inner
    said = sentence(InvalidPlan, PlansByLength.from_json, json.dumps(record))
    assert words in said


def test_refusals(plans: PlansByLength) -> None:
    small, large = costs(64), costs(128)
    said = sentence(InvalidCosts, solve_by_length, {}, 1)
    assert said.startswith("no lengths given")
    said = sentence(InvalidCosts, solve_by_length, {128: large, 64: small}, 1)
    assert said.startswith("the lengths must increase, but 64 stands after 128")
    assert "from 1, got 1.5" in sentence(InvalidCosts, solve_by_length, {1.5: small}, 1)
    said = sentence(InvalidCosts, solve_by_length, {64: costs(128), 128: small}, 2)
    assert said.startswith("the plan of length 128 needs ")
    assert " bytes at length 64, more than the " in said
    other = replace(large, layers=large.layers[1:])
    said = sentence(InvalidCosts, solve_by_length, {64: small, 128: other}, 2)
    assert said.startswith("the costs of length 128 have other layers than those of length 64")


def test_what_does_not_fit_is_named() -> None:
    asked = {n: costs(n) for n in (64, 1024)}
    with pytest.raises(InfeasibleBudget) as found:
        solve_by_length(asked, 0.9)
    said = str(found.value)
    assert "set by the backward of 'head' at length 1024; the longest of the lengths that" in said
    assert said.endswith("fits is 64")
    with pytest.raises(InfeasibleBudget, match="at length 64; none of the lengths fits"):
        solve_by_length(asked, 0.1)


def test_options_whose_names_differ_by_length() -> None:
    """What an option keeps is in its name; a plan is then not replayed at another length."""
    found = solve_by_length({n: costs(n, options=True) for n in (256, 512)}, 0.8)
    assert found.run_overhead([200]).longest >= found.run_overhead([200]).by_length
