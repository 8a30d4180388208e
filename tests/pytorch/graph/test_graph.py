"""A graph's plan runs in torch: the same gradients, the forwards it says, the peak it says."""

from __future__ import annotations

import copy
from collections import Counter

import pytest

import scheduler
from scheduler.common.errors import InvalidPlan
from scheduler.pytorch import apply_graph, measure
from solvers.graph.methods import solve
from solvers.graph.schedule import Actions, LayerAction
from solvers.schedule import Forward
from solvers.solution import Infeasible, PlanClass
from tests.pytorch.graph.graph_models import (
    graph_case,
    graph_costs,
    keep_all,
    plain_step,
    random_plan,
    run_plan,
    step,
    traced,
)
from tests.pytorch.models import assert_equal

CASES = (
    "unet",
    "unet-blocks",
    "densenet",
    "densenet-blocks",
    "resnet",
    "resnet-inplace",
    "t5-blocks",
)


def check(name: str, actions: list[LayerAction], budget: int | None = None) -> None:
    """The same step to the last bit, each layer's forwards as planned, the peak as predicted."""
    ran, graph = run_plan(name, actions), traced(name)
    assert_equal(ran.left, plain_step(name))
    planned = Counter(a.layer for a in actions if isinstance(a, Forward))
    assert ran.forwards == {name: planned[i] for i, name in enumerate(graph.names)}
    by_module: Counter[str] = Counter()
    for i, node in enumerate(graph.nodes):
        for module in node.modules:
            by_module[module] += planned[i]
    assert ran.measured.forwards == by_module
    assert ran.measured.peak_bytes <= ran.predicted.peak_bytes
    assert ran.measured.peak_bytes == pytest.approx(ran.predicted.peak_bytes, rel=0.001)
    if budget is not None:
        assert ran.predicted.peak_bytes <= budget


@pytest.mark.parametrize("name", [*CASES, "t5"])
def test_keeping_everything(name: str) -> None:
    check(name, keep_all(graph_costs(name).to_layer_graph()))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("name", CASES)
def test_plans_made_by_chance(name: str, share: float) -> None:
    check(name, random_plan(graph_costs(name).to_layer_graph(), share, round(10 * share)))


def test_every_operation_of_an_encoder_and_a_decoder() -> None:
    check("t5", random_plan(graph_costs("t5").to_layer_graph(), 0.4, 0))


@pytest.mark.parametrize("share", [0.8, 0.6, 0.0], ids=["80%", "60%", "smallest"])
@pytest.mark.parametrize("name", ["unet-blocks", "densenet-blocks", "resnet", "t5-blocks"])
def test_plans_of_the_solver(name: str, share: float) -> None:
    graph = graph_costs(name).to_layer_graph()
    everything = graph.replay(graph.keep_all()).peak_bytes
    budget = int(share * everything)
    # To prove that the ResNet's operations fit nowhere below takes minutes.
    method = "greedy" if share == 0.0 and len(graph) > 15 else "auto"
    while True:
        try:
            solution = solve(graph, budget, method=method, optimal_in=PlanClass.FORWARD)
            break
        except Infeasible as error:
            assert share == 0.0
            budget = max(error.needs_bytes, budget + everything // 50)
    schedule = solution.schedule
    assert isinstance(schedule, Actions)
    check(name, list(schedule.steps), budget)
    assert budget < everything


def test_the_way_of_a_user() -> None:
    """Profile, solve, apply, measure, with a plan of a chain and of other leaves refused."""
    case, costs = graph_case("t5-blocks"), graph_costs("t5-blocks")
    plan = scheduler.solve(costs, budget=20_000_000, optimal_in="forward")
    assert plan.status == "optimal"
    model = copy.deepcopy(case.model)
    with apply_graph(plan, traced("t5-blocks"), model) as handle:
        measured = measure(model, case.inputs, case.loss_fn, case.leaves or ())
        assert_equal(step(model, case), plain_step("t5-blocks"))
    assert plan.peak_bytes - 64 <= measured.peak_bytes <= plan.peak_bytes <= 20_000_000
    assert measured.forwards == {name: plan.forwards[name] for name in case.leaves or ()}
    assert max(handle.forwards.values()) > min(handle.forwards.values())
    with pytest.raises(InvalidPlan, match="not those of the trace of T5"):
        apply_graph(plan, traced("t5"), model)
    chain = scheduler.solve(scheduler.CostGraph.example("gpt2-small"), budget="5GB")
    with pytest.raises(InvalidPlan, match="not those of the trace of T5"):
        apply_graph(chain, traced("t5-blocks"), model)


def test_what_is_freed_is_free() -> None:
    """A plan that drops what it can needs far less than one that keeps everything."""
    graph = graph_costs("t5-blocks").to_layer_graph()
    least = min(
        graph.replay(Actions(tuple(random_plan(graph, 1.0, s)))).peak_bytes for s in range(3)
    )
    assert least < 0.7 * graph.replay(graph.keep_all()).peak_bytes


def test_applying_changes_nothing_that_stays() -> None:
    case = graph_case("resnet")
    names = list(case.model.state_dict())
    with apply_graph(keep_all(traced("resnet")), traced("resnet"), case.model) as handle:
        assert list(case.model.state_dict()) == names
    handle.remove()
    assert "forward" not in vars(case.model)
