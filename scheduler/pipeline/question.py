"""What a caller asks of a pipeline, in the terms of the solver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypedDict

from scheduler.common.errors import InvalidBudget
from scheduler.common.units import parse_bytes
from scheduler.costs.costgraph import CostGraph
from scheduler.costs.readers import as_costs
from scheduler.pipeline.problem import orders_of, problem_of, runtime_of
from scheduler.planning.request import Budget, Watch, read_budget, read_count, read_seconds
from solvers.methods import Limits
from solvers.pipeline.problem import Order, Pipeline, Runtime


class PipelineFields(TypedDict, total=False):
    """The keywords of `solve_pipeline` and `compare_pipeline`.

    Attributes
    ----------
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
    """

    stages: int
    microbatches: int
    budget: object
    reserved: object
    reserved_gb: object
    schedule: str | Sequence[Order]
    runtime: str | Runtime
    communication_time: float
    input_bytes: int | None
    time_unit: str | None
    columns: Iterable[str] | None
    memory_limit: object
    time_limit: float | None
    watch: Watch | None


@dataclass(frozen=True)
class Question:
    """What is asked: costs, the same in integers on devices, budgets, limits.

    `schedule` is the name of the order in which microbatches run.
    """

    costs: CostGraph
    pipeline: Pipeline
    schedule: str
    sizes: tuple[Budget, ...]
    limits: Limits


def read_question(
    layer_costs: object,
    budget_gb: object = None,
    *,
    stages: object = None,
    microbatches: object = None,
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
) -> Question:
    """What `solve_pipeline` was asked; parameters and errors are its own."""
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
    sizes = tuple(read_budget(gb, size, reserved, reserved_gb, chain) for gb, size in one_by_one)
    name, orders = orders_of(schedule, count, batches)
    room = [size.available for size in sizes]
    pipeline = problem_of(costs, room, orders, communication_time, runtime_of(runtime))
    limit = None if memory_limit is None else parse_bytes(memory_limit, what="memory_limit")
    limits = Limits(
        memory_limit=limit,
        time_limit=None if time_limit is None else read_seconds(time_limit),
        interrupted=None if watch is None else watch.interrupted,
    )
    return Question(costs, pipeline, name, sizes, limits)


def _budgets(gb: object, size: object, stages: int) -> list[tuple[object, object]]:
    """Of each stage its number of GB and its budget, one of them None."""
    lists = [value if isinstance(value, list | tuple) else [value] * stages for value in (gb, size)]
    for values in lists:
        if len(values) != stages:
            raise InvalidBudget(
                f"{len(values)} budgets for {stages} stages; give one for each, or one for all"
            )
    return list(zip(*lists, strict=True))
