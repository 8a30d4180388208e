"""From a solver's solution to a plan: nothing is handed out before it is replayed."""

from __future__ import annotations

from scheduler.common.errors import BUG, InfeasibleBudget
from scheduler.costs.costgraph import CostGraph
from scheduler.costs.keeps import policies_of
from scheduler.plans.plan import Plan
from scheduler.plans.text import peak_text
from solvers.graph.replay import GraphReplay
from solvers.graph.solution import GraphSolution
from solvers.problem import Chain
from solvers.replay import Replay, replay
from solvers.schedule import IllegalPlan, Item, keep_all, options_of
from solvers.solution import Infeasible, Solution

__all__ = ["certified", "check_claims", "infeasible"]


def certified(
    costs: CostGraph,
    chain: Chain,
    solution: Solution,
    *,
    method: str,
    budget_bytes: int | None,
    reserved_bytes: int = 0,
    seconds: float | None = None,
) -> Plan:
    """The plan of `solution`, replayed and held to its budget.

    Parameters
    ----------
    costs, chain
        The same problem, as it was given and in integers.
    solution
        What the solver says.
    method
        The solver's name.
    budget_bytes
        As it was asked for, `reserved_bytes` included; None: there is none to hold it to.
    reserved_bytes
        What was set aside.
    seconds
        How long solving took.

    Raises
    ------
    RuntimeError
        The solution is illegal, over its budget, or not what the solver says: a bug.
    """
    done = _replayed(chain, solution.items, method)
    check_claims(solution, done, method, budget_bytes, reserved_bytes)
    everything = replay(chain, keep_all(len(chain)))
    ticks = costs.ticks_per_unit
    return Plan(
        layers=tuple(layer.name for layer in chain.layers),
        items=solution.items,
        budget_bytes=budget_bytes,
        peak_bytes=done.peak_bytes,
        time=done.time / ticks,
        keep_all_peak_bytes=everything.peak_bytes,
        keep_all_time=everything.time / ticks,
        time_unit=costs.time_unit,
        method=method,
        status=solution.status.value,
        lower_bound_time=solution.lower_bound_time / ticks,
        costs_sha256=costs.sha256,
        reserved_bytes=reserved_bytes,
        solve_seconds=seconds,
        policies=policies_of(costs.layers, options_of(solution.items)),
        _costs=costs,
    )


def check_claims(
    solution: Solution | GraphSolution,
    done: Replay | GraphReplay,
    method: str,
    budget_bytes: int | None,
    reserved_bytes: int,
) -> None:
    """Hold what a solver says, of a chain or a graph, to its replay and to the budget.

    Raises
    ------
    RuntimeError
        They differ, or the plan is over the budget: a bug.
    """
    said = (solution.peak_bytes, solution.time)
    if (done.peak_bytes, done.time) != said or solution.lower_bound_time > done.time:
        raise RuntimeError(
            f"method {method!r} says peak and time {said} with the bound "
            f"{solution.lower_bound_time}, the replay gives {(done.peak_bytes, done.time)}: {BUG}"
        )
    if budget_bytes is not None and done.peak_bytes + reserved_bytes > budget_bytes:
        raise RuntimeError(
            f"the plan of method {method!r} needs {done.peak_bytes + reserved_bytes} bytes, more "
            f"than its budget of {budget_bytes}: {BUG}"
        )


def infeasible(
    chain: Chain, error: Infeasible, *, method: str, budget_bytes: int, reserved_bytes: int = 0
) -> InfeasibleBudget:
    """The error for a budget that no plan of the method fits, with the way out."""
    done = _replayed(chain, error.items, method)
    if done.peak_bytes != error.peak_bytes:
        raise RuntimeError(
            f"method {method!r} says a smallest peak of {error.peak_bytes} bytes, the replay "
            f"gives {done.peak_bytes}: {BUG}"
        )
    names = [layer.name for layer in chain.layers]
    return InfeasibleBudget(
        budget_bytes,
        done.peak_bytes + reserved_bytes,
        peak_text(done.peak_action, names),
        reserved_bytes,
        method,
    )


def _replayed(chain: Chain, items: tuple[Item, ...], method: str) -> Replay:
    try:
        return replay(chain, items)
    except IllegalPlan as error:
        raise RuntimeError(f"method {method!r} made an illegal plan ({error}): {BUG}") from error
