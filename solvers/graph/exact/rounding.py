"""Schedules from the relaxation: hold what it holds, run again what is then missing."""

from __future__ import annotations

from collections.abc import Iterator

from solvers.graph.exact.formulation import NONE, Formulation
from solvers.graph.heuristics.greedy import Keenness, by_distance, evicting
from solvers.graph.lowering import Run
from solvers.graph.milp import Floats

THRESHOLDS = (0.5, 0.9, 0.99, 0.25, 0.1, 0.01)


def roundings(formulation: Formulation, solution: Floats, budget: int) -> Iterator[list[Run]]:
    """Candidates, not all within the budget.

    First what the relaxation holds by at least a threshold (Jain et al. 2020, §5.3), over several;
    then eviction that frees first what the relaxation holds least.
    """
    for threshold in THRESHOLDS:
        yield _rounded(formulation, solution, threshold)
    operations, plan_class = formulation.operations, formulation.plan_class
    for weight in (1e-3, 1.0):
        wanted = _wanted_by(formulation, solution, weight)
        runs = evicting(operations, budget, plan_class, wanted)
        if runs is not None:
            yield runs


def _wanted_by(formulation: Formulation, solution: Floats, weight: float) -> Keenness:
    """What the relaxation holds into the next stage, ties by distance."""
    hold = formulation.hold
    nearness = by_distance(formulation.operations)

    def keenness(stage: int, value: int, time: float) -> float:
        column = hold.get((stage + 1, value), NONE)
        held = float(solution[column]) if column != NONE else 0.0
        return held + weight * nearness(stage, value, time)

    return keenness


def _rounded(formulation: Formulation, solution: Floats, threshold: float) -> list[Run]:
    operations = formulation.operations
    hold = formulation.hold
    live: set[int] = set()
    done: list[Run] = []
    for stage in range(len(operations)):
        for operation, keep in operations.missing(stage, live).items():
            done.append(Run(operation, keep))
            live |= operations.made(operation, keep=keep)
        saved = operations.saved[stage]
        held_after = hold.get((stage + 1, saved), NONE) if saved is not None else NONE
        keep = held_after != NONE and bool(solution[held_after] >= threshold)
        done.append(Run(stage, keep))
        live |= operations.made(stage, keep=keep)
        columns = ((v, hold.get((stage + 1, v), NONE)) for v in live)
        live = {v for v, column in columns if column != NONE and solution[column] >= threshold}
    return done
