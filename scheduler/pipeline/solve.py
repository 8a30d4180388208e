"""From costs, stages and budgets to the plan of a pipeline: solved, replayed, held to budgets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from scheduler.common.checks import filled, plain
from scheduler.common.errors import (
    BUG,
    InfeasibleBudget,
    InvalidBudget,
    InvalidCosts,
    NoPlanFound,
    SchedulerError,
    UnsuitableMethod,
)
from scheduler.common.text import did_you_mean, shown
from scheduler.common.units import parse_bytes
from scheduler.costs.costgraph import CostGraph
from scheduler.costs.layer import LayerCost
from scheduler.costs.readers import as_costs
from scheduler.pipeline.plan import PipelinePlan, Stage
from scheduler.planning.certify import certified
from scheduler.planning.engine import suited
from scheduler.planning.request import Watch, read_budget, read_count, read_seconds
from solvers import solution as chains
from solvers.methods import Limits
from solvers.pipeline import solve as solver
from solvers.pipeline.problem import SCHEDULES, Order, Pipeline, Runtime
from solvers.pipeline.replay import StageReplay, replay
from solvers.problem import InvalidProblem
from solvers.schedule import Item, Items

RUNTIMES = {
    "torch": Runtime(output_held=True, input_buffers="all", output_buffers=True, sends_held=True),
    "megatron": Runtime(),
}
"""By name: `torch.distributed.pipelining` of torch 2.13, which `benchmarks/pipelines.py` measures,
and Megatron-LM, which lets outputs go once they are sent."""


def solve_pipeline(
    layer_costs: object,
    budget_gb: object = None,
    *,
    stages: int,
    microbatches: int,
    budget: object = None,
    reserved: object = 0,
    reserved_gb: object = None,
    schedule: str | Sequence[Order] = "1f1b",
    runtime: str | Runtime = "torch",
    communication_time: float = 0.0,
    input_bytes: int | None = None,
    time_unit: str | None = None,
    columns: Iterable[str] | None = None,
    memory_limit: object = None,
    time_limit: float | None = None,
    watch: Watch | None = None,
) -> PipelinePlan:
    """Where to cut a chain into stages, and the plan of each, for the least time of a step.

    Exact over all contiguous cuts and all nested plans of every stage. The time of a step is the
    longest path through forwards and backwards of all microbatches in the order of the schedule.
    All gradients of parameters count as resident (`LayerCost.state_bytes`): microbatches add to
    them, and those of one layer are made anew in its backward and let go.

    Parameters
    ----------
    layer_costs
        Costs of a chain for one microbatch, in any form that `scheduler.solve` takes.
    budget_gb
        GB of each stage's device, one number, or a list with one for each stage.
    stages
        How many there are, one device each.
    microbatches
        Of one step.
    budget
        Instead of `budget_gb`: bytes or text, or a list with one for each stage.
    reserved, reserved_gb
        What comes off each budget: bytes, text, or a number of GB.
    schedule
        "1f1b" or "gpipe", or the orders of all stages: pairs ``("F", m)`` and ``("B", m)``.
    runtime
        "torch" or "megatron", or a `Runtime`.
    communication_time
        From a stage to the next, and back, in the time unit of the costs.
    input_bytes, time_unit, columns
        As in `scheduler.solve`.
    memory_limit
        Bytes, or text, for the sets of plans; default 1 GiB.
    time_limit
        Seconds for the choice of cuts, after which the best so far is returned with its gap.
    watch
        Who may end the search.

    Returns
    -------
    PipelinePlan
        Replayed, microbatch by microbatch, against the budget of each stage.

    Raises
    ------
    InvalidCosts
        The costs have no meaning, or are no chain.
    InvalidBudget
        A number of stages or microbatches, a budget or a limit has no meaning.
    InfeasibleBudget
        No cuts fit; says which stage needs most, and the smallest budget.
    NoPlanFound
        The search was ended before there was a plan.
    UnsuitableMethod
        The schedule or the runtime is unknown, or the chain is too long.
    """
    costs = as_costs(layer_costs, input_bytes=input_bytes, time_unit=time_unit, columns=columns)
    count = read_count("stages", stages, 1)
    if count > len(costs):
        raise InvalidBudget(
            f"{len(costs)} layers are no {count} stages: each takes one layer at least; ask for "
            f"1 to {len(costs)} stages"
        )
    batches = read_count("microbatches", microbatches, 1)
    one_by_one = _budgets(budget_gb, budget, count)
    chain = costs.to_chain()
    sizes = [read_budget(gb, size, reserved, reserved_gb, chain) for gb, size in one_by_one]
    name, orders = _orders(schedule, count, batches)
    pipeline = _problem(
        costs,
        tuple(size.available for size in sizes),
        orders,
        communication_time,
        _runtime(runtime),
    )
    limits = Limits(
        memory_limit=None
        if memory_limit is None
        else parse_bytes(memory_limit, what="memory_limit"),
        time_limit=None if time_limit is None else read_seconds(time_limit),
        interrupted=None if watch is None else watch.interrupted,
    )
    try:
        with suited():
            found = solver.solve(pipeline, limits)
    except solver.Infeasible as error:
        raise _refusal(costs, pipeline, sizes[0].reserved, error) from None
    done = replay(pipeline, found.cuts, found.plans)
    _check(pipeline, found, done)
    ticks = costs.ticks_per_unit
    return PipelinePlan(
        cuts=found.cuts,
        stages=tuple(
            _stage(costs, pipeline, found.cuts[s : s + 2], s, items, done[s])
            for s, items in enumerate(found.plans)
        ),
        microbatches=batches,
        schedule=name,
        time=found.time / ticks,
        lower_bound_time=found.lower_bound_time / ticks,
        time_unit=costs.time_unit,
        status=found.status.value,
        costs_sha256=costs.sha256,
    )


def _budgets(gb: object, size: object, stages: int) -> list[tuple[object, object]]:
    """Of each stage its number of GB and its budget, one of them None."""
    lists = [value if isinstance(value, list | tuple) else [value] * stages for value in (gb, size)]
    for values in lists:
        if len(values) != stages:
            raise InvalidBudget(
                f"{len(values)} budgets for {stages} stages; give one for each, or one for all"
            )
    return list(zip(*lists, strict=True))


def _orders(
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


def _runtime(runtime: str | Runtime) -> Runtime:
    if isinstance(runtime, Runtime):
        return runtime
    if isinstance(runtime, str) and runtime in RUNTIMES:
        return RUNTIMES[runtime]
    raise UnsuitableMethod(
        f"there is no runtime {shown(runtime)}{did_you_mean(runtime, RUNTIMES)} (known are "
        f"{', '.join(RUNTIMES)}, or a scheduler.pipeline.Runtime)"
    )


def _problem(
    costs: CostGraph,
    budgets: tuple[int, ...],
    orders: tuple[Order, ...],
    communication_time: float,
    runtime: Runtime,
) -> Pipeline:
    sent = plain(communication_time)
    if isinstance(sent, bool) or not isinstance(sent, int | float) or not 0 <= sent < 1e18:
        raise InvalidBudget(f"communication_time must be a number of at least 0, got {shown(sent)}")
    state = tuple(layer.state_bytes for layer in costs.layers)
    ticks = round(sent * costs.ticks_per_unit)
    try:
        return Pipeline(costs.to_chain(), state, budgets, orders, ticks, runtime)
    except InvalidProblem as error:
        raise InvalidCosts(str(error)) from None


def _refusal(
    costs: CostGraph, pipeline: Pipeline, reserved: int, error: solver.Infeasible
) -> SchedulerError:
    if error.missing is None:
        return NoPlanFound("no cuts were found in time; give a larger time_limit", out_of_time=True)
    budget = pipeline.budgets[error.stage] + reserved
    names = costs.names[error.first], costs.names[error.last]
    where = f"stage {error.stage} of {pipeline.stages} with layers {names[0]!r} to {names[1]!r}"
    return InfeasibleBudget(
        budget,
        budget + error.missing,
        where,
        reserved,
        lowered_by="more stages, fewer microbatches in flight or a smaller microbatch need less",
    )


def _check(pipeline: Pipeline, found: solver.Solution, done: Sequence[StageReplay]) -> None:
    """Nothing is handed out whose replay is over a budget or takes another time."""
    time = max(stage.runs[-1].end for stage in done)
    over = [s for s, stage in enumerate(done) if stage.peak_bytes > pipeline.budgets[s]]
    if over or time != found.time or found.lower_bound_time > time:
        raise RuntimeError(
            f"the solver says a time of {found.time}, the replay gives {time}, and stages {over} "
            f"are over their budgets: {BUG}"
        )


def _stage(
    costs: CostGraph,
    pipeline: Pipeline,
    span: tuple[int, ...],
    s: int,
    items: tuple[Item, ...],
    done: StageReplay,
) -> Stage:
    """One stage of the answer, its plan replayed as that of a chain of its own."""
    first, end = span
    layers = tuple(map(_first_as_again, costs.layers[first:end]))
    own = replace(costs, layers=layers, input_bytes=pipeline.chain.input_of(first))
    problem = own.to_chain()
    solution = chains.Solution.of(problem, Items(items), problem.least_time)
    ahead, back = (next(run for run in done.runs if run.kind == kind) for kind in "FB")
    ticks = costs.ticks_per_unit
    return Stage(
        plan=certified(own, problem, solution, method="optimal"),
        first=first,
        last=end - 1,
        peak_bytes=done.peak_bytes,
        budget_bytes=pipeline.budgets[s],
        state_bytes=sum(pipeline.state_bytes[first:end]),
        in_flight=pipeline.in_flight[s],
        forward_time=(ahead.end - ahead.start) / ticks,
        backward_time=(back.end - back.start) / ticks,
    )


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
