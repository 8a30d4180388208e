"""Graphs whose order is free: what is said of them holds over all orders, or names its order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import permutations

import pytest

from solvers.graph import methods
from solvers.graph.methods import solve
from solvers.graph.problem import ComputeGraph, Node
from solvers.graph.schedule import GraphSchedule, Nodes
from solvers.solution import Infeasible, PlanClass, Solution, Status
from tests.oracles.graph_oracle import best_any, best_staged, simulate_schedule

# edges, times, sizes: too small in the given order for 32 bytes, not with n3 and n4 exchanged
STUCK = ComputeGraph(
    tuple(
        Node(f"n{i}", time, size)
        for i, (time, size) in enumerate([(0, 0), (10, 10), (10, 10), (1, 6), (9, 10), (3, 0)])
    ),
    (*((0, v) for v in range(1, 6)), (1, 2), (1, 4), (1, 5), (2, 3), (2, 4), (3, 5), (4, 5)),
)


def drawn(seed: int) -> ComputeGraph:
    draw = random.Random(seed)
    n = draw.randint(4, 6)
    nodes = tuple(Node(f"n{i}", draw.randint(0, 9), draw.randint(0, 9)) for i in range(n))
    pairs = [(u, v) for v in range(n) for u in range(v)]
    return ComputeGraph(nodes, tuple(pair for pair in pairs if draw.random() < 0.55))


def orders(graph: ComputeGraph) -> Iterator[ComputeGraph]:
    """The graph with its nodes in every order that its edges allow."""
    for order in permutations(range(len(graph))):
        place = {v: k for k, v in enumerate(order)}
        if all(place[u] < place[v] for u, v in graph.edges):
            edges = tuple((place[u], place[v]) for u, v in graph.edges)
            yield ComputeGraph(tuple(graph.nodes[v] for v in order), edges)


def best_of_all_orders(graph: ComputeGraph, budget: int) -> int | None:
    times = [best_staged(each, budget) for each in orders(graph)]
    return min((time for time in times if time is not None), default=None)


def answer(graph: ComputeGraph, budget: int) -> Solution[GraphSchedule] | Infeasible:
    try:
        return solve(graph, budget)
    except Infeasible as error:
        return error


@pytest.mark.parametrize("seed", range(60))
def test_small_graphs_are_solved_over_all_orders(seed: int) -> None:
    graph = drawn(seed)
    floor, top = graph.floor[0], graph.replay(graph.keep_all()).peak_bytes
    for budget in sorted({floor, (2 * floor + top) // 3, (floor + top) // 2, top - 1}):
        if not floor <= budget < top:
            continue
        staged = best_of_all_orders(graph, budget)
        found = answer(graph, budget)
        if isinstance(found, Infeasible):
            assert found.plan_class is PlanClass.ANY
            assert staged is best_any(graph, budget) is None
            continue
        assert isinstance(found.schedule, Nodes)
        done = simulate_schedule(graph, found.schedule.steps)
        assert (done.time, done.peak) == (found.time, found.peak_bytes)
        assert (found.status, found.plan_class) == (Status.OPTIMAL, PlanClass.ANY)
        assert found.time == best_any(graph, budget)
        assert staged is None or found.time <= staged


def test_a_plan_in_another_order_is_found() -> None:
    with pytest.raises(Infeasible) as given:
        solve(STUCK, 32, optimal_in=PlanClass.STAGED)
    assert given.value.plan_class is PlanClass.STAGED
    assert solve(STUCK, 32).time == 43 == best_of_all_orders(STUCK, 32)


def test_a_larger_graph_is_proven_in_its_order_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "_MOST_STATES", 1)
    with pytest.raises(Infeasible) as given:
        solve(STUCK, 32)
    assert given.value.plan_class is PlanClass.STAGED
