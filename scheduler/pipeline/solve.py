"""From costs, stages and budgets to the plan of a pipeline: solved, replayed, held to budgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scheduler.common.errors import BUG, InfeasibleBudget, NoPlanFound, SchedulerError
from scheduler.costs.costgraph import CostGraph
from scheduler.pipeline.plan import PipelinePlan, Stage
from scheduler.pipeline.problem import stage_costs
from scheduler.pipeline.question import PipelineFields, Question, read_question
from scheduler.planning.certify import certified
from scheduler.planning.engine import suited
from solvers import solution as chains
from solvers.pipeline import solve as solver
from solvers.pipeline.problem import Pipeline
from solvers.pipeline.replay import StageReplay, replay
from solvers.schedule import Item, Items

if TYPE_CHECKING:
    from typing_extensions import Unpack


def solve_pipeline(
    layer_costs: object, budget_gb: object = None, **fields: Unpack[PipelineFields]
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
    fields
        The keywords of `scheduler.pipeline.question.PipelineFields`, of which `stages` and
        `microbatches` are needed.

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
    return solved(read_question(layer_costs, budget_gb, **fields))


def solved(question: Question) -> PipelinePlan:
    """The plan that `solve_pipeline` gives."""
    costs, pipeline = question.costs, question.pipeline
    try:
        with suited():
            found = solver.solve(pipeline, question.limits)
    except solver.Infeasible as error:
        raise _refusal(costs, pipeline, question.sizes[error.stage].reserved, error) from None
    done = replay(pipeline, found.cuts, found.plans)
    _check(pipeline, found, done)
    ticks = costs.ticks_per_unit
    return PipelinePlan(
        cuts=found.cuts,
        stages=tuple(
            _stage(question, found.cuts[s : s + 2], s, items, done[s])
            for s, items in enumerate(found.plans)
        ),
        microbatches=pipeline.microbatches,
        schedule=question.schedule,
        time=found.time / ticks,
        lower_bound_time=found.lower_bound_time / ticks,
        time_unit=costs.time_unit,
        status=found.status.value,
        costs_sha256=costs.sha256,
        orders=pipeline.orders,
        runtime=pipeline.runtime,
        communication_time=pipeline.communication_time / ticks,
        _costs=costs,
    )


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
    question: Question, span: tuple[int, ...], s: int, items: tuple[Item, ...], done: StageReplay
) -> Stage:
    """One stage of the answer, its plan replayed as that of a chain of its own."""
    costs, pipeline, (first, end) = question.costs, question.pipeline, span
    own = stage_costs(costs, first, end)
    problem = own.to_chain()
    solution = chains.Solution.of(problem, Items(items), problem.least_time)
    ahead, back = done.times
    ticks = costs.ticks_per_unit
    return Stage(
        plan=certified(own, problem, solution, method="optimal"),
        first=first,
        last=end - 1,
        peak_bytes=done.peak_bytes,
        budget_bytes=question.sizes[s].asked,
        reserved_bytes=question.sizes[s].reserved,
        proven_bytes=pipeline.budgets[s],
        state_bytes=sum(pipeline.state_bytes[first:end]),
        in_flight=pipeline.in_flight[s],
        forward_time=ahead / ticks,
        backward_time=back / ticks,
    )
