"""The staged program against exhaustive search: random graphs of both kinds, every budget."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.graph.exact import staged
from solvers.graph.lowering import lower
from solvers.graph.problem import ComputeGraph, Graph, LayerGraph
from solvers.graph.schedule import Actions, GraphSchedule
from solvers.graph.search import Search
from solvers.problem import Layer
from solvers.schedule import Backward, Forward
from solvers.solution import PlanClass, Solution, Status
from tests.oracles.graph_oracle import best_staged
from tests.solvers.graph.graph_strategies import (
    compute_graphs,
    layer_graphs,
    replayed,
    training_graphs,
)


def peak_of_everything(graph: Graph) -> int:
    operations = lower(graph)
    return replayed(graph, operations.schedule(operations.everything())).peak_bytes


def budgets(graph: Graph) -> list[int]:
    """From below the floor to what needs nothing again."""
    floor, top = lower(graph).floor[0], peak_of_everything(graph)
    inner = {floor + (top - floor) * k // 4 for k in range(5)}
    return sorted({max(0, floor - 1), *inner})


def solved(graph: Graph, budget: int, plan_class: PlanClass) -> Solution[GraphSchedule] | None:
    """By the program alone, without the schedules that others find first."""
    search = Search(lower(graph), budget, plan_class)
    staged.prove(search)
    assert search.infeasible or search.time is not None
    return None if search.infeasible else search.solution()


def check(graph: Graph, budget: int, plan_class: PlanClass) -> None:
    truth = best_staged(graph, budget, forward_only=plan_class is PlanClass.FORWARD)
    found = solved(graph, budget, plan_class)
    if found is None:
        assert truth is None
        return
    assert found.time == truth
    assert found.status is Status.OPTIMAL
    replay = replayed(graph, found.schedule)
    assert (replay.time, replay.peak_bytes) == (found.time, found.peak_bytes)
    assert replay.peak_bytes <= budget


@given(compute_graphs(max_nodes=8), st.data())
@settings(max_examples=150, deadline=None)
def test_compute_graphs(graph: ComputeGraph, data: st.DataObject) -> None:
    budget = data.draw(st.sampled_from(budgets(graph)))
    for plan_class in (PlanClass.FORWARD, PlanClass.STAGED):
        check(graph, budget, plan_class)


@given(training_graphs(max_pairs=4), st.data())
@settings(max_examples=150, deadline=None)
def test_training_graphs(graph: ComputeGraph, data: st.DataObject) -> None:
    budget = data.draw(st.sampled_from(budgets(graph)))
    for plan_class in (PlanClass.FORWARD, PlanClass.STAGED):
        check(graph, budget, plan_class)


@given(layer_graphs(max_layers=4), st.data())
@settings(max_examples=150, deadline=None)
def test_layer_graphs(graph: LayerGraph, data: st.DataObject) -> None:
    budget = data.draw(st.sampled_from(budgets(graph)))
    for plan_class in (PlanClass.FORWARD, PlanClass.STAGED):
        check(graph, budget, plan_class)


def test_sizes_that_are_small_beside_the_budget_count() -> None:
    """Seven orders of magnitude below the budget, and still what decides."""
    sizes = [(0, 100, 0, 0), (499_999_999, 0, 2, 3), (0, 0, 0, 0), (0, 0, 0, 0)]
    layers = tuple(
        Layer(
            name=f"l{i}",
            forward_time=0,
            backward_time=0,
            output_bytes=x,
            saved_bytes=w,
            recompute_time=0,
            forward_transient_bytes=tf,
            drop_transient_bytes=td,
            input_saved=False,
            output_saved=False,
        )
        for i, (x, w, tf, td) in enumerate(sizes)
    )
    for plan_class in (PlanClass.FORWARD, PlanClass.STAGED):
        check(LayerGraph(layers), 10**9, plan_class)


def test_nothing_runs_between_the_forward_and_the_backward_of_the_last_layer() -> None:
    names = ("a", "b", "loss")
    layers = (Layer(name, 1, 1, 10, 10, 1, recomputable=name != "loss") for name in names)
    graph = LayerGraph(tuple(layers), ((0, 1), (1, 2)))
    begin = (Forward(0, False), Forward(1, True), Forward(2, True))
    end = (Backward(2), Backward(1), Backward(0))
    search = Search(lower(graph), 1000, PlanClass.FORWARD)
    assert search.offer_schedule(Actions((*begin, Forward(0, True), *end)))
    schedule = search.solution().schedule
    assert schedule == Actions((*begin, end[0], Forward(0, True), *end[1:]))
