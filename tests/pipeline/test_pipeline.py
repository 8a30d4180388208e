"""`solve_pipeline`: what it gives, prints and refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler import (
    CostGraph,
    InfeasibleBudget,
    InvalidBudget,
    InvalidCosts,
    LayerCost,
    UnsuitableMethod,
    solve,
    solve_pipeline,
)
from scheduler.pipeline import RUNTIMES, PipelinePlan, Runtime
from solvers.pipeline.problem import one_forward_one_backward

BLOCK = LayerCost(
    forward_time=3,
    backward_time=7,
    output_bytes=10**6,
    saved_bytes=8 * 10**6,
    state_bytes=10**7,
)
LAYERS = [replace(BLOCK, name=f"block {i}") for i in range(8)]


def run(costs: Any = LAYERS, **more: Any) -> PipelinePlan:
    given: dict[str, Any] = {
        "stages": 4,
        "microbatches": 8,
        "budget": "1GB",
        "input_bytes": 10**6,
        "runtime": "megatron",
    }
    return solve_pipeline(costs, **(given | more))


def test_with_memory_enough_nothing_runs_again() -> None:
    plan = run()
    assert plan.cuts == (0, 2, 4, 6, 8)
    assert plan.time == plan.lower_bound_time == (8 + 4 - 1) * 20
    assert plan.status == "optimal"
    assert plan.bubble == pytest.approx(3 / 11)
    assert [stage.in_flight for stage in plan.stages] == [4, 3, 2, 1]
    assert [stage.state_bytes for stage in plan.stages] == [2 * 10**7] * 4
    assert all(stage.plan.overhead == 0 for stage in plan.stages)


def test_each_stage_has_its_own_plan_within_its_budget() -> None:
    plan = run(budget="66MB")
    overheads = [stage.plan.overhead for stage in plan.stages]
    assert overheads[0] > overheads[-1] == 0
    for stage in plan.stages:
        assert stage.peak_bytes <= stage.budget_bytes == 66 * 10**6
        names = [layer.name for layer in LAYERS[stage.first : stage.last + 1]]
        assert list(stage.plan.layers) == names
    more = run(budget=["80MB", "66MB", "66MB", "66MB"])
    assert more.time <= plan.time
    assert [stage.budget_bytes for stage in more.stages] == [8 * 10**7] + [66 * 10**6] * 3
    assert (
        run(budget=None, budget_gb=0.066).time
        == run(budget="70MB", reserved="4MB").time
        == plan.time
    )


def test_one_stage_and_one_microbatch_is_a_chain() -> None:
    costs = CostGraph.example("gpt2-small")
    whole = solve(costs, budget="6GB")
    runtime = Runtime(gradient_buffer_in_forward=True)
    alone = solve_pipeline(
        replace(costs, layers=tuple(replace(la, gradient_bytes=0) for la in costs.layers)),
        stages=1,
        microbatches=1,
        budget="6GB",
        runtime=runtime,
    )
    assert alone.time <= whole.time  # which has the gradients of parameters in the budget
    assert alone.stages[0].peak_bytes == alone.stages[0].plan.peak_bytes


def test_torch_holds_more_than_megatron() -> None:
    peaks = {name: [stage.peak_bytes for stage in run(runtime=name).stages] for name in RUNTIMES}
    assert all(a > b for a, b in zip(peaks["torch"], peaks["megatron"], strict=True))


def test_orders_of_ones_own() -> None:
    orders = one_forward_one_backward(4, 8)
    assert run(schedule=orders).time == run().time
    assert run(schedule=orders).schedule == "custom"


def test_what_is_printed() -> None:
    text = str(run(budget="66MB"))
    assert "of 8 microbatches, 1f1b; devices wait" in text
    assert "optimal; no cuts and plans within the budgets take less than" in text
    assert text.splitlines()[-4].startswith("0      block 0 … block 1 (2)")
    assert max(map(len, text.splitlines())) <= 100
    assert repr(run()).startswith("<PipelinePlan: 4 stages, 8 microbatches, 1f1b, optimal, ")


@pytest.mark.parametrize(
    ("more", "error", "words"),
    [
        ({"stages": 9}, InvalidBudget, "8 layers are no 9 stages"),
        ({"stages": 0}, InvalidBudget, "stages must be a whole number of at least 1, got 0"),
        ({"microbatches": 1.5}, InvalidBudget, "microbatches must be a whole number"),
        ({"budget": ["1GB"] * 3}, InvalidBudget, "3 budgets for 4 stages; give one for each"),
        ({"budget": None}, InvalidBudget, "no budget given"),
        ({"budget": 40}, InvalidBudget, "40"),
        ({"schedule": "1fb1"}, UnsuitableMethod, "did you mean '1f1b'"),
        ({"schedule": "zbv"}, UnsuitableMethod, "split the backward, or have several stages"),
        ({"schedule": [1, 2]}, UnsuitableMethod, "for each stage its actions in order"),
        ({"schedule": one_forward_one_backward(3, 8)}, InvalidCosts, "3 orders for 4 stages"),
        ({"runtime": "deepspeed"}, UnsuitableMethod, "known are torch, megatron"),
        ({"communication_time": -1}, InvalidBudget, "at least 0, got -1"),
        ({"costs": {"forward_time": [1]}}, InvalidCosts, "backward_time"),
    ],
)
def test_what_is_refused(more: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        run(**more)


def test_the_smallest_budget_that_is_named_does() -> None:
    with pytest.raises(InfeasibleBudget, match="set by stage 0 of 4 with layers 'block 0'") as no:
        run(budget="30MB")
    least = no.value.smallest_budget_bytes
    assert run(budget=least).stages
    with pytest.raises(InfeasibleBudget):
        run(budget=least - 1)


def test_layers_of_a_graph_are_refused() -> None:
    skips = CostGraph(tuple(LAYERS), edges=(("block 0", "block 1"), ("block 0", "block 2")))
    with pytest.raises(InvalidCosts, match="no chain but a graph"):
        run(skips, input_bytes=None)
