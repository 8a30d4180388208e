"""solve, frontier, compare: what they take, give and refuse."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import scheduler
from scheduler import (
    CostGraph,
    InfeasibleBudget,
    InvalidBudget,
    InvalidCosts,
    InvalidPlan,
    LayerCost,
    Plan,
    SchedulerError,
    UnknownMethod,
    UnsuitableMethod,
    compare,
    frontier,
    solve,
)
from scheduler.api import Comparison, Frontier, MethodRow
from scheduler.costs.computegraph import ComputeCosts
from scheduler.planning.certify import certified
from scheduler.planning.chain.engine import CHAIN
from scheduler.planning.request import Budget, Request
from solvers.chain.methods import METHODS
from solvers.chain.problem import Chain
from solvers.methods import Limits, Method
from solvers.schedule import Backward, Checkpoint, Forward, Items, Keep
from solvers.solution import Infeasible, Solution, Unsuitable
from tests.chains import DENSENET, FOLDER, GPT2
from tests.oracles.strategies import chains

RECORD: dict[str, Any] = {
    "forward_time": 1,
    "backward_time": 2,
    "output_bytes": 100,
    "saved_bytes": 1000,
}
TWELVE = [RECORD] * 12


def sentence(
    error: type[SchedulerError], call: Callable[..., object], *args: Any, **kw: Any
) -> str:
    with pytest.raises(error) as caught:
        call(*args, **kw)
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- every method -------------------------------------------------------------------------------


def outcome(method: Method, chain: Chain, budget: int) -> Solution[Items] | Infeasible | Unsuitable:
    try:
        return method.solve(chain, budget)
    except (Infeasible, Unsuitable) as error:
        return error


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
    ],
)
@given(chains(max_layers=4, max_plans=1500), st.data())
def test_no_plan_exceeds_its_budget(chain: Chain, data: st.DataObject) -> None:
    total = chain.input_bytes + sum(
        3 * la.output_bytes + la.saved_bytes + la.gradient_bytes + la.backward_transient_bytes
        for la in chain.layers
    )
    budget = data.draw(st.integers(1, max(total, 1)))
    times = {}
    for method in METHODS.values():
        solution = outcome(method, chain, budget)
        if isinstance(solution, Unsuitable):
            assert method.name == "binomial"
            continue
        if isinstance(solution, Infeasible):
            assert chain.replay(solution.schedule).peak_bytes == solution.needs_bytes > budget
            continue
        done = chain.replay(solution.schedule)
        assert done.peak_bytes == solution.peak_bytes <= budget
        assert done.time == solution.time >= solution.lower_bound_time >= chain.least_time
        steps = solution.schedule.actions(len(chain))
        backwards = [a.layer for a in steps if a == Backward(a.layer)]
        assert backwards == list(reversed(range(len(chain))))
        times[method.name] = solution.time
    if times:
        assert times["optimal"] == times["brute"] == min(times.values())


@pytest.mark.parametrize("method", METHODS)
def test_every_method_makes_a_plan(method: str) -> None:
    plan = solve(TWELVE[:6], budget=10**6, input_bytes=100, method=method)
    assert plan.method == method
    assert plan.peak_bytes <= 10**6
    assert plan.replay().peak_bytes == plan.peak_bytes
    described = METHODS[method]
    assert described.accepts.endswith(".")
    assert described.promises.endswith(".")


def test_the_same_input_gives_the_same_plan() -> None:
    assert solve(GPT2, 5) == solve(GPT2, 5)


# --- solve --------------------------------------------------------------------------------------


def test_budgets_in_every_spelling() -> None:
    plans = [
        solve(GPT2, 5),
        solve(GPT2, budget_gb=5.0),
        solve(GPT2, np.float64(5)),
        solve(GPT2, budget="5GB"),
        solve(GPT2, budget=5_000_000_000),
    ]
    assert all(plan == plans[0] for plan in plans)
    assert solve(GPT2, budget="5GiB").budget_bytes == 5 * 2**30


def test_costs_in_other_forms(tmp_path: Path) -> None:
    wanted = solve(CostGraph(tuple(LayerCost(**row) for row in TWELVE)), budget=8000)
    columns = {key: [value] * 12 for key, value in RECORD.items()}
    GPT2.save(tmp_path / "costs.json")
    assert solve(TWELVE, budget=8000) == wanted
    assert solve(columns, budget=8000) == wanted
    assert solve(pd.DataFrame(columns), budget=8000) == wanted
    assert solve(tmp_path / "costs.json", 5) == solve(GPT2, 5)
    assert solve(TWELVE, budget=8000, time_unit="s").time_unit == "s"
    assert solve(TWELVE, budget=9000, input_bytes=500).peak_bytes != wanted.peak_bytes


def test_times_are_in_the_unit_of_the_costs() -> None:
    for unit in ("ms", "s", "ns", "cycles"):
        plan = solve(TWELVE, budget=10**6, time_unit=unit)
        assert (plan.time, plan.keep_all_time, plan.lower_bound_time) == (36, 36, 36)
    half = [{**RECORD, "forward_time": 0.5}] * 2
    assert solve(half, budget=10**6, time_unit="cycles").time == 5


@pytest.mark.parametrize(("unit", "scale"), [("ns", 1e-1), ("s", 1e-12), ("hours", 1e-9)])
def test_short_times_are_not_rounded_to_nothing(unit: str, scale: float) -> None:
    whole = frontier(TWELVE)
    times = {key: value * scale for key, value in RECORD.items() if key.endswith("_time")}
    short = frontier([RECORD | times] * 12, time_unit=unit)
    assert [peak for peak, _ in short] == [peak for peak, _ in whole]
    assert [time for _, time in short] == pytest.approx([time * scale for _, time in whole])
    assert whole[0][1] > whole.keep_all_time
    nodes = [{"time": scale, "bytes": 4} for _ in range(3)]
    graph = ComputeCosts(nodes, ((0, 1), (1, 2), (0, 2)), time_unit=unit)  # type: ignore[arg-type]
    assert solve(graph, budget=12).time == pytest.approx(3 * scale)


def test_plans_made_in_coarser_ticks_still_hold() -> None:
    rows = [{**RECORD, "forward_time": 123.4e-6}] * 12
    record = solve(rows, budget=frontier(rows)[0][0]).to_dict()
    usual = {name: round(value, 4) for name, value in record.items() if name.endswith("time")}
    assert usual["time"] != record["time"]
    assert usual["time"] > usual["keep_all_time"]
    assert Plan.from_dict({**record, **usual}).replay(rows).time == record["time"]
    with pytest.raises(InvalidPlan, match="the plan says a time of"):
        Plan.from_dict({**record, "time": 1.01 * record["time"], "status": "feasible"}).replay(rows)


def test_reserved_comes_off_the_budget() -> None:
    plan = solve(GPT2, 6, reserved="1GB")
    assert (plan.budget_bytes, plan.reserved_bytes) == (6 * 10**9, 10**9)
    assert plan.peak_bytes + plan.reserved_bytes <= 6 * 10**9
    assert plan.items == solve(GPT2, 5).items
    message = sentence(InvalidBudget, solve, GPT2, 6, reserved=6 * 10**9)
    assert message.startswith("nothing is left of a budget of 6.000 GB (5.588 GiB) with 6.000 GB")
    assert "reserved must be zero or more" in sentence(InvalidBudget, solve, GPT2, 6, reserved=-1)
    assert "reserved '1G' has two" in sentence(InvalidBudget, solve, GPT2, 6, reserved="1G")


def test_reserved_gb_is_reserved(whole: Frontier) -> None:
    assert solve(GPT2, 6, reserved_gb=1) == solve(GPT2, 6, reserved="1GB")
    assert whole.plan(budget_gb=6, reserved_gb=1) == whole.plan(6, reserved="1GB")
    assert compare(GPT2, 6, reserved_gb=1).reserved_bytes == 10**9


def test_a_unit_that_cannot_be_meant_is_refused(whole: Frontier) -> None:
    peak = "next to nothing of the 7.788 GiB that keeping everything takes; did you mean "
    for call in (partial(solve, GPT2), partial(compare, GPT2), whole.plan):
        message = sentence(InvalidBudget, call, budget_gb=6, reserved=16)
        assert message.startswith(f"reserved 16 is 16 bytes, {peak}'16GB'?")
        assert peak in sentence(InvalidBudget, call, budget=40)
        assert "did you mean 1 GB?" in sentence(InvalidBudget, call, 1e9)
        assert "pass text as budget='6GB'" in sentence(InvalidBudget, call, "6GB")
    assert solve(TWELVE, budget=20_000, reserved=1).reserved_bytes == 1
    assert solve(TWELVE, 10**8, input_bytes=8).overhead == 0


def test_a_budget_that_nothing_fits() -> None:
    with pytest.raises(InfeasibleBudget) as caught:
        solve(GPT2, 1)
    error = caught.value
    assert error.smallest_budget_bytes == 3498429440
    assert error.set_by == "the backward of '14'"
    assert solve(GPT2, budget=error.smallest_budget_bytes).peak_bytes == 3498429440
    with pytest.raises(InfeasibleBudget):
        solve(GPT2, budget=error.smallest_budget_bytes - 1)


def test_an_infeasible_budget_counts_what_is_reserved() -> None:
    with pytest.raises(InfeasibleBudget) as caught:
        solve(GPT2, 2, reserved="1GB", method="greedy")
    error = caught.value
    least = error.smallest_budget_bytes
    assert solve(GPT2, budget=least, reserved="1GB", method="greedy").peak_bytes == least - 10**9
    assert "no plan of method 'greedy' fits" in str(error)
    assert "method 'optimal' may need less" in str(error)
    with pytest.raises(InfeasibleBudget):
        solve(GPT2, budget=least - 1, reserved="1GB", method="greedy")


def test_what_sets_a_smallest_budget() -> None:
    heavy = {**RECORD, "name": "embed", "forward_transient_bytes": 10**6}
    message = sentence(InfeasibleBudget, solve, [heavy, RECORD], budget="5B")
    assert message.endswith("set by the forward of 'embed'")
    nothing = {"forward_time": 1, "backward_time": 1, "output_bytes": 0, "saved_bytes": 0}
    plan = solve([nothing], budget=1)
    assert plan.peak_bytes == 0


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ({}, "no budget given; pass budget_gb=40"),
        ({"budget_gb": 40, "budget": "40GB"}, "both budget_gb=40 and budget='40GB' are given"),
        ({"budget_gb": 0}, "budget_gb must be at least one byte, got 0"),
        ({"budget_gb": -1}, "budget_gb must be at least one byte, got -1"),
        ({"budget_gb": float("nan")}, "budget_gb must be finite, got nan"),
        ({"budget_gb": "40"}, "pass text as budget='40'"),
        ({"budget": "40G"}, "the budget '40G' has two readings; write 40GB"),
        ({"budget": "forty"}, "the budget 'forty' is not a size"),
        ({"budget": True}, "the budget must be a size, got True"),
    ],
)
def test_a_budget_that_is_none(budget: dict[str, Any], message: str) -> None:
    assert message in sentence(InvalidBudget, solve, GPT2, **budget)
    assert message in sentence(InvalidBudget, compare, GPT2, **budget)
    assert message in sentence(InvalidBudget, frontier(GPT2).plan, **budget)


def test_methods_that_are_none() -> None:
    message = sentence(UnknownMethod, solve, GPT2, 5, method="optimum")
    assert message.startswith("there is no method 'optimum'; did you mean 'optimal'? (the methods")
    assert all(name in message for name in METHODS)
    assert "there is no method None" in sentence(UnknownMethod, solve, GPT2, 5, method=None)
    assert "there is no method []" in sentence(UnknownMethod, solve, GPT2, 5, method=[])


def test_methods_that_do_not_apply() -> None:
    message = sentence(UnsuitableMethod, solve, GPT2, 5, method="binomial")
    assert "needs identical layers" in message
    message = sentence(UnsuitableMethod, solve, GPT2, 5, method="brute")
    assert "has more than 2,000,000" in message


def test_limits() -> None:
    costs = DENSENET
    whole = frontier(costs)
    budget = whole.keep_all_peak_bytes // 3
    thinned = solve(costs, budget=budget, max_points=16)
    exact = whole.plan(budget=budget)
    assert thinned.lower_bound_time <= exact.time <= thinned.time
    assert 0 < thinned.gap < 0.5
    assert solve(costs, budget=budget, max_points=500).gap < 0.01
    assert solve(costs, budget=budget, memory_limit="2GiB") == exact
    few = frontier(costs, max_points=16)
    assert not few.exact
    assert few.plan(budget=budget).lower_bound_time <= exact.time <= few.plan(budget=budget).time
    assert few.plan(budget=few.keep_all_peak_bytes).status == "optimal"


@pytest.mark.parametrize("points", [15, 0, -1, 100.0, "100", True, float("nan")])
def test_max_points_that_are_none(points: Any) -> None:
    wanted = "max_points must be a whole number of at least 16, got "
    for call in (solve, compare):
        assert sentence(InvalidBudget, call, GPT2, 5, max_points=points).startswith(wanted)
    assert sentence(InvalidBudget, frontier, GPT2, max_points=points).startswith(wanted)


def test_memory_limits_that_are_none() -> None:
    for limit, message in (
        ("2G", "memory_limit '2G' has two readings"),
        (0, "memory_limit must be at least one byte"),
        (1, "for 16 layers, got 1"),
        ("10KB", "memory_limit must be at least"),
    ):
        assert message in sentence(InvalidBudget, solve, GPT2, 5, memory_limit=limit)
        assert message in sentence(InvalidBudget, frontier, GPT2, memory_limit=limit)


def test_tables_count_against_the_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [RECORD] * 6000
    refused = "the sets of the spans of 6,000 layers take at least 1788000000 bytes (1.67 GiB)"
    said = sentence(UnsuitableMethod, frontier, many)
    assert said.startswith(refused)
    assert "method 'uniform' or 'greedy'" in said
    assert solve(many, budget="1MB", method="greedy").peak_bytes <= 10**6

    layers = [RECORD | {"saved_bytes": 500 + i} for i in range(90)]  # no two spans are equal
    little = sentence(InvalidBudget, solve, layers, 1, memory_limit="100kB")
    assert little.startswith("memory_limit must be at least 900.0 KB (878.9 KiB) for 90 layers")
    # One budget does with few tables, the frontier has all.
    needs: object = "1MB"
    for _ in ("tables", "and sets"):
        more = sentence(UnsuitableMethod, frontier, layers, memory_limit=needs)
        needs = int(more.split("at least ")[1].split()[0])
    assert not frontier(layers, memory_limit=needs).exact
    for method in ("optimal", "single-level"):
        plan = solve(layers, budget="20kB", memory_limit="1MB", method=method)
        assert plan.peak_bytes <= 20_000

    def full(chain: Chain, width: int) -> None:
        raise MemoryError

    monkeypatch.setattr("solvers.chain.exact.tables.same_spans", full)
    for call in (solve, compare):
        assert "more memory than there is; make fewer" in sentence(
            UnsuitableMethod, call, layers, 1
        )
    assert "more memory than there is; make fewer" in sentence(UnsuitableMethod, frontier, layers)


def test_limits_of_other_methods() -> None:
    message = sentence(UnsuitableMethod, solve, GPT2, 5, method="greedy", max_points=100)
    assert message.startswith("method 'greedy' takes no max_points")
    message = sentence(UnsuitableMethod, solve, GPT2, 5, method="uniform", memory_limit="2GB")
    assert message.startswith("method 'uniform' takes no memory_limit")


def test_costs_that_are_none() -> None:
    for call in (solve, compare):
        assert "there are no layers" in sentence(InvalidCosts, call, [], 5)
        assert "cannot read layer costs from 3" in sentence(InvalidCosts, call, 3, 5)
        bad = [{**RECORD, "name": "h.0", "forward_time": -1}]
        assert "layer 'h.0': forward_time" in sentence(InvalidCosts, call, bad, 5)
    assert "there are no layers" in sentence(InvalidCosts, frontier, [])


def test_inputs_are_not_changed() -> None:
    rows = [dict(RECORD) for _ in range(3)]
    solve(rows, budget=10**6)
    compare(rows, budget=10**6)
    assert rows == [RECORD] * 3


# --- a solver that is wrong ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("solution", "budget", "message"),
    [
        (Solution(Items((Keep(0), Keep(1))), 1, 6, 6), 10**6, "says peak and time"),
        (Solution(Items((Keep(0), Keep(1))), 2300, 6_000_000, 7_000_000), 10**6, "with the bound"),
        (
            Solution(Items((Keep(0), Keep(1))), 2300, 6_000_000, 6_000_000),
            1000,
            "more than its budget",
        ),
        (Solution(Items((Keep(0),)), 2300, 6_000_000, 6_000_000), 10**6, "made an illegal plan"),
    ],
)
def test_nothing_wrong_is_handed_out(solution: Solution[Items], budget: int, message: str) -> None:
    costs = CostGraph((LayerCost(**RECORD), LayerCost(**RECORD)))
    chain = costs.to_chain()
    kept = chain.replay(Items((Keep(0), Keep(1))))
    if solution.peak_bytes == 2300:
        solution = replace(solution, peak_bytes=kept.peak_bytes)
    with pytest.raises(RuntimeError, match=message) as caught:
        certified(costs, chain, solution, method="m", size=Budget(budget))
    assert "this is a bug" in str(caught.value)


def test_a_wrong_smallest_peak_is_not_handed_out() -> None:
    chain = CostGraph((LayerCost(**RECORD),)).to_chain()
    wrong = Infeasible(7, Forward(0, True), chain.keep_all())
    with pytest.raises(RuntimeError, match="this is a bug"):
        CHAIN.refusal(chain, wrong, Budget(5), Request(METHODS["optimal"], Limits()))


# --- frontier -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole() -> Frontier:
    return frontier(GPT2)


def test_a_frontier_is_a_sequence_of_points(whole: Frontier) -> None:
    points = list(whole)
    assert len(points) == len(whole)
    assert points == sorted(points)
    assert [time for _, time in points] == sorted((time for _, time in points), reverse=True)
    assert whole[0] == points[0]
    assert whole[-1] == points[-1] == (whole.keep_all_peak_bytes, whole.keep_all_time)
    assert whole[1:3] == tuple(points[1:3])
    assert whole.exact


def test_a_frontier_gives_plans_without_solving(
    whole: Frontier, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [solve(GPT2, budget=peak) for peak, _ in whole]
    monkeypatch.setattr("solvers.chain.exact.kernel.build", None)
    for (peak, time), plan in zip(whole, wanted, strict=True):
        found = whole.plan(budget=peak)  # there may be others that are as good
        assert (found.peak_bytes, found.time) == (plan.peak_bytes, plan.time) == (peak, time)
    assert whole.plan(5) == whole.plan(budget="5GB") == whole.plan(budget=5 * 10**9)
    assert whole.plan(6, reserved="1GB").items == whole.plan(5).items


def test_a_frontier_refuses_what_does_not_fit(whole: Frontier) -> None:
    with pytest.raises(InfeasibleBudget) as caught:
        whole.plan(1, reserved="10B")
    assert caught.value.smallest_budget_bytes == whole[0][0] + 10
    assert caught.value.set_by == "the backward of '14'"


def test_a_frontier_prints(whole: Frontier) -> None:
    assert repr(whole) == f"<Frontier: {len(whole)} points, exact, 3.258 GiB to 7.788 GiB>"
    lines = str(whole).splitlines()
    assert lines[0] == (
        f"gpt2-small: 16 layers, {len(whole)} optimal plans, 20 shown; "
        "keep-all needs 7.788 GiB and 79.03 s a step"
    )
    assert len(lines) == 22
    assert lines[2].split() == ["3.258", "GiB", "41.84%", "102.3", "s", "29.50%"]
    assert lines[-1].split() == ["7.788", "GiB", "100.0%", "79.03", "s", "0.00%"]
    assert json.loads(json.dumps(whole.to_dict()))["points"][0]["peak_bytes"] == whole[0][0]


def test_a_frontier_of_one_point() -> None:
    single = frontier([RECORD])
    assert repr(single).startswith("<Frontier: 1 point, exact, ")
    assert str(single).startswith("costs: 1 layer, 1 optimal plan; ")


# --- compare ------------------------------------------------------------------------------------


def by_method(comparison: Comparison) -> dict[str, MethodRow]:
    return {row.method: row for row in comparison.rows}


def test_compare() -> None:
    comparison = compare(GPT2, 5)
    rows = by_method(comparison)
    assert list(rows) == [name for name in METHODS if name != "brute"]
    assert comparison.optimal is rows["optimal"]
    for name, row in rows.items():
        if name == "binomial":
            assert row == MethodRow("binomial", note=row.note)
            assert "needs identical layers" in row.note
            continue
        assert row.peak_bytes is not None
        assert row.fits == (row.peak_bytes <= 5 * 10**9)
        at_peak = solve(GPT2, budget=row.peak_bytes)
        assert row.optimal_time_at_peak == at_peak.time
        assert row.optimal_overhead_at_peak == pytest.approx(at_peak.overhead)
        if row.fits:
            plan = solve(GPT2, 5, method=name)
            assert (row.peak_bytes, row.time, row.overhead) == (
                *(plan.peak_bytes, plan.time, plan.overhead),
            )
    assert not rows["keep-all"].fits


def test_compare_counts_what_is_reserved() -> None:
    rows = by_method(compare(GPT2, 5, reserved="1GB"))
    assert rows["uniform-ratio"].fits
    assert not rows["every-layer"].peak_bytes or rows["every-layer"].fits
    assert solve(GPT2, 5, reserved="1GB").time == rows["optimal"].time
    assert not by_method(compare(GPT2, 8, reserved="1GB"))["keep-all"].fits
    assert "5.000 GB (4.657 GiB), 1.000 GB (953.7 MiB) of it reserved" in str(
        compare(GPT2, 5, reserved="1GB")
    )


def test_compare_of_a_longer_chain_solves_at_each_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = compare(GPT2, 5)
    monkeypatch.setattr("scheduler.planning.chain.compare._WHOLE_FRONTIER", 1)
    assert compare(GPT2, 5) == wanted


def test_compare_with_thinned_sets_says_so() -> None:
    comparison = compare(DENSENET, 0.7, max_points=16)
    assert "within" in " ".join(row.note for row in comparison.rows)


def test_compare_prints() -> None:
    lines = str(compare(GPT2, 5)).splitlines()
    assert lines[0] == (
        "gpt2-small: 16 layers, keep-all peak 7.788 GiB, 79.03 s a step; "
        "budget 5.000 GB (4.657 GiB)"
    )
    assert all(len(line) <= 100 for line in lines)
    assert lines[2].split() == [
        *("method", "peak", "fits", "time", "overhead", "optimum", "at", "that", "peak"),
    ]
    assert lines[3].split() == ["keep-all", "7.788", "GiB", "no", "79.03", "s", "0.00%", "0.00%"]
    assert lines[10].split() == ["binomial", "–", "–", "–", "–", "–"]
    assert lines[-1] == ("that fits, uniform (16.65%), it saves 92.24 ms a step.")
    assert repr(compare(GPT2, 5)) == ("<Comparison: 7 of 9 methods fit 5.000 GB (4.657 GiB)>")


@pytest.mark.parametrize(
    ("costs", "budget", "conclusion"),
    [
        ("uniform_50", "1GB", "Nothing needs to be recomputed within this budget."),
        (
            "uniform_50",
            "12MiB",
            "The optimum loses 68.67% to recomputation; no other method has a plan within this "
            "budget.",
        ),
        (
            "uniform_50",
            "22MiB",
            "The optimum loses 32.00% to recomputation; single-level reaches it too.",
        ),
        (
            "uniform_50",
            "100B",
            "No plan fits: the smallest feasible budget is 7.341 MB (7.000 MiB), set by the "
            "backward of 's49'.",
        ),
        (
            "rand_20",
            413333504,
            "The optimum loses 15.45% to recomputation; over the best baseline that fits, "
            "single-level (16.46%), it saves 4.524 ms a step.",
        ),
    ],
)
def test_the_conclusion(costs: str, budget: object, conclusion: str) -> None:
    graph = CostGraph.load(FOLDER / f"{costs}.json")
    assert compare(graph, budget=budget).conclusion() == conclusion


def test_a_comparison_as_json_has_no_infinity() -> None:
    free = {**RECORD, "forward_time": 0, "backward_time": 0, "recompute_time": 3}
    comparison = compare([free] * 4, budget=3500)
    assert any(row.overhead == float("inf") for row in comparison.rows)
    text = json.dumps(comparison.to_dict(), allow_nan=False)
    assert json.loads(text)["rows"][-1]["method"] == "optimal"
    assert "∞" in str(comparison)


# --- the package --------------------------------------------------------------------------------


def test_exports() -> None:
    errors = {"InfeasibleBudget", "InvalidBudget", "InvalidCosts", "InvalidPlan", "SchedulerError"}
    others = {"UnknownMethod", "UnsuitableMethod", "UnsupportedModel"}
    names = {"solve", "frontier", "compare", "LayerCost", "CostGraph", "Plan"}
    names |= {"solve_by_length", "PlansByLength", "solve_pipeline"}
    graphs = {"ComputeCosts", "NodeCost", "GraphPlan", "InfeasibleGraph", "NoPlanFound"}
    assert set(scheduler.__all__) == names | errors | others | graphs


def test_errors_survive_pickling() -> None:
    with pytest.raises(InfeasibleBudget) as caught:
        solve(GPT2, 1)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_checkpoints_are_reachable_from_a_plan() -> None:
    plan = solve(GPT2, 5)
    assert plan.items[1] == Checkpoint(1, 3, (Keep(1), Keep(2), Keep(3)))
