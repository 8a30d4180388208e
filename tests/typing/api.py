"""The public interface in use: mypy reads this file, nothing runs it.

A line with `type: ignore` is a wrong use that must be an error: mypy, being strict, complains of an
ignore that nothing needs.
"""

from __future__ import annotations

from pathlib import Path

from typing_extensions import assert_type

from scheduler import (
    ComputeCosts,
    CostGraph,
    GraphPlan,
    InfeasibleBudget,
    LayerCost,
    NodeCost,
    Plan,
    SchedulerError,
    compare,
    frontier,
    solve,
)
from scheduler.export import Exported, export
from scheduler.memory import (
    Fit,
    Lora,
    Shape,
    State,
    costs_from_shape,
    fit,
    load_shape,
    training_state,
)


def costs_of_any_form(path: Path) -> None:
    layer = LayerCost("h.0", forward_time=1, backward_time=2, output_bytes=8, saved_bytes=64)
    assert_type(layer.forward_time, float)
    assert_type(layer.saved_bytes, int)
    costs = CostGraph((layer,), name="one", time_unit="ms")
    assert_type(costs.layers, tuple[LayerCost, ...])
    assert_type(CostGraph.load(path), CostGraph)
    assert_type(CostGraph.example("gpt2-small"), CostGraph)
    assert_type(CostGraph.example_names(), tuple[str, ...])
    assert_type(costs.to_json(), str)
    nodes = ComputeCosts((NodeCost("a", time=1, bytes=8),))
    for form in (costs, [layer], [layer.name], {"forward_time": [1.0]}, path, str(path), nodes):
        assert_type(solve(form, budget_gb=40), Plan)
    LayerCost("h.0", forward_time="1")  # type: ignore[arg-type, call-arg]
    CostGraph((layer,), unit="ms")  # type: ignore[call-arg]


def a_plan(costs: CostGraph) -> None:
    plan = solve(costs, budget="40GB", reserved="2GiB", method="optimal", max_points=64)
    assert_type(plan, Plan)
    assert_type(plan.layers, tuple[str, ...])
    assert_type(plan.peak_bytes, int)
    assert_type(plan.time, float)
    assert_type(plan.overhead, float)
    assert_type(plan.gap, float)
    assert_type(plan.budget_bytes, int | None)
    assert_type(plan.forwards, dict[str, int])
    assert_type(plan.replay().peak_bytes, int)
    assert_type(plan.timeline(costs), list[tuple[str, int, int]])
    assert_type(plan.to_json(), str)
    assert_type(Plan.load("plan.json"), Plan)
    same: Plan = GraphPlan.from_json(plan.to_json())
    same.peak_bytes = 0  # type: ignore[misc]
    print(same.peak_byte)  # type: ignore[attr-defined]
    solve(costs, 40, "optimal")  # type: ignore[call-arg]
    solve(costs, 40, methods="optimal")  # type: ignore[call-arg]
    solve(costs, 40, threads="all")  # type: ignore[arg-type]


def many_budgets(costs: CostGraph | ComputeCosts) -> None:
    curve = frontier(costs, max_points=64, time_limit=2.5)
    for peak_bytes, time in curve:
        assert_type(peak_bytes, int)
        assert_type(time, float)
    plan: Plan = curve.plan(budget="8GiB")
    assert_type(plan.status, str)
    rows = compare(costs, 40, against=["every 4"])
    for row in rows.rows:
        assert_type(row.method, str)
        assert_type(row.peak_bytes, int | None)
    frontier(costs, budget="8GiB")  # type: ignore[call-arg]
    compare(costs, 40, against=4)  # type: ignore[arg-type]


def an_error(costs: CostGraph) -> int | None:
    try:
        solve(costs, 1)
    except InfeasibleBudget as error:
        assert_type(error.smallest_budget_bytes, int)
    except SchedulerError as error:
        assert_type(str(error), str)
    return None


def another_framework(plan: Plan, costs: CostGraph) -> None:
    exported = export(plan, "megatron", costs, stages=4)
    assert_type(exported, Exported)
    assert_type(exported.text, str)
    assert_type(exported.notes, tuple[str, ...])
    export("plan.json", "megatron")  # type: ignore[arg-type]


def a_training_run(path: Path) -> None:
    shape = load_shape(path)
    assert_type(shape, Shape)
    assert_type(shape.parameters, int)
    result = fit(shape, gpu="h100", batch=4, train="lora", lora=Lora(rank=8), zero=3, gpus=8)
    assert_type(result, Fit)
    assert_type(result.fits, bool)
    assert_type(result.plan, Plan | None)
    assert_type(result.remedies[0].overhead, float | None)
    assert_type(solve(result.costs, 80, reserved_gb=20), Plan)
    assert_type(costs_from_shape(shape, 4, 4096, precision="bf16"), CostGraph)
    state = training_state(7e9, optimizer="adamw", precision="bf16-mixed", zero=3, gpus=8)
    assert_type(state, State)
    assert_type(state.total_bytes, int)
    fit(shape, batch="4")  # type: ignore[arg-type]
    training_state("7e9")  # type: ignore[arg-type]
