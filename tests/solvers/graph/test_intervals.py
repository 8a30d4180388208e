"""Retention intervals against exhaustive search over staged schedules of small graphs."""

from __future__ import annotations

import heapq
import random
from itertools import combinations

import pytest

from solvers.graph.heuristics.intervals import LARGEST, solve_intervals
from solvers.graph.problem import ComputeGraph, Node
from solvers.graph.schedule import Nodes
from solvers.schedule import IllegalPlan


def random_graph(seed: int, n: int, *, backward: bool = False) -> ComputeGraph:
    """With `backward`, the second half of the nodes is."""
    draw = random.Random(seed)
    nodes = tuple(
        Node(f"n{i}", draw.randint(0, 9), draw.randint(0, 9), backward and i >= n // 2)
        for i in range(n)
    )
    pairs = [(u, v) for v in range(n) for u in range(v)]
    return ComputeGraph(nodes, tuple(edge for edge in pairs if draw.random() < 0.45))


def budgets(graph: ComputeGraph) -> list[int]:
    """From just below the floor to keep-all."""
    floor, top = graph.floor[0], graph.replay(Nodes(tuple(range(len(graph))))).peak_bytes
    return sorted({floor - 1, floor, (2 * floor + top) // 3, (floor + 2 * top) // 3, top})


def staged_optimum(graph: ComputeGraph, budget: int, most: int, forward: bool) -> int | None:
    """Least time of a staged schedule that computes each node up to `most` times.

    Shortest path over (stage, what is live between stages, how often each was computed). In a
    stage every subset of the earlier nodes is tried; between stages everything live is kept or
    dropped at will, which is the same as dropping it after its last use.
    """
    n = len(graph)
    start = (0, frozenset[int](), (0,) * n)
    heap: list[tuple[int, int, tuple[int, frozenset[int], tuple[int, ...]]]] = [(0, 0, start)]
    settled = set()
    pushed = 0
    while heap:
        time, _, state = heapq.heappop(heap)
        if state in settled:
            continue
        settled.add(state)
        stage, live, counts = state
        if stage == n:
            return time
        allowed = [
            i
            for i in range(stage)
            if counts[i] < most
            and not (forward and (graph.nodes[i].backward or not graph.nodes[stage].backward))
        ]
        for size in range(len(allowed) + 1):
            for again in combinations(allowed, size):
                for after in _after(graph, budget, live, (*again, stage)):
                    counted = tuple(counts[i] + (i == stage or i in again) for i in range(n))
                    added = sum(graph.nodes[i].time for i in (*again, stage))
                    pushed += 1
                    heapq.heappush(heap, (time + added, pushed, (stage + 1, after, counted)))
    return None


def _after(
    graph: ComputeGraph, budget: int, live: frozenset[int], steps: tuple[int, ...]
) -> set[frozenset[int]]:
    """What can be live after `steps`, with drops at any time between them."""
    states = {live}
    for v in steps:
        reached = set()
        for state in states:
            if not all(u in state for u in graph.inputs[v]):
                continue
            for size in range(len(state) + 1):
                for kept in combinations(sorted(state), size):
                    held = frozenset(kept) | {v}
                    if not all(u in held for u in graph.inputs[v]) or (v in kept):
                        continue
                    if sum(graph.nodes[u].bytes for u in held) <= budget:
                        reached.add(held if graph.consumers[v] else held - {v})
        states = reached
    return states


def check(graph: ComputeGraph, budget: int, most: int, forward: bool) -> None:
    best = staged_optimum(graph, budget, most, forward)
    found = solve_intervals(
        graph, budget, most_intervals=most, time_limit=None, forward_only=forward
    )
    if best is None:
        assert found is None
        return
    assert found is not None
    replay = graph.replay(Nodes(found))
    assert replay.peak_bytes <= budget
    assert replay.time == best
    if forward:
        assert_forward(graph, found)


def assert_forward(graph: ComputeGraph, schedule: tuple[int, ...]) -> None:
    seen: set[int] = set()
    for v, after in zip(schedule, (*schedule[1:], schedule[-1]), strict=True):
        if v in seen:
            assert not graph.nodes[v].backward
            assert after in seen or graph.nodes[after].backward
        seen.add(v)


@pytest.mark.parametrize("seed", range(16))
def test_optimum_of_the_staged_schedules(seed: int) -> None:
    # A node in one of n places has at most n computations, so n intervals restrict nothing.
    graph = random_graph(seed, 3 + seed % 3)
    for budget in budgets(graph):
        check(graph, budget, len(graph), False)


@pytest.mark.parametrize("seed", range(12))
def test_optimum_with_two_intervals(seed: int) -> None:
    graph = random_graph(100 + seed, 5 + seed % 2)
    for budget in budgets(graph):
        check(graph, budget, 2, False)


@pytest.mark.parametrize("seed", range(12))
def test_optimum_of_the_forward_schedules(seed: int) -> None:
    graph = random_graph(200 + seed, 6, backward=True)
    for budget in budgets(graph):
        check(graph, budget, 3, True)


def chain(n: int, size: int = 10, time: int = 3) -> ComputeGraph:
    """A chain of n layers unrolled: each backward reads its layer's input and the gradient."""
    nodes = [Node(f"f{i}", time + i, size) for i in range(n)]
    nodes += [Node(f"b{i}", 2 * time, size, True) for i in reversed(range(n))]
    edges = {(i, i + 1) for i in range(2 * n - 1)}
    edges |= {(i - 1, 2 * n - 1 - i) for i in range(1, n)}
    return ComputeGraph(tuple(nodes), tuple(sorted(edges)))


def test_more_intervals_reach_smaller_budgets() -> None:
    graph = chain(8)
    for budget, least in ((80, 2), (50, 2), (40, 3)):
        for most in (1, 2, 3):
            found = solve_intervals(graph, budget, most_intervals=most, time_limit=None)
            assert (found is not None) == (most >= least)
            if found is not None:
                assert max(found.count(v) for v in found) <= most
                assert graph.replay(Nodes(found)).peak_bytes <= budget


def test_keep_all_is_returned_where_it_fits() -> None:
    graph = chain(4)
    top = graph.replay(Nodes(tuple(range(8)))).peak_bytes
    assert solve_intervals(graph, top, time_limit=0) == tuple(range(8))
    assert solve_intervals(graph, top - 1, time_limit=0) is None


def test_same_arguments_same_schedule() -> None:
    graph = chain(6)
    runs = {solve_intervals(graph, 60, time_limit=None, workers=2, seed=7) for _ in range(3)}
    assert len(runs) == 1
    assert None not in runs


def test_a_hint_that_fits_is_never_lost() -> None:
    graph = chain(6)
    found = solve_intervals(graph, 60, time_limit=None)
    assert found is not None
    again = next(step for step, v in enumerate(found) if v in found[:step])
    wasteful = (*found[: again + 1], found[again], *found[again + 1 :])
    # Nothing is left to the search; the computation that nobody needs goes all the same.
    for late in ({"time_limit": 0.0}, {"time_limit": None, "interrupted": lambda: True}):
        kept = solve_intervals(graph, 60, hint=wasteful, **late)
        assert kept is not None
        assert graph.replay(Nodes(kept)).peak_bytes <= 60
        assert graph.replay(Nodes(kept)).time <= graph.replay(Nodes(found)).time
    assert solve_intervals(graph, 60, time_limit=None, interrupted=lambda: True) is None
    best = solve_intervals(graph, 60, time_limit=None, hint=wasteful)
    assert best is not None
    assert graph.replay(Nodes(best)).time == graph.replay(Nodes(found)).time


def test_search_is_interrupted_while_it_runs() -> None:
    asked = 0

    def interrupted() -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    graph = chain(40)
    found = solve_intervals(graph, 120, time_limit=None, interrupted=interrupted)
    assert asked > 3
    assert found is None or graph.replay(Nodes(found)).peak_bytes <= 120


def test_search_beyond_the_first_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    # With no time for a proof, the strategies in turn have to find what fits, and improve it.
    monkeypatch.setattr("solvers.graph.heuristics.intervals._SHARE", 1e-9)
    graph = chain(6)
    best = solve_intervals(graph, 60, time_limit=60.0, workers=2)
    assert best is not None
    replay = graph.replay(Nodes(best))
    assert replay.peak_bytes <= 60
    proven = solve_intervals(graph, 60, time_limit=None)
    assert replay.time == graph.replay(Nodes(proven or ())).time


@pytest.mark.parametrize("seed", range(6))
def test_huge_costs_stay_on_the_safe_side(seed: int) -> None:
    draw = random.Random(seed)
    small = chain(6)
    # Odd sizes near the limit have no common unit: they are rounded up, and the plan must fit.
    nodes = tuple(
        Node(node.name, 2**53 + draw.randrange(2**40), 2**58 + draw.randrange(2**50))
        for node in small.nodes
    )
    graph = ComputeGraph(nodes, small.edges)
    budget = 6 * 2**58 + 2**53
    found = solve_intervals(graph, budget, time_limit=None)
    assert found is not None
    assert graph.replay(Nodes(found)).peak_bytes <= budget
    assert len(found) == len(solve_intervals(small, 60, time_limit=None) or ())


def test_large_graphs_are_left_to_the_hint() -> None:
    graph = chain(LARGEST // 2 + 1)
    top = graph.replay(Nodes(tuple(range(len(graph))))).peak_bytes
    assert solve_intervals(graph, top - 1, time_limit=None) is None


def test_bad_arguments_are_refused() -> None:
    graph = chain(3)
    for most, workers in ((0, 1), (2, 0)):
        with pytest.raises(ValueError, match="must be 1 or more"):
            solve_intervals(graph, 9, most_intervals=most, workers=workers, time_limit=None)
    with pytest.raises(IllegalPlan):
        solve_intervals(graph, 30, time_limit=None, hint=(1, 0))
