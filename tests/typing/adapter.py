"""The torch adapter in use: mypy reads this file, nothing runs it; see `api`."""

from __future__ import annotations

from torch import Tensor, nn
from typing_extensions import assert_type

from scheduler import CostGraph, Plan, solve
from scheduler.pytorch import (
    CompileBudget,
    Coverage,
    Description,
    Handle,
    Measurement,
    Roofline,
    TracedGraph,
    Verification,
    apply,
    apply_graph,
    compile_budget,
    describe,
    measure,
    profile,
    profile_graph,
    trace,
    verify,
)


def loss(output: Tensor) -> Tensor:
    return output.sum()


def a_chain_of_blocks(model: nn.Module, inputs: Tensor) -> None:
    costs = profile(model, inputs, loss, blocks="h.*", options=True, gpu="h100")
    assert_type(costs, CostGraph)
    assert_type(describe(model, inputs, loss), Description)
    plan = solve(costs, budget_gb=40)
    with apply(plan, model, "h.*") as handle:
        assert_type(handle, Handle)
        assert_type(handle.report(), Coverage)
        assert_type(measure(model, {"x": inputs}, loss, fake=True), Measurement)
    assert_type(verify(plan, model, inputs, loss, device="fake"), Verification)
    apply(model, plan)  # type: ignore[call-overload]
    profile(model, inputs, "loss")  # type: ignore[arg-type]
    measure(model, inputs, blocks=3)  # type: ignore[arg-type]


def a_graph_of_layers(model: nn.Module, inputs: Tensor, roofline: Roofline) -> None:
    graph = trace(model, inputs, leaves=["encoder.*"])
    assert_type(graph, TracedGraph)
    plan: Plan = solve(profile_graph(model, inputs, roofline=roofline), "40GB")
    running = apply_graph(plan, graph, model)
    assert_type(running.forwards, dict[str, int])
    running.remove()
    apply_graph(plan, model, graph)  # type: ignore[arg-type]


def a_compiled_model(roofline: Roofline) -> None:
    assert_type(compile_budget("40GB", roofline=roofline), CompileBudget)
    compile_budget("40GB", effort="more")  # type: ignore[arg-type]
