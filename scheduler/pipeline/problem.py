"""What the plan of a pipeline is solved and replayed on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scheduler.common.checks import filled, plain
from scheduler.common.errors import InvalidBudget, InvalidCosts, UnsuitableMethod
from scheduler.common.text import did_you_mean, shown
from scheduler.costs.costgraph import CostGraph
from scheduler.costs.layer import LayerCost
from solvers.pipeline.problem import SCHEDULES, Order, Pipeline, Runtime
from solvers.problem import InvalidProblem

RUNTIMES = {
    "torch": Runtime(output_held=True, input_buffers="all", output_buffers=True, sends_held=True),
    "megatron": Runtime(),
}
"""By name: `torch.distributed.pipelining` of torch 2.13, which `benchmarks/pipelines.py` measures,
and Megatron-LM, which lets outputs go once they are sent."""


def orders_of(
    schedule: str | Sequence[Order], stages: int, microbatches: int
) -> tuple[str, tuple[Order, ...]]:
    """The name of a schedule, and what each stage does."""
    if isinstance(schedule, str):
        name = schedule.lower()
        if name in SCHEDULES:
            return name, SCHEDULES[name](stages, microbatches)
        raise UnsuitableMethod(
            f"there is no schedule {shown(schedule)}{did_you_mean(name, SCHEDULES)} (the schedules "
            f"are {', '.join(SCHEDULES)}, or the orders of all stages); those that split the "
            "backward, or have several stages on a device, are not known"
        )
    try:
        orders = tuple(tuple((str(kind), int(m)) for kind, m in order) for order in schedule)
    except (TypeError, ValueError):
        raise UnsuitableMethod(
            "a schedule is a name, or for each stage its actions in order: pairs ('F', microbatch) "
            "and ('B', microbatch)"
        ) from None
    return "custom", orders


def runtime_of(runtime: str | Runtime) -> Runtime:
    """A runtime by its name."""
    if isinstance(runtime, Runtime):
        return runtime
    if isinstance(runtime, str) and runtime in RUNTIMES:
        return RUNTIMES[runtime]
    raise UnsuitableMethod(
        f"there is no runtime {shown(runtime)}{did_you_mean(runtime, RUNTIMES)} (known are "
        f"{', '.join(RUNTIMES)}, or a scheduler.pipeline.Runtime)"
    )


def problem_of(
    costs: CostGraph,
    budgets: Sequence[int],
    orders: tuple[Order, ...],
    communication_time: float,
    runtime: Runtime,
) -> Pipeline:
    """The costs in integers, on devices with these budgets."""
    sent = plain(communication_time)
    if isinstance(sent, bool) or not isinstance(sent, int | float) or not 0 <= sent < 1e18:
        raise InvalidBudget(f"communication_time must be a number of at least 0, got {shown(sent)}")
    state = tuple(layer.state_bytes for layer in costs.layers)
    ticks = round(sent * costs.ticks_per_unit)
    try:
        return Pipeline(costs.to_chain(), state, tuple(budgets), orders, ticks, runtime)
    except InvalidProblem as error:
        raise InvalidCosts(str(error)) from None


def stage_costs(costs: CostGraph, first: int, end: int) -> CostGraph:
    """The costs of a stage alone: a chain of the layers from `first` up to `end`."""
    layers = tuple(map(_first_as_again, costs.layers[first:end]))
    before = costs.layers[first - 1].output_bytes if first else costs.input_bytes
    return replace(costs, layers=layers, input_bytes=before)


def _first_as_again(layer: LayerCost) -> LayerCost:
    """The layer with the most that any of its forwards needs in all: a chain's last one must."""
    values = filled(layer)
    more = max(layer.first_transient_bytes, layer.again_transient_bytes)
    ahead = max(layer.forward_transient_bytes + more, values["ending_transient_bytes"])
    return replace(
        layer,
        first_transient_bytes=0,
        again_transient_bytes=0,
        forward_transient_bytes=ahead,
        drop_transient_bytes=values["drop_transient_bytes"] + more,
        ending_transient_bytes=None,
        options=tuple(
            replace(option, forward_transient_bytes=None, ending_transient_bytes=None)
            for option in layer.options
        ),
    )
