"""Exhaustive search, the oracle's own searches and the quoted formulation, against each other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.graph.exact.exhaustive import MOST_OPERATIONS, solve_any
from solvers.graph.problem import ComputeGraph, Graph, LayerGraph, Node
from solvers.graph.schedule import GraphSchedule, Nodes
from solvers.problem import Layer
from solvers.schedule import Action, Backward, Compute, Forward
from solvers.solution import Infeasible, PlanClass, Solution, Status, Unsuitable
from tests.oracles import graph_oracle
from tests.oracles.bigm import best_staged_by_big_m
from tests.oracles.graph_oracle import best_any, best_staged
from tests.solvers.graph.graph_strategies import (
    compute_graphs,
    dense_layers,
    dense_nodes,
    examples,
    layer_actions,
    layer_graphs,
    replayed,
    schedules,
    training_graphs,
)
from tests.solvers.graph.test_solve import COUNTEREXAMPLES, as_graph


def peak_and_time(graph: Graph, steps: tuple[Any, ...]) -> tuple[int, int]:
    """By the oracle."""
    if isinstance(graph, ComputeGraph):
        outcome = graph_oracle.simulate_schedule(graph, steps)
    else:
        outcome = graph_oracle.simulate_actions(graph, steps)
    return outcome.peak, outcome.time


def solved(graph: Graph, budget: int) -> Solution[GraphSchedule] | None:
    """The optimum over all schedules, its certificate checked; None: proven infeasible."""
    try:
        solution = solve_any(graph, budget)
    except Infeasible as error:
        failure = error
    else:
        check_solution(graph, budget, solution)
        return solution
    assert failure.plan_class is PlanClass.ANY
    floor, operation = graph.floor
    assert (failure.needs_bytes, failure.set_by) == (floor, action_of(graph, operation))
    return None


def check_solution(graph: Graph, budget: int, solution: Solution[GraphSchedule]) -> None:
    assert (solution.peak_bytes, solution.time) == peak_and_time(graph, solution.schedule.steps)
    assert solution.peak_bytes <= budget
    assert solution.status is Status.OPTIMAL
    assert solution.plan_class is PlanClass.ANY


def time_of(graph: Graph, budget: int) -> int | None:
    solution = solved(graph, budget)
    return None if solution is None else solution.time


def action_of(graph: Graph, operation: int) -> Action:
    """The operation at an index: nodes, or forwards, then backwards in reverse."""
    if isinstance(graph, ComputeGraph):
        return Compute(operation)
    forwards: list[Action] = [Forward(i, True) for i in range(len(graph))]
    return [*forwards, *(Backward(i) for i in reversed(range(len(graph))))][operation]


def peak_in_order(graph: Graph) -> int:
    """Peak of every operation once, in the given order."""
    return replayed(graph, graph.keep_all()).peak_bytes


def budgets(graph: Graph) -> st.SearchStrategy[int]:
    """Around where it is decided: from just below the floor to keep-all's peak."""
    low, high = graph.floor[0], peak_in_order(graph)
    return st.integers(max(0, low - 1), max(low, high)) | st.sampled_from(
        [max(0, low - 1), low, max(0, high - 1), high]
    )


@pytest.mark.parametrize("record", COUNTEREXAMPLES, ids=lambda record: str(record["name"]))
def test_counterexamples(record: dict[str, Any]) -> None:
    graph, budget = as_graph(record), record["budget"]
    assert graph.least_time == record["base_cost"]
    assert time_of(graph, budget) == record["optimal_any_order"]
    assert best_any(graph, budget) == record["optimal_any_order"]
    in_order = best_any(graph, budget, first_in_order=True)
    assert in_order == record["optimal_fixed_first_order_any_schedule"]
    assert best_staged(graph, budget) == record["optimal_staged"]


@examples(150)
@given(st.data())
def test_nodes_as_the_plain_search_says(data: st.DataObject) -> None:
    graph = data.draw(compute_graphs(max_nodes=6) | training_graphs(max_pairs=3))
    budget = data.draw(budgets(graph))
    assert time_of(graph, budget) == best_any(graph, budget)


