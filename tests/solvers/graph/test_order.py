"""Search over topological orders: against every order of small graphs."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from solvers.graph.heuristics.order import EXACT_NODES, original_schedule, reorder, reordered
from solvers.graph.problem import ComputeGraph, Node
from solvers.graph.schedule import Nodes
from solvers.problem import InvalidProblem
from solvers.schedule import Compute


def random_graph(seed: int, n: int, density: float = 0.4) -> ComputeGraph:
    draw = random.Random(seed)
    nodes = tuple(Node(f"n{i}", draw.randint(0, 9), draw.randint(0, 9)) for i in range(n))
    pairs = [(u, v) for v in range(n) for u in range(v)]
    return ComputeGraph(nodes, tuple(edge for edge in pairs if draw.random() < density))


def layered_graph(seed: int, depth: int, width: int) -> ComputeGraph:
    """Layers that each read a few nodes of the last; in the given order one layer after another."""
    draw = random.Random(seed)
    n = depth * width
    nodes = tuple(Node(f"n{i}", 1, draw.randint(1, 1000)) for i in range(n))
    edges = []
    for v in range(width, n):
        first = (v // width - 1) * width
        edges += [(u, v) for u in sorted(draw.sample(range(first, first + width), 2))]
    return ComputeGraph(nodes, tuple(edges))


def orders(graph: ComputeGraph, done: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    if len(done) == len(graph):
        yield done
    for v in range(len(graph)):
        if v not in done and all(u in done for u in graph.inputs[v]):
            yield from orders(graph, (*done, v))


def peak(graph: ComputeGraph, order: tuple[int, ...]) -> int:
    """Peak of an order; the replay refuses one that is not topological or not complete."""
    assert len(order) == len(graph)
    return graph.replay(Nodes(order)).peak_bytes


@pytest.mark.parametrize("seed", range(60))
def test_smallest_peak_of_all_orders(seed: int) -> None:
    graph = random_graph(seed, 1 + seed % 7)
    assert peak(graph, reorder(graph)) == min(peak(graph, order) for order in orders(graph))


@pytest.mark.parametrize("seed", range(10))
def test_annealing_alone_finds_the_smallest_peak(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = random_graph(seed, 12, 0.25)
    least = peak(graph, reorder(graph))
    monkeypatch.setattr("solvers.graph.heuristics.order._MOST_STEPS", 0)
    assert peak(graph, reorder(graph, rounds=20_000)) == least


@pytest.fixture
def _annealing_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solvers.graph.heuristics.order._MOST_STEPS", 0)


@pytest.mark.usefixtures("_annealing_only")
def test_annealing_improves_on_every_start_and_repeats_itself() -> None:
    graph = layered_graph(3, 10, 12)
    given = peak(graph, tuple(range(len(graph))))
    started = peak(graph, reorder(graph, rounds=0))
    found = reorder(graph, rounds=100_000, seed=5)
    assert peak(graph, found) < started <= given
    assert reorder(graph, rounds=100_000, seed=5) == found


@pytest.mark.usefixtures("_annealing_only")
def test_search_ends_within_the_budget() -> None:
    graph = layered_graph(3, 10, 12)
    given = peak(graph, tuple(range(len(graph))))
    assert reorder(graph, given) == tuple(range(len(graph)))
    least = peak(graph, reorder(graph, rounds=100_000))
    between = (peak(graph, reorder(graph, rounds=0)) + least) // 2
    assert least <= peak(graph, reorder(graph, between, rounds=100_000)) <= between


def test_search_can_be_interrupted() -> None:
    graph = layered_graph(1, 10, 12)
    assert peak(graph, reorder(graph, interrupted=lambda: True)) <= peak(
        graph, tuple(range(len(graph)))
    )


def test_sizes_near_the_limit_do_not_overflow() -> None:
    small = layered_graph(2, 6, 6)
    scale = (2**62 - 1) // sum(node.bytes for node in small.nodes)
    nodes = tuple(Node(node.name, 1, node.bytes * scale) for node in small.nodes)
    graph = ComputeGraph(nodes, small.edges)
    order = reorder(graph, rounds=50_000)
    assert peak(graph, order) == peak(small, order) * scale
    assert peak(graph, order) <= peak(graph, tuple(range(len(graph))))


def test_graphs_without_choice_or_without_edges() -> None:
    chain = ComputeGraph(
        tuple(Node(f"n{i}", 1, 5) for i in range(300)), tuple((i, i + 1) for i in range(299))
    )
    assert reorder(chain) == tuple(range(300))
    loose = ComputeGraph(tuple(Node(f"n{i}", 1, i) for i in range(2 * EXACT_NODES)))
    assert peak(loose, reorder(loose)) == 2 * EXACT_NODES - 1  # each is freed at once
    assert reorder(ComputeGraph((Node("only", 1, 0),))) == (0,)


def test_negative_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="rounds must not be negative"):
        reorder(random_graph(0, 3), rounds=-1)


@pytest.mark.parametrize("seed", range(10))
def test_reordered_graph_and_the_way_back(seed: int) -> None:
    graph = random_graph(seed, 7)
    order = reorder(graph)
    moved = reordered(graph, order)
    assert [node.name for node in moved.nodes] == [graph.nodes[v].name for v in order]
    # Computed twice in a row: the schedule is legal, and every node costs its time twice.
    twice = tuple(k for k in range(7) for _ in range(2))
    there = moved.replay(Nodes(twice))
    moments = [each._replace(action=Compute(order[each.action.layer])) for each in there.moments]
    back = graph.replay(Nodes(original_schedule(order, twice)))
    assert there._replace(moments=tuple(moments)) == back
    assert there.time == 2 * sum(node.time for node in graph.nodes)


def test_reordering_refuses_what_is_no_order() -> None:
    graph = ComputeGraph((Node("a", 1, 1), Node("b", 1, 1)), ((0, 1),))
    for wrong in ((0,), (0, 0), (0, 1, 1), (0, 2)):
        with pytest.raises(InvalidProblem, match="each of them once"):
            reordered(graph, wrong)
    with pytest.raises(InvalidProblem, match="against the order"):
        reordered(graph, (1, 0))
