"""Every method of both tables on every kind of problem, with room for all and with little."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import pytest

from solvers.chain import methods as chain_methods
from solvers.chain.problem import Chain
from solvers.graph import methods as graph_methods
from solvers.graph.problem import ComputeGraph, LayerGraph, Node
from solvers.graph.schedule import Actions, Nodes
from solvers.methods import Limits, Method
from solvers.problem import Layer, Option
from solvers.schedule import Action, Backward, Compute, Forward, Items, Keep
from solvers.solution import Infeasible, PlanClass, Solution, Status, Unsuitable

METHODS: dict[str, Method] = {f"chain {name}": each for name, each in chain_methods.METHODS.items()}
METHODS |= {f"graph {name}": each for name, each in graph_methods.METHODS.items()}


def uneven_layers() -> tuple[Layer, ...]:
    half = Option("half", 20, 3)
    return (
        Layer("embed", 2, 3, 12, 5, 2, gradient_bytes=4),
        Layer("block", 7, 13, 8, 60, 6, 3, 20, 4, 2, 1, options=(half,)),
        Layer("wide", 9, 17, 30, 44, 8, drop_transient_bytes=10, options=(half,)),
        Layer("thin", 5, 11, 3, 70, 5, input_saved=False),
        Layer("head", 4, 6, 6, 9, 4, recomputable=False),
    )


def training_graph() -> ComputeGraph:
    """A row of nodes, then their backwards, each of which reads its mate."""
    forward = [Node(f"f{i}", 3 + i, 10 + i) for i in range(6)]
    backward = [Node(f"b{i}", 7, 2, backward=True) for i in reversed(range(6))]
    edges = [(v - 1, v) for v in range(1, 12)] + [(v, 11 - v) for v in range(5)]
    return ComputeGraph((*forward, *backward), tuple(edges))


def free_graph() -> ComputeGraph:
    """Two values, each read early and late."""
    sizes = (40, 5, 40, 5, 8, 4, 8)
    nodes = tuple(Node(f"n{v}", 2 + v, size) for v, size in enumerate(sizes))
    return ComputeGraph(nodes, ((0, 1), (1, 2), (2, 3), (3, 4), (0, 5), (4, 5), (2, 6), (5, 6)))


def skipping_graph() -> LayerGraph:
    layers = tuple(Layer(f"l{i}", 3 + i, 6, 8, 40 + i, 3, 2, 4, 1, 0, 1) for i in range(6))
    return LayerGraph(layers, ((0, 1), (1, 2), (2, 3), (0, 3), (3, 4), (4, 5)), 8)


@dataclass(frozen=True)
class Case:
    """A problem, what keeping everything peaks at, a budget near the least, and its optimum."""

    problem: Any
    keep_all_bytes: int
    tight_bytes: int
    tight_time: int
    least_bytes: int


CASES = {
    "uniform chain": Case(Chain((Layer("l", 5, 9, 10, 40, 4, 1, 2, 3),) * 5, 10), 283, 93, 116, 93),
    "uneven chain": Case(Chain(uneven_layers(), 7), 272, 127, 93, 127),
    "free graph": Case(free_graph(), 93, 52, 44, 52),
    "training graph": Case(training_graph(), 77, 31, 100, 29),
    "skipping graph": Case(skipping_graph(), 329, 111, 97, 103),
}
PROOFS = ("chain optimal", "chain brute", "graph staged", "graph exhaustive", "graph auto")
ALWAYS_AGAIN = {"every-layer", "uniform-sqrt", "uniform-ratio", "binomial"}
"""Methods of chains whose plans run something again even where everything fits."""

methods = pytest.mark.parametrize("name", METHODS)
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def suits(name: str, problem: Any) -> bool:
    """Whether a method must accept the problem."""
    if name == "chain binomial" and isinstance(problem, Chain):
        return len({layer.facts for layer in problem.layers}) == 1
    return type(problem) in METHODS[name].problems


def solve(name: str, problem: Any, budget: int) -> Solution[Any]:
    """The method's schedule, with what the solution says of it checked."""
    method = METHODS[name]
    found = method.solve(problem, budget, Limits(time_limit=60) if method.takes else None)
    replay = problem.replay(found.schedule)
    assert (found.peak_bytes, found.time) == (replay.peak_bytes, replay.time)
    assert found.peak_bytes <= budget
    assert problem.least_time <= found.lower_bound_time <= found.time
    assert (found.status is Status.OPTIMAL) == (found.lower_bound_time == found.time)
    return found


