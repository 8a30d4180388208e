"""solve, frontier and compare on graphs."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from scheduler import (
    ComputeCosts,
    CostGraph,
    GraphPlan,
    InfeasibleBudget,
    InfeasibleGraph,
    InvalidBudget,
    InvalidCosts,
    LayerCost,
    NodeCost,
    NoPlanFound,
    Plan,
    SchedulerError,
    UnknownMethod,
    UnsuitableMethod,
    compare,
    frontier,
    solve,
)
from scheduler.common.text import format_smallest
from scheduler.costs.readers import Costs
from scheduler.planning.comparison import Comparison, MethodRow
from scheduler.planning.frontier import Frontier
from scheduler.planning.request import Watch
from solvers.graph.lowering import lower
from solvers.graph.schedule import Nodes
from solvers.methods import Limits, Method
from solvers.solution import Infeasible, PlanClass, Progress, Solution

GRAPHS = Path(__file__).parents[1] / "data" / "graphs"
TR2 = ComputeCosts.load(GRAPHS / "tr2.json")


def keep_all(problem: Any) -> Solution[Any]:
    return Solution.of(problem, problem.keep_all(), plan_class=PlanClass.ANY)


TR2_PEAK = keep_all(TR2.to_problem()).peak_bytes


def layer(name: str, output: int, saved: int, time: int = 1) -> LayerCost:
    return LayerCost(
        name, forward_time=time, backward_time=2 * time, output_bytes=output, saved_bytes=saved
    )


UNET = CostGraph(
    (
        layer("down1", 800, 4000, 4),
        layer("down2", 400, 2000, 3),
        layer("middle", 200, 3000, 5),
        layer("up2", 400, 2500, 3),
        layer("up1", 800, 5000, 4),
    ),
    100,
    "u-net",
    edges=(
        ("down1", "down2"),
        ("down2", "middle"),
        ("middle", "up2"),
        ("down2", "up2"),
        ("up2", "up1"),
        ("down1", "up1"),
    ),
)
UNET_PEAK = keep_all(UNET.to_problem()).peak_bytes


def sentence(
    kind: type[SchedulerError], call: Callable[..., object], *arguments: Any, **keywords: Any
) -> str:
    with pytest.raises(kind) as caught:
        call(*arguments, **keywords)
    assert type(caught.value) is kind
    message = str(caught.value)
    assert "\n" not in message
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy)) == (kind, message)
    return message


def counterexample(index: int) -> tuple[ComputeCosts, dict[str, Any]]:
    """A graph on which staged is not the optimum, and what a search of all schedules found."""
    record = json.loads((GRAPHS / "staged_counterexamples.json").read_text())[index]
    wanted = ("name", "nodes", "edges")
    return ComputeCosts.from_dict({**{k: record[k] for k in wanted}, "time_unit": "t"}), record


# --- solve --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("costs", "peak"), [(TR2, TR2_PEAK), (UNET, UNET_PEAK)])
def test_a_graph_is_solved_to_proof(costs: Costs, peak: int) -> None:
    budget = 3 * peak // 4
    plan = solve(costs, budget=budget)
    assert plan.kind in ("compute graph", "layer graph")
    assert plan.optimal_in == "forward"
    assert plan.peak_bytes <= budget < plan.keep_all_peak_bytes
    assert plan.lower_bound_time == plan.time > plan.keep_all_time
    assert plan.method == "auto"
    assert plan.costs_sha256 == costs.sha256
    assert plan.solve_seconds is not None
    assert plan.replay().peak_bytes == plan.peak_bytes
    assert solve(costs, budget=budget, method="auto").steps == plan.steps
    staged = solve(costs, budget=budget, optimal_in="staged", method="staged")
    assert staged.optimal_in == "staged"
    assert staged.time <= plan.time


def test_every_form_of_a_graph_gives_the_same_plan(tmp_path: Path) -> None:
    made: Any = nx.DiGraph(name=UNET.name, input_bytes=100)
    made.add_nodes_from(
        (la.name, {k: v for k, v in record.items() if k != "name"})
        for la, record in zip(UNET.layers, UNET.to_dict()["layers"], strict=True)
    )
    made.add_edges_from(UNET.edges or ())
    UNET.save(tmp_path / "u.json")
    expected = solve(UNET, budget=13_000)
    for form in (UNET.to_dict(), made, tmp_path / "u.json", str(tmp_path / "u.json")):
        assert solve(form, budget=13_000) == expected


def test_a_path_of_edges_is_a_chain() -> None:
    chain = replace(UNET, edges=None)
    names = [la.name for la in chain.layers]
    path = replace(chain, edges=tuple(pairwise(names)))
    plan = solve(path, budget=12_000)
    assert type(plan) is Plan
    assert plan == solve(chain, budget=12_000)
    assert plan.optimal_in == "persistent"


def test_budgets_are_read_as_for_chains() -> None:
    plan = solve(UNET, budget="25KB", reserved="1KB")
    assert (plan.budget_bytes, plan.reserved_bytes) == (25_000, 1_000)
    assert solve(UNET, 25e-6).budget_bytes == 25_000
    assert "25.00 KB (24.41 KiB), 1.000 KB (1000 B) of it reserved" in str(plan)
    assert plan.optimal_in == "any"  # everything is kept, so that nothing at all is faster
    assert "no budget given" in sentence(InvalidBudget, solve, UNET)
    assert "nothing is left" in sentence(InvalidBudget, solve, UNET, budget=5, reserved=5)
    assert solve(TR2, budget=5000, time_unit="ms").time_unit == "ms"


@pytest.mark.parametrize(
    ("keywords", "kind", "message"),
    [
        ({"method": "best"}, UnknownMethod, "there is no method 'best' (the methods for graphs"),
        ({"method": "stagd"}, UnknownMethod, "did you mean 'staged'? (the methods for graphs are"),
        ({"method": None}, UnknownMethod, "there is no method None"),
        ({"method": "greedy", "max_points": 20}, UnsuitableMethod, "max_points limits the sets"),
        ({"method": "binomial"}, UnsuitableMethod, "method 'binomial' is for chains, and this is"),
        ({"memory_limit": "1GiB"}, UnsuitableMethod, "memory_limit limits the sets of the solver"),
        ({"time_limit": 0}, InvalidBudget, "time_limit must be a positive number of seconds"),
        ({"time_limit": -1}, InvalidBudget, "positive number of seconds, got -1; leave it out"),
        ({"time_limit": float("nan")}, InvalidBudget, "positive number of seconds, got nan"),
        ({"time_limit": float("inf")}, InvalidBudget, "positive number of seconds, got inf"),
        ({"time_limit": "10"}, InvalidBudget, "positive number of seconds, got '10'"),
        ({"time_limit": True}, InvalidBudget, "positive number of seconds, got True"),
        ({"optimal_in": "persistent"}, InvalidBudget, "must be 'forward', 'staged' or 'any', got"),
        ({"optimal_in": "stage"}, InvalidBudget, "did you mean 'staged'?"),
        ({"optimal_in": 3}, InvalidBudget, "optimal_in must be 'forward', 'staged' or 'any'"),
        ({"threads": 0}, InvalidBudget, "threads must be a whole number of at least 1, got 0"),
        ({"threads": 1.5}, InvalidBudget, "threads must be a whole number of at least 1, got 1.5"),
        ({"threads": True}, InvalidBudget, "threads must be a whole number of at least 1"),
        ({"optimal_in": "any", "method": "staged"}, UnsuitableMethod, "class 'any'"),
    ],
)
def test_arguments_that_do_not_apply_to_a_graph(
    keywords: dict[str, Any], kind: type[SchedulerError], message: str
) -> None:
    assert message in sentence(kind, solve, UNET, budget=12_000, **keywords)


def test_arguments_that_do_not_apply_to_a_chain() -> None:
    chain = replace(UNET, edges=None)
    for keywords in ({"optimal_in": "any"}, {"threads": 2}):
        (name,) = keywords
        said = sentence(UnsuitableMethod, solve, chain, budget=12_000, **keywords)
        assert said.startswith(f"{name} is for graphs, and these layers are a chain")
        assert sentence(UnsuitableMethod, frontier, chain, **keywords) == said
    said = sentence(UnsuitableMethod, compare, chain, budget=12_000, time_limit=3)
    assert said.startswith("time_limit of a chain is for solve alone")
    assert sentence(UnsuitableMethod, frontier, chain, time_limit=3) == said
    assert "points is for graphs" in sentence(UnsuitableMethod, frontier, chain, points=3)
    assert "method 'optimal'" in sentence(UnsuitableMethod, frontier, chain, method="greedy")
    assert "no method 'x'" in sentence(UnknownMethod, frontier, chain, method="x")
    assert "there is no method 'staged'" in sentence(
        UnknownMethod, solve, chain, budget=12_000, method="staged"
    )
    assert "input_bytes describes layers" in sentence(
        InvalidCosts, solve, TR2, budget=5000, input_bytes=3
    )


# --- what cannot be done ------------------------------------------------------------------------


def test_below_the_floor_the_operation_is_named() -> None:
    floor, node = TR2.to_problem().floor
    message = sentence(InfeasibleGraph, solve, TR2, budget=floor - 1)
    name = TR2.nodes[node].name
    assert message == (
        f"no plan fits a budget of 2.111 KB (2.062 KiB): the computation of {name!r} alone needs "
        "2.112 KB (2.063 KiB); give at least that much"
    )
    with pytest.raises(InfeasibleBudget) as caught:
        solve(TR2, budget=floor + 99, reserved=100)
    error = caught.value
    assert error.smallest_budget_bytes == floor + 100
    assert "needs 2.212 KB (2.161 KiB), the reserve included" in str(error)


def test_below_the_floor_of_layers() -> None:
    message = sentence(InfeasibleGraph, solve, UNET, budget=1000)
    assert "in this order of layers the backward of 'up1' alone needs" in message
    message = sentence(InfeasibleGraph, solve, UNET, budget=1000, optimal_in="any")
    assert ": the backward of 'up1' alone needs" in message
    assert message.startswith("no plan fits")


def test_another_order_of_layers_may_need_less() -> None:
    apart = CostGraph(
        (
            LayerCost("a", forward_time=2, backward_time=1, output_bytes=0, saved_bytes=9),
            replace(layer("b", 0, 0), gradient_bytes=6),
        ),
        edges=(),
    )
    with pytest.raises(InfeasibleGraph) as caught:
        solve(apart, budget=10)
    assert str(caught.value) == (
        "no plan of class 'staged' fits a budget of 10 bytes: in this order of layers the backward "
        "of 'a' alone needs 15 bytes; give at least that much, or try other orders of a "
        "small graph with optimal_in 'any'"
    )
    assert caught.value.plan_class == "staged"
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.in_order) == (str(caught.value), True)
    assert solve(apart, budget=10, optimal_in="any").peak_bytes == 9
    tight = compare(apart, budget=10, time_limit=10)
    assert not any("fits" in row.note for row in tight.rows)  # the conclusion says it once


def test_what_is_not_known_of_layers_is_of_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, infeasible(UNET.to_problem(), 9100, 5, None))
    message = sentence(NoPlanFound, solve, UNET, budget=9500)
    assert "the floor in this order of layers is 9.100 KB" in message
    answer(monkeypatch, infeasible(UNET.to_problem(), 9100, 5, PlanClass.FORWARD))
    message = sentence(InfeasibleGraph, solve, UNET, budget=9500)
    assert "proven: the floor in this order of layers is 9.100 KB" in message


def test_keeping_everything_needs_so_much() -> None:
    message = sentence(InfeasibleGraph, solve, TR2, budget=TR2_PEAK, reserved=1, method="keep-all")
    assert message.startswith("keeping everything does not fit a budget of ")
    assert f"it needs {format_smallest(TR2_PEAK + 1)}" in message
    assert message.endswith("method 'auto' may need less")


def test_beyond_what_can_be_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = tuple(NodeCost(f"n{i}", time=1, bytes=1) for i in range(1501))
    path = ComputeCosts(nodes, tuple((i, i + 1) for i in range(1500)))
    answer(monkeypatch, infeasible(path.to_problem(), 2, 1, None))
    message = sentence(NoPlanFound, solve, path, budget=2)
    assert "of 1,501 operations, more than the 1,500 about which something" in message
    assert "only eviction was tried" in message
    assert message.endswith("; try a larger budget")


def test_what_is_proven_infeasible_in_a_class() -> None:
    for index in range(3):
        costs, record = counterexample(index)
        budget = record["budget"]
        message = sentence(InfeasibleGraph, solve, costs, budget=budget, optimal_in="staged")
        assert message.startswith("no plan of class 'staged' fits a budget of ")
        assert "in the given order of nodes, which is proven: the floor of all plans is " in message
        assert "try a larger budget or a wider class of plans (optimal_in)" in message
        plan = solve(costs, budget=budget, optimal_in="any")
        assert plan.optimal_in == "any"
        assert plan.time == record["optimal_any_order"]
        assert plan.peak_bytes <= budget
        assert costs.to_problem().is_training or solve(costs, budget=budget).optimal_in == "any"


def infeasible(
    problem: Any, needs: int, operation: int, within: PlanClass | None, **more: bool
) -> Infeasible:
    return Infeasible(needs, lower(problem).action(operation), None, within, **more)


def answer(monkeypatch: pytest.MonkeyPatch, what: Solution[Any] | Exception) -> list[Any]:
    """A solver that says `what`; the limits that it was called with."""
    calls: list[Any] = []

    def say(method: Method, problem: Any, budget: int, limits: Limits) -> Solution[Any]:
        calls.append((method.name, limits))
        if isinstance(what, Exception):
            raise what
        return what

    monkeypatch.setattr(Method, "solve", say)
    return calls


def test_nothing_found_and_nothing_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    floor, node = TR2.to_problem().floor
    answer(monkeypatch, infeasible(TR2.to_problem(), floor, node, None, out_of_time=True))

    def message(**keywords: Any) -> str:
        return sentence(NoPlanFound, solve, TR2, budget=2500, **keywords)

    unknown = "whether there is one is not known: the floor of all plans is 2.112 KB (2.063 KiB)"
    assert message(time_limit=2.5).startswith(
        f"no plan was found within a budget of 2.500 KB (2.441 KiB) in the time limit of 2.5 s; "
        f"{unknown}, set by the computation of "
    )
    answer(monkeypatch, infeasible(TR2.to_problem(), floor, node, None))
    said = message(method="greedy", time_limit=2.5)
    assert said.startswith("method 'greedy' came to its end without a plan within a budget of ")
    assert said.endswith("; more time would not help: try method 'auto' or a larger budget")
    watch = Watch(interrupted=lambda: True)
    assert message(watch=watch).startswith("interrupted before a plan was found within a budget")


def test_a_heuristic_has_a_bound_and_a_gap() -> None:
    graph = ComputeCosts.load(GRAPHS / "res4.json")
    peak = keep_all(graph.to_problem()).peak_bytes
    plan = solve(graph, budget=3 * peak // 5, time_limit=60, method="greedy")
    assert (plan.status, plan.method) == ("feasible", "greedy")
    assert plan.keep_all_time == plan.lower_bound_time < plan.time
    assert plan.gap == plan.overhead


def test_an_interrupt_gives_the_best_so_far() -> None:
    reports: list[Progress] = []
    watch = Watch(reports.append, lambda: any(report.time is not None for report in reports))
    graph = ComputeCosts.load(GRAPHS / "res4.json")
    peak = keep_all(graph.to_problem()).peak_bytes
    plan = solve(graph, budget=3 * peak // 5, watch=watch)
    assert plan.peak_bytes <= 3 * peak // 5
    assert reports


def test_what_is_asked_reaches_the_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = keep_all(UNET.to_problem())
    calls = answer(monkeypatch, everything)
    watch = Watch(print, lambda: False)
    solve(
        UNET,
        budget=UNET_PEAK,
        method="optimal",
        time_limit=3,
        optimal_in="staged",
        threads=2,
        watch=watch,
    )
    assert calls == [
        (
            "auto",
            Limits(
                optimal_in=PlanClass.STAGED,
                time_limit=3.0,
                threads=2,
                report=print,
                start=None,
                interrupted=watch.interrupted,
            ),
        )
    ]


def test_graphs_at_their_edges() -> None:
    one = ComputeCosts((NodeCost("a", time=1, bytes=5),))
    plan = solve(one, budget=5)
    assert (plan.peak_bytes, plan.overhead, plan.optimal_in) == (5, 0.0, "any")
    assert "the computation of 'a' alone needs 5 bytes" in sentence(
        InfeasibleGraph, solve, one, budget=4
    )
    apart = ComputeCosts(tuple(NodeCost(name, time=1, bytes=5) for name in "abc"))
    assert solve(apart, budget=5).overhead == 0.0
    free = ComputeCosts((NodeCost("a", time=0, bytes=0), NodeCost("b", time=0, bytes=0)), ((0, 1),))
    assert solve(free, budget=1).time == 0.0
    towers = CostGraph((layer("a", 5, 9), layer("b", 5, 9), layer("c", 5, 9)), 2, edges=())
    assert solve(towers, budget=200).optimal_in == "any"


def test_more_operations_than_can_be_proven() -> None:
    half = 1000
    made = [NodeCost(f"f{i}", time=1 + i % 3, bytes=10) for i in range(half)]
    made += [NodeCost(f"b{i}", time=2, bytes=10, backward=True) for i in reversed(range(half))]
    joined = [(i, i + 1) for i in range(2 * half - 1)]
    joined += [(2 * half - 1 - i, i) for i in range(half + 1, 2 * half)]
    costs = ComputeCosts(tuple(made), tuple(joined), time_unit="t")
    peak = keep_all(costs.to_problem()).peak_bytes
    plan = solve(costs, budget=peak // 2)
    assert plan.peak_bytes <= peak // 2
    assert plan.status == "feasible"
    assert plan.kind in ("compute graph", "layer graph")
    assert "about which an optimum can be proven" in plan.note
    assert plan.note in str(plan)
    assert "takes at most" in sentence(
        UnsuitableMethod, solve, costs, budget=peak // 2, method="staged"
    )


# --- frontier -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sweep() -> Frontier:
    made = frontier(UNET, points=6)
    assert isinstance(made, Frontier)
    return made


def test_a_sweep_is_a_falling_sequence(sweep: Frontier) -> None:
    assert len(sweep) == len(sweep.points) == len(sweep.gaps) == len(sweep.plans)
    peaks, times = zip(*sweep, strict=True)
    assert list(peaks) == sorted(set(peaks))
    assert list(times) == sorted(set(times), reverse=True)
    assert sweep[-1] == (sweep.keep_all_peak_bytes, sweep.keep_all_time)
    assert sweep[:1] == sweep.points[:1]
    assert not sweep.exact
    assert not sweep.interrupted
    assert sweep.overhead(sweep.keep_all_time) == 0
    for plan, gap in zip(sweep.plans, sweep.gaps, strict=True):
        assert plan.replay().peak_bytes == plan.peak_bytes
        assert plan.gap == gap
        assert plan.budget_bytes is not None
        assert plan.time == solve(UNET, budget=plan.budget_bytes).time


def test_a_sweep_has_a_plan_for_any_budget(sweep: Frontier) -> None:
    for plan in sweep.plans:
        assert sweep.plan(budget=plan.peak_bytes).time == plan.time
    between = sweep.plan(budget=(sweep[-2][0] + sweep[-1][0]) // 2)
    assert between.time == sweep[-2][1]
    assert between.lower_bound_time <= solve(UNET, budget=between.budget_bytes).time
    most = sweep.plan(budget_gb=1, reserved=10)
    assert (most.time, most.status) == (sweep.keep_all_time, "optimal")
    assert (most.budget_bytes, most.reserved_bytes) == (10**9, 10)
    assert "alone needs" in sentence(InfeasibleGraph, sweep.plan, budget=10)


def test_a_sweep_has_so_many_budgets_at_most() -> None:
    message = sentence(InvalidBudget, frontier, UNET, points=1001)
    assert message == (
        "points must be at most 1,000 for a graph, each a budget to solve for, got 1001; give fewer"
    )


def test_budgets_that_coincide_are_solved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    path = ComputeCosts(tuple(NodeCost(name, time=1, bytes=2) for name in "abcd"), ((0, 3), (1, 2)))
    calls = answer(monkeypatch, infeasible(path.to_problem(), 2, 1, None))
    made = frontier(path, points=1000)
    assert isinstance(made, Frontier)
    floor, most = path.to_problem().floor[0], made.keep_all_peak_bytes
    assert len(calls) == len(made.failed) == most - floor > 0


def test_a_sweep_as_data_and_in_words(sweep: Frontier) -> None:
    record = json.loads(json.dumps(sweep.to_dict()))
    assert [(row["peak_bytes"], row["time"]) for row in record["points"]] == list(sweep.points)
    assert all(row["class"] in ("forward", "any") for row in record["points"])
    assert [row["gap"] for row in record["points"]] == list(sweep.gaps)
    assert [row["budget_bytes"] for row in record["failed"]] == [b for b, _ in sweep.failed]
    assert len(sweep.to_dict(sweep.points[:1])["points"]) == 1
    lines = str(sweep).splitlines()
    assert lines[0].startswith("u-net: 5 layers, 6 edges; keep-all needs ")
    assert lines[1].split("  ")[-1] == "optimal in class"
    assert len(sweep.table(2).splitlines()) <= len(lines)
    assert repr(sweep).startswith(f"<Frontier: {len(sweep)} points, ")


def test_each_budget_starts_from_the_one_below(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Method.solve
    starts: list[Any] = []
    budgets: list[int] = []
    found: list[Any] = []

    def watched(method: Method, problem: Any, budget: int, limits: Limits) -> Solution[Any]:
        starts.append(limits.start)
        budgets.append(budget)
        assert limits.time_limit == 30
        found.append(None)
        solution = real(method, problem, budget, limits)
        found[-1] = solution.schedule
        return solution

    monkeypatch.setattr(Method, "solve", watched)
    frontier(UNET, points=6)
    assert budgets == sorted(budgets)
    assert len(budgets) == 5  # nothing needs to be solved to keep everything
    for i, start in enumerate(starts):
        before = [steps for steps in found[:i] if steps is not None]
        assert start == (before[-1] if before else None)
        if start is not None:
            assert UNET.to_problem().replay(start).peak_bytes <= budgets[i]


def test_a_bound_holds_for_smaller_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver that proves more at the larger of two budgets."""
    graph = TR2.to_problem()
    good = solve(TR2, budget=3 * TR2_PEAK // 5, optimal_in="forward")
    assert isinstance(good, GraphPlan)
    least = graph.least_time
    best = round(good.time)

    def say(method: Method, problem: Any, budget: int, limits: Limits) -> Solution[Any]:
        if budget < good.peak_bytes:
            raise infeasible(problem, 1, 0, None)
        bound = best if budget > 4 * TR2_PEAK // 5 else least
        return Solution(good.schedule, good.peak_bytes, best, bound, PlanClass.FORWARD)

    monkeypatch.setattr(Method, "solve", say)
    made = frontier(TR2, points=8)
    assert isinstance(made, Frontier)
    assert [plan.time for plan in made.plans] == [best, least]
    assert made.plans[0].optimal_in == "forward"
    assert made.plans[0].budget_bytes is not None
    assert made.plans[0].budget_bytes < 4 * TR2_PEAK // 5
    assert made.failed
    assert all("method 'auto' came to its end" in why for _, why in made.failed)
    assert sentence(NoPlanFound, made.plan, budget=good.peak_bytes - 1).startswith(
        "the sweep has no plan within a budget of 2.943 KB (2.874 KiB): its smallest needs "
    )


def test_bounds_of_another_order_are_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = ComputeCosts(tuple(NodeCost(name, time=1, bytes=5) for name in "abc"), ((0, 2), (1, 2)))
    low, high = Nodes((0, 1, 0, 2)), Nodes((1, 0, 0, 0, 2))

    def say(method: Method, problem: Any, budget: int, limits: Limits) -> Solution[Any]:
        steps = low if budget == 15 else high
        bound = None if steps == high else 0
        return Solution.of(problem, steps, bound, PlanClass.STAGED)

    monkeypatch.setattr("scheduler.planning.graph.engine._budgets", lambda *_: [15, 16])
    monkeypatch.setattr(Method, "solve", say)
    made = frontier(apart)
    assert isinstance(made, Frontier)
    # The second order's bound, 5, is above what the first order reaches, 4.
    assert made.plans[0].time == 4.0
    assert made.plans[0].lower_bound_time <= 3.0


def test_a_sweep_that_is_interrupted() -> None:
    calls: list[int] = []

    def stop() -> bool:
        calls.append(1)
        return True

    made = frontier(UNET, points=6, watch=Watch(interrupted=stop))
    assert isinstance(made, Frontier)
    assert made.points == ((made.keep_all_peak_bytes, made.keep_all_time),)
    assert made.interrupted
    assert str(made).endswith("Interrupted: larger budgets were not tried.")


def test_few_points() -> None:
    assert frontier(UNET, points=1).points == ((UNET_PEAK, 57.0),)
    one = ComputeCosts((NodeCost("a", time=1, bytes=5),))
    assert frontier(one).points == ((5, 1.0),)
    for points in (0, -1, 2.5, True, "8"):
        message = sentence(InvalidBudget, frontier, UNET, points=points)
        assert message.startswith("points must be a whole number of at least 1, got ")


# --- compare ------------------------------------------------------------------------------------


def rows(comparison: object) -> dict[str, MethodRow]:
    assert isinstance(comparison, Comparison)
    return {row.label: row for row in comparison.rows}


def test_compare() -> None:
    budget = 3 * TR2_PEAK // 4
    comparison = compare(TR2, budget=budget, time_limit=10)
    by_label = rows(comparison)
    assert next(iter(by_label)) == "keep-all"
    assert list(by_label)[-2:] == ["staged (forward)", "staged (staged)"]
    assert {"greedy", "rounding", "intervals"} < set(by_label)
    assert not by_label["keep-all"].fits
    assert by_label["keep-all"].overhead == 0.0
    best = by_label["staged (forward)"]
    assert best.status == "optimal"
    assert best.time == solve(TR2, budget=budget).time
    for label, row in by_label.items():
        if row.time is not None and label != "keep-all":
            assert row.fits
            assert row.peak_bytes is not None
            assert row.peak_bytes <= budget
    assert comparison.optimal.fits
    assert comparison.conclusion().startswith("The best plan, of staged (")
    assert ": optimal in class " in comparison.conclusion()


def test_compare_as_data_and_in_words() -> None:
    comparison = compare(UNET, budget=UNET_PEAK - 1, time_limit=10)
    record = json.loads(json.dumps(comparison.to_dict()))
    assert record["size"] == "5 layers, 6 edges"
    assert record["time_limit"] == 10
    header, *table = comparison.table()
    assert header == list(record["rows"][0])
    assert "optimal_time_at_peak" not in header
    assert [row[0] for row in table] == [row["method"] for row in record["rows"]]
    text = str(comparison).splitlines()
    assert text[0].startswith("u-net: 5 layers, 6 edges, keep-all peak ")
    assert text[1].endswith("at most 10 s a method")
    assert text[3].split()[:2] == ["method", "peak"]
    assert any(line.startswith("intervals: method 'intervals' takes compute") for line in text)
    assert repr(comparison).startswith("<Comparison: ")


def test_compare_where_everything_fits_or_nothing_does() -> None:
    roomy = compare(UNET, budget=UNET_PEAK, time_limit=10)
    assert roomy.conclusion() == "Nothing needs to be recomputed within this budget."
    assert roomy.optimal.method == "keep-all"
    tight = compare(UNET, budget=1000, time_limit=10)
    assert not tight.optimal.fits
    assert tight.conclusion().startswith(
        "No plan of class 'staged' fits a budget of 1.000 KB (1000 B): in this order of layers"
    )
    assert [row.note for row in rows(tight).values()][1] == ""
    costs, problem = counterexample(0)
    proven = rows(compare(costs, budget=problem["budget"], time_limit=10))
    assert proven["staged (staged)"].note == (
        "no plan of class 'staged' fits in the given order of nodes"
    )
    assert "no node is marked as backward" in proven["staged (forward)"].note


def test_compare_where_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    floor, node = TR2.to_problem().floor
    answer(monkeypatch, infeasible(TR2.to_problem(), floor, node, None))
    ended = compare(TR2, budget=2500, time_limit=3)
    assert rows(ended)["rounding"].note == "ended without a plan"
    answer(monkeypatch, infeasible(TR2.to_problem(), floor, node, None, out_of_time=True))
    comparison = compare(TR2, budget=2500, time_limit=3)
    assert comparison.conclusion() == "No method found a plan within this budget."
    assert rows(comparison)["rounding"].note == "found no plan in 3 s"


def test_compare_that_is_interrupted() -> None:
    comparison = compare(TR2, budget=TR2_PEAK, watch=Watch(interrupted=lambda: True))
    by_label = rows(comparison)
    assert by_label["staged (staged)"].note == "not tried: interrupted"
    assert comparison.optimal.method == "keep-all"


def test_compare_counts_what_is_reserved() -> None:
    comparison = compare(UNET, budget=UNET_PEAK, reserved=1, time_limit=10)
    assert not rows(comparison)["keep-all"].fits
    assert "1 byte of it reserved" in str(comparison)
    assert "max_points limits" in sentence(
        UnsuitableMethod, compare, UNET, budget=UNET_PEAK, max_points=20
    )


def test_nothing_that_is_given_is_changed() -> None:
    record = UNET.to_dict()
    before = json.dumps(record)
    solve(record, budget=12_500)
    compare(record, budget=12_500, time_limit=5)
    frontier(record, points=2)
    assert json.dumps(record) == before
