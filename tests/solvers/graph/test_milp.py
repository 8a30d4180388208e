"""HiGHS: its optimum against another build's, hints, what it says, and how it is ended."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import highspy
import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint
from scipy.optimize import milp as scipy_milp
from scipy.sparse import csr_array

from solvers.graph import milp
from solvers.graph.methods import solve as solve_graph
from solvers.graph.milp import Answer, Program, Rows, solve
from solvers.solution import PlanClass, Status
from tests.solvers.graph.test_solve import checked, load

Call = tuple[Program, Mapping[int, float] | None]


def programs(
    monkeypatch: pytest.MonkeyPatch, name: str, budget: int, within: PlanClass
) -> list[Call]:
    """What HiGHS is asked on the way to a graph's optimum, with the hints."""
    calls: list[Call] = []

    def noted(program: Program, **options: Any) -> Answer:
        calls.append((program, options["hint"]))
        return solve(program, **options)

    with monkeypatch.context() as patch:
        patch.setattr(milp, "solve", noted)
        solve_graph(load(name), budget, method="staged", optimal_in=within)
    return calls


def by_scipy(program: Program) -> Answer:
    """The answer of the HiGHS that scipy brings."""
    rows = [LinearConstraint(part.matrix, part.lower, part.upper) for part in program.rows]
    result = scipy_milp(
        program.cost,
        integrality=program.integer.astype(np.int64),
        bounds=Bounds(program.lower, program.upper),
        constraints=rows,
        options={"mip_rel_gap": 0.0},
    )
    assert result.status in (0, 2)
    if result.status == 2:
        return Answer(None, np.inf, np.inf, finished=True)
    objective = float(program.cost @ result.x)
    bound = result.mip_dual_bound if program.mixed else objective
    return Answer(np.asarray(result.x), objective, float(bound), finished=True)


def test_scipy_gives_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, budget = load("tr2"), 2956
    with_highspy = solve_graph(graph, budget)
    used: list[bool] = []

    def instead(program: Program, **_: Any) -> Answer:
        used.append(program.mixed)
        return by_scipy(program)

    monkeypatch.setattr(milp, "solve", instead)
    with_scipy = checked(graph, budget, solve_graph(graph, budget))
    assert {True, False} == set(used)
    assert with_scipy.time == with_highspy.time
    assert with_scipy.status is Status.OPTIMAL


def test_a_hint_changes_no_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    # After a start HiGHS 1.16.0 takes 200 for the optimum here, which is 185.
    calls = programs(monkeypatch, "mlp16", 713, PlanClass.FORWARD)
    assert any(hint for _, hint in calls)
    for program, hint in calls:
        truth, found = by_scipy(program), solve(program, hint=hint)
        assert found.finished
        assert found.objective == pytest.approx(truth.objective)
        assert found.bound == pytest.approx(truth.objective)


def knapsacks(count: int) -> Program:
    """Many columns in a few rows that all must be met exactly: takes long, whoever solves it."""
    draw = np.random.default_rng(3)
    sizes = draw.integers(100, 1000, (8, count)).astype(float)
    half = np.floor(sizes.sum(axis=1) / 2)
    cost = draw.integers(1, 1000, count).astype(float)
    whole = np.ones(count, np.bool_)
    return Program(
        cost, np.zeros(count), np.ones(count), whole, [Rows(csr_array(sizes), half, half)]
    )


def test_it_is_ended_when_asked() -> None:
    before = threading.active_count()
    begun = time.monotonic()
    answer = solve(knapsacks(120), stop=lambda: time.monotonic() > begun + 0.5)
    assert not answer.finished
    assert time.monotonic() - begun < 10
    assert threading.active_count() == before


def test_it_keeps_to_a_time_limit() -> None:
    begun = time.monotonic()
    answer = solve(knapsacks(120), time_limit=0.5)
    assert not answer.finished
    assert time.monotonic() - begun < 10


def test_control_c_ends_it() -> None:
    program, before = knapsacks(120), threading.active_count()
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            solve(program)
        assert time.monotonic() - begun < 10
    finally:
        timer.join()
        signal.signal(signal.SIGINT, handler)
    assert threading.active_count() == before


def test_where_it_does_not_listen_it_is_left_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milp, "_GRACE", 0.0)
    begun = time.monotonic()
    answer = solve(knapsacks(120), stop=lambda: time.monotonic() > begun + 0.5)
    assert answer == Answer(None, np.inf, -np.inf, finished=False)


def test_it_says_how_far_it_is() -> None:
    seen: list[float] = []
    begun = time.monotonic()
    answer = solve(knapsacks(120), watch=seen.append, stop=lambda: time.monotonic() > begun + 3)
    assert seen == sorted(seen)
    assert all(bound <= answer.bound for bound in seen)
    assert len(seen) > 1


def test_what_a_watcher_raises_comes_out() -> None:
    def watch(_: float) -> None:
        raise ZeroDivisionError

    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        solve(knapsacks(120), watch=watch)
    assert threading.active_count() == before


@pytest.mark.parametrize("mixed", [True, False])
def test_nothing_fits(mixed: bool) -> None:
    one = np.ones(1)
    rows = [Rows(csr_array(np.ones((1, 1))), 2 * one, 2 * one)]
    answer = solve(Program(one, 0 * one, one, np.array([mixed]), rows))
    assert answer == Answer(None, np.inf, np.inf, finished=True)


def test_threads_may_change_from_call_to_call() -> None:
    program = knapsacks(14)
    answers = [solve(program, threads=threads) for threads in (1, 2, 1, 3)]
    assert len({(answer.finished, round(answer.objective, 6)) for answer in answers}) == 1


def test_nothing_of_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[highspy.Highs]] = []
    create: Callable[[], highspy.Highs] = highspy.Highs

    def noted() -> highspy.Highs:
        highs = create()
        made.append(weakref.ref(highs))
        return highs

    monkeypatch.setattr(highspy, "Highs", noted)
    solve(knapsacks(14))
    gc.collect()
    assert [ref() for ref in made] == [None]