@examples(150)
@given(st.data())
def test_layers_as_the_plain_search_says(data: st.DataObject) -> None:
    graph = data.draw(layer_graphs(max_layers=3))
    budget = data.draw(budgets(graph))
    assert time_of(graph, budget) == best_any(graph, budget)


def check_against_plain_search(graph: Graph) -> list[bool]:
    """At budgets from the floor up: is something recomputed, where something fits at all?"""
    low, high = graph.floor[0], peak_in_order(graph)
    recomputed = []
    for tenths in (0, 1, 3, 6):
        budget = low + (high - low) * tenths // 10
        time = time_of(graph, budget)
        assert time == best_any(graph, budget)
        if time is not None:
            recomputed.append(time > graph.least_time)
    return recomputed


def test_dense_nodes_as_the_plain_search_says() -> None:
    recomputed = [flag for s in range(30) for flag in check_against_plain_search(dense_nodes(s, 7))]
    assert 20 <= sum(recomputed) < len(recomputed)


def test_dense_layers_as_the_plain_search_says() -> None:
    recomputed = [
        flag for s in range(30) for flag in check_against_plain_search(dense_layers(s, 4))
    ]
    assert 20 <= sum(recomputed) < len(recomputed)


@examples(150)
@given(st.data())
def test_no_schedule_beats_it(data: st.DataObject) -> None:
    graph: Graph = data.draw(compute_graphs() | training_graphs() | layer_graphs(max_layers=5))
    steps: tuple[Any, ...]
    if isinstance(graph, ComputeGraph):
        steps = data.draw(schedules(graph))
    else:
        steps = data.draw(layer_actions(graph))
    peak, time = peak_and_time(graph, steps)
    assert peak >= graph.floor[0]
    solution = solved(graph, peak)
    assert solution is not None
    assert solution.time <= time


def check_classes(graph: Graph, budget: int) -> None:
    """Each class within the next, and nothing loses time where there is room for all."""
    best = time_of(graph, budget)
    staged = best_staged(graph, budget)
    forward = best_staged(graph, budget, forward_only=True)
    assert best is None or best >= graph.least_time
    if forward is not None:
        assert staged is not None
        assert staged <= forward
    if staged is not None:
        assert best is not None
        assert best <= staged
    if budget >= peak_in_order(graph):
        assert best == staged == forward == graph.least_time


@examples(150)
@given(st.data())
def test_classes_of_nodes(data: st.DataObject) -> None:
    graph = data.draw(compute_graphs() | training_graphs())
    check_classes(graph, data.draw(budgets(graph)))


@examples(150)
@given(st.data())
def test_classes_of_layers(data: st.DataObject) -> None:
    graph = data.draw(layer_graphs(max_layers=4))
    check_classes(graph, data.draw(budgets(graph)))


@examples(75)
@given(st.data())
def test_staged_as_every_choice_of_repeats_says(data: st.DataObject) -> None:
    graph = data.draw(compute_graphs(max_nodes=5))
    budget = data.draw(budgets(graph))
    forward_only = data.draw(st.booleans())
    allowed = []
    for t, last in enumerate(graph.nodes):
        before = [v for v in range(t) if not (forward_only and graph.nodes[v].backward)]
        allowed.append(before if last.backward or not forward_only else [])
    every: list[list[int]] = [[]]
    for t, before in enumerate(allowed):
        subsets = [[v for k, v in enumerate(before) if s >> k & 1] for s in range(1 << len(before))]
        every = [[*schedule, *subset, t] for schedule in every for subset in subsets]
    outcomes = [graph.replay(Nodes(tuple(schedule))) for schedule in every]
    times = [outcome.time for outcome in outcomes if outcome.peak_bytes <= budget]
    assert best_staged(graph, budget, forward_only) == min(times, default=None)


@examples(75)
@given(st.data())
def test_staged_as_the_quoted_formulation_says(data: st.DataObject) -> None:
    graph = data.draw(compute_graphs(max_nodes=6) | training_graphs(max_pairs=3))
    # Its solver adds in floats.
    nodes = tuple(Node(v.name, v.time % 50, v.bytes % 50, v.backward) for v in graph.nodes)
    graph = ComputeGraph(nodes, graph.edges)
    budget = data.draw(budgets(graph))
    assert best_staged_by_big_m(graph, budget) == best_staged(graph, budget)


