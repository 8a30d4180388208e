"""From a solver's solution to a plan: nothing is handed out before it is replayed."""

from __future__ import annotations

from typing import Any

from scheduler.common.errors import BUG
from scheduler.costs.readers import Costs
from scheduler.planning.request import Budget
from scheduler.plans.plan import Plan
from scheduler.plans.policies import chosen
from solvers.problem import Problem
from solvers.replay import Replay
from solvers.schedule import IllegalPlan, Schedule
from solvers.solution import Solution


def certified(
    costs: Costs,
    problem: Problem[Any],
    solution: Solution[Any],
    *,
    method: str,
    size: Budget | None = None,
    seconds: float | None = None,
) -> Plan:
    """The plan of `solution`, replayed and held to its budget.

    Parameters
    ----------
    costs, problem
        The same costs, as they were given and in integers.
    solution
        What the solver says.
    method
        The solver's name.
    size
        The budget; None: there is none to hold it to.
    seconds
        How long solving took.

    Raises
    ------
    RuntimeError
        The solution is illegal, over its budget, or not what the solver says: a bug.
    """
    done = replayed(problem, solution.schedule, method)
    said = (solution.peak_bytes, solution.time)
    if (done.peak_bytes, done.time) != said or solution.lower_bound_time > done.time:
        raise RuntimeError(
            f"method {method!r} says peak and time {said} with the bound "
            f"{solution.lower_bound_time}, the replay gives {(done.peak_bytes, done.time)}: {BUG}"
        )
    if size is not None and done.peak_bytes > size.available:
        raise RuntimeError(
            f"the plan of method {method!r} needs {done.peak_bytes + size.reserved} bytes, more "
            f"than its budget of {size.asked}: {BUG}"
        )
    everything = problem.replay(problem.keep_all())
    ticks = costs.ticks_per_unit
    return Plan(
        layers=problem.names,
        schedule=solution.schedule,
        budget_bytes=None if size is None else size.asked,
        peak_bytes=done.peak_bytes,
        time=done.time / ticks,
        keep_all_peak_bytes=everything.peak_bytes,
        keep_all_time=everything.time / ticks,
        time_unit=costs.time_unit,
        method=method,
        status=solution.status.value,
        lower_bound_time=solution.lower_bound_time / ticks,
        costs_sha256=costs.sha256,
        reserved_bytes=0 if size is None else size.reserved,
        solve_seconds=seconds,
        plan_class=solution.plan_class.value,
        note=solution.note,
        proven_bytes=None if size is None else size.available,
        **chosen(costs, solution.schedule.options()),
        _costs=costs,
    )


def replayed(problem: Problem[Any], schedule: Schedule, method: str) -> Replay:
    """What the schedule of a method does.

    Raises
    ------
    RuntimeError
        It is illegal: a bug.
    """
    try:
        return problem.replay(schedule)
    except IllegalPlan as error:
        raise RuntimeError(f"method {method!r} made an illegal plan ({error}): {BUG}") from error