def keep_all(problem: Any) -> Any:
    """Everything once, in order."""
    n = len(problem)
    if isinstance(problem, Chain):
        return Items(tuple(Keep(i) for i in range(n)))
    if isinstance(problem, ComputeGraph):
        return Nodes(tuple(range(n)))
    forwards = tuple(Forward(i, True) for i in range(n))
    return Actions((*forwards, *(Backward(i) for i in reversed(range(n)))))


@cases
def test_keeping_everything(case: Case) -> None:
    problem = case.problem
    assert problem.keep_all() == keep_all(problem)
    replay = problem.replay(problem.keep_all())
    assert (replay.peak_bytes, replay.time) == (case.keep_all_bytes, problem.least_time)
    moment = replay.moments[replay.peak_at]
    assert moment.during_bytes == replay.peak_bytes
    assert moment.action == replay.peak_action
    assert sum(moment.ticks for moment in replay.moments) == replay.time


@cases
@methods
def test_with_room_for_everything(name: str, case: Case) -> None:
    if not suits(name, case.problem):
        with pytest.raises(Unsuitable):
            solve(name, case.problem, case.keep_all_bytes)
        return
    found = solve(name, case.problem, case.keep_all_bytes)
    if name.removeprefix("chain ") not in ALWAYS_AGAIN:
        assert found.time == case.problem.least_time
        assert found.status is Status.OPTIMAL


@cases
@methods
def test_with_little_room(name: str, case: Case) -> None:
    try:
        found = solve(name, case.problem, case.tight_bytes)
    except Unsuitable:
        assert not suits(name, case.problem)
    except Infeasible as failure:
        assert suits(name, case.problem)
        assert name not in PROOFS
        check_failure(case, case.tight_bytes, failure)
    else:
        assert suits(name, case.problem)
        assert found.lower_bound_time <= case.tight_time <= found.time
        if name in PROOFS:
            assert found.time == case.tight_time
            assert found.status is Status.OPTIMAL


@cases
@methods
def test_with_too_little_room(name: str, case: Case) -> None:
    budget = case.least_bytes - 1
    if not suits(name, case.problem):
        with pytest.raises(Unsuitable):
            solve(name, case.problem, budget)
        return
    with pytest.raises(Infeasible) as error:
        solve(name, case.problem, budget)
    check_failure(case, budget, error.value)
    assert error.value.plan_class is not None
    if name in PROOFS:
        assert error.value.needs_bytes == case.least_bytes


def check_failure(case: Case, budget: int, failure: Infeasible) -> None:
    """A chain's carries the schedule that needs the least; a graph's says what any needs."""
    problem = case.problem
    assert not failure.out_of_time
    if isinstance(problem, Chain):
        replay = problem.replay(failure.schedule)
        assert failure.needs_bytes == replay.peak_bytes > budget
        assert failure.set_by == replay.peak_action
        assert failure.plan_class is PlanClass.PERSISTENT
        return
    assert failure.schedule is None
    assert failure.needs_bytes == case.least_bytes
    assert failure.set_by == action_of(problem, problem.floor[1])


def action_of(problem: Any, operation: int) -> Action:
    n = len(problem)
    if isinstance(problem, ComputeGraph):
        return Compute(operation)
    return Forward(operation, True) if operation < n else Backward(2 * n - 1 - operation)


@cases
@methods
def test_other_kinds_are_unsuitable(name: str, case: Case) -> None:
    method, problem = METHODS[name], case.problem
    if type(problem) in method.problems:
        return
    with pytest.raises(Unsuitable) as error:
        method.solve(problem, case.keep_all_bytes)
    assert f"method {method.name!r} takes " in str(error.value)
    assert str(error.value).endswith(f", not {type(problem).what}")


def test_tables() -> None:
    for table in (chain_methods.METHODS, graph_methods.METHODS):
        for name, method in table.items():
            assert method.name == name
            assert method.problems
            assert method.takes <= {field.name for field in fields(Limits)}
            assert method.accepts.endswith(".")
            assert method.promises.endswith(".")