def test_dense_graphs_as_the_quoted_formulation_says() -> None:
    times = []
    for seed in range(20):
        graph = dense_nodes(seed, 6)
        low, high = graph.floor[0], peak_in_order(graph)
        for tenths in (0, 1, 3):
            budget = low + (high - low) * tenths // 10
            time = best_staged(graph, budget)
            assert best_staged_by_big_m(graph, budget) == time
            times.append(None if time is None else time > graph.least_time)
    assert times.count(True) > 10
    assert times.count(None) > 0


def chain_of(count: int) -> ComputeGraph:
    """Nodes in a row, then the same in reverse, each reading its mate: a training graph."""
    n = 2 * count
    pairs = [(v, v + 1) for v in range(n - 1)] + [(v, n - 1 - v) for v in range(count - 1)]
    return ComputeGraph(tuple(Node(f"n{v}", 1, 1) for v in range(n)), tuple(pairs))


def test_a_graph_that_is_too_large_is_refused() -> None:
    with pytest.raises(Unsuitable, match=f"up to {MOST_OPERATIONS} operations, and this one has"):
        solve_any(chain_of(MOST_OPERATIONS), 1000)
    layers = tuple(Layer(f"l{i}", 1, 1, 1, 1, 1) for i in range(MOST_OPERATIONS // 2 + 1))
    with pytest.raises(Unsuitable, match=f"this one has {MOST_OPERATIONS + 2}"):
        solve_any(LayerGraph(layers), 1000)


def test_a_search_that_grows_too_large_gives_up() -> None:
    graph = chain_of(10)
    assert solve_any(graph, 5).time > graph.least_time
    with pytest.raises(Unsuitable, match="gave up after 20 states"):
        solve_any(graph, 5, most_states=20)


def test_an_interrupted_search_proves_nothing() -> None:
    graph = chain_of(11)
    asked = 0

    def second_time() -> bool:
        nonlocal asked
        asked += 1
        return asked > 1

    with pytest.raises(Infeasible) as failure:
        solve_any(graph, 5, interrupted=second_time)
    assert failure.value.plan_class is None
    assert asked == 2
    assert solve_any(graph, 5, interrupted=lambda: False) == solve_any(graph, 5)


def test_the_floor_names_its_operation() -> None:
    graph = chain_of(3)
    with pytest.raises(Infeasible) as failure:
        solve_any(graph, 2)
    assert (failure.value.needs_bytes, failure.value.plan_class) == (3, PlanClass.ANY)
    assert isinstance(failure.value.set_by, Compute)
    assert graph.inputs[failure.value.set_by.layer] == (1, 3)
    layers = (Layer("a", 1, 1, 10, 100, 1), Layer("b", 1, 1, 20, 200, 1, gradient_bytes=1000))
    with pytest.raises(Infeasible) as failure:
        solve_any(LayerGraph(layers, ((0, 1),), 5), 0)
    # The backward of a: a_-1, d_-1, a_0, d_0, W_0 and b's gradients; that of b: a_0, d_0, a_1,
    # d_1, W_1 and the same gradients.
    assert failure.value.set_by == Backward(1)
    assert failure.value.needs_bytes == 5 + 10 + 10 + 20 + 20 + 200 + 1000


def test_the_floor_counts_no_gradient_that_may_come_later() -> None:
    layers = (
        Layer("a", 1, 1, 1, 1000, 1, gradient_bytes=1),
        Layer("b", 1, 1, 1, 10, 1, gradient_bytes=100),
    )
    apart = LayerGraph(layers)
    # The forward of a: a_0, W_0, d_0; its backward has g besides, and runs while b's gradient d_1
    # is still live.
    assert apart.floor == (1 + 1000 + 1 + 1, 3)
    assert time_of(apart, 1003) is None
    assert time_of(apart, 1004) == best_any(apart, 1004) == apart.least_time


def test_one_node_and_no_edges() -> None:
    graph = ComputeGraph((Node("a", 5, 7),))
    assert time_of(graph, 7) == 5
    assert time_of(graph, 6) is None
    apart = ComputeGraph(tuple(Node(str(v), v, v) for v in range(12)))
    assert time_of(apart, 11) == apart.least_time
