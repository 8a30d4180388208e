"""Annealing of what runs again, the bound by gaps, and what an interrupted search claims."""

from __future__ import annotations

import contextlib
import random

import numpy as np
import pytest

from solvers.graph.exact.gaps import bound_by_gaps
from solvers.graph.heuristics import rerun, steps
from solvers.graph.heuristics.rerun import annealed
from solvers.graph.lowering import Run, lower
from solvers.graph.methods import solve
from solvers.graph.problem import ComputeGraph, Node
from solvers.graph.schedule import Nodes
from solvers.graph.search import Search
from solvers.solution import Infeasible, PlanClass
from tests.solvers.graph.graph_strategies import dense_nodes, replayed
from tests.solvers.graph.test_solve import REFERENCE, load


def budget_of(graph: ComputeGraph, share: float) -> int:
    return int(graph.replay(graph.keep_all()).peak_bytes * share)


@pytest.mark.parametrize("free", [True, False])
def test_memory_is_that_of_the_replay_after_any_moves(free: bool) -> None:
    graph = dense_nodes(3, 30)
    budget = budget_of(graph, 0.7)
    state, unit = steps.started(graph, budget, range(30))
    assert unit == 1
    best = np.empty(len(state.steps), np.int64)
    for seed in range(60):
        rerun._anneal(state, best, 0, 1 + 3 * seed, 500.0, 1.0, 1.0, seed, free, False)
        taken = state.places[0] >= 0
        order = state.steps[state.places[0][taken], 0]
        done = graph.replay(Nodes(tuple(order.tolist())))
        assert state.places[1][taken].tolist() == [m.during_bytes for m in done.moments]
        assert state.places[2][taken].tolist() == [m.after_bytes for m in done.moments]
        over = sum(max(0, m.during_bytes - budget) for m in done.moments)
        spent = done.time - graph.least_time
        assert (state.tally[steps.OVER], state.tally[steps.COST]) == (over, spent)
    assert len(order) > 30


@pytest.mark.parametrize("name", ["rlayer100", "tr2", "mlp16", "res4"])
def test_annealing_comes_close_to_what_is_proven(name: str) -> None:
    graph = load(name)
    plan_class = PlanClass.FORWARD if graph.is_training else PlanClass.STAGED
    for row in REFERENCE[name]["budgets"]:
        if row["status"].startswith("optimal"):
            offered: list[tuple[int, ...]] = []
            found = annealed(
                graph,
                row["budget_bytes"],
                range(len(graph)),
                offered.append,
                lambda: False,
                moves=60_000,
                forward=graph.is_training,
            )
            assert found is not None
            assert found == offered[-1]
            assert lower(graph).follows([Run(v) for v in found], plan_class)
            done = graph.replay(Nodes(found))
            assert done.peak_bytes <= row["budget_bytes"]
            assert row["bound_staged"] <= done.time <= 1.02 * row["best_time"]


def test_huge_sizes_and_no_times() -> None:
    small = dense_nodes(1, 25)
    nodes = tuple(Node(node.name, 0, node.bytes * 2**44) for node in small.nodes)
    graph = ComputeGraph(nodes, small.edges)
    budget = budget_of(graph, 0.85)
    found = annealed(
        graph, budget, range(25), lambda _: None, lambda: False, moves=20_000, free=True
    )
    assert found is not None
    assert graph.replay(Nodes(found)).peak_bytes <= budget


@pytest.mark.parametrize("seed", range(20))
def test_an_interrupted_search_claims_nothing_false(seed: int) -> None:
    draw = random.Random(seed)
    graph = dense_nodes(seed, draw.randint(6, 12))
    budget = budget_of(graph, draw.choice((0.6, 0.75, 0.9)))
    given = {"optimal_in": PlanClass.STAGED}
    try:
        exact: float = solve(graph, budget, **given).time
    except Infeasible as error:
        if error.plan_class is PlanClass.ANY:
            return
        exact = float("inf")
    search = Search(lower(graph), budget, PlanClass.STAGED)
    bound_by_gaps(search, None)
    assert search.lower_bound <= exact
    assert not search.infeasible or exact == float("inf")
    asked, stop = 0, draw.randint(1, 20)

    def interrupted() -> bool:
        nonlocal asked
        asked += 1
        return asked >= stop

    with contextlib.suppress(Infeasible):
        found = solve(graph, budget, interrupted=interrupted, **given)
        assert found.lower_bound_time <= exact <= found.time
        assert replayed(graph, found.schedule).peak_bytes <= budget


def test_gaps_prove_something() -> None:
    graph = load("rlayer100")
    row = REFERENCE["rlayer100"]["budgets"][0]
    search = Search(lower(graph), row["budget_bytes"], PlanClass.STAGED)
    bound_by_gaps(search, None)
    assert graph.least_time < search.lower_bound <= row["best_time"]
