"""Cuts and plans of pipelines: against reference, brute force and closed forms; the replay."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from solvers.chain.problem import Chain
from solvers.methods import Limits
from solvers.pipeline.problem import SCHEDULES, Pipeline, Runtime
from solvers.pipeline.replay import StageReplay, replay
from solvers.pipeline.solve import Infeasible, Solution, solve
from solvers.problem import InvalidProblem, Layer, Option
from solvers.schedule import Checkpoint, IllegalPlan, Item, Keep
from solvers.solution import Status
from tests.oracles.pipeline_oracle import Case, least_time, machine, random_case, random_plan

REFERENCE: list[Case] = json.loads(
    (Path(__file__).parents[2] / "data" / "pipelines_reference.json").read_text()
)


def problem(case: Case) -> Pipeline:
    """A case of the reference's form."""
    layers = []
    for i, fields in enumerate(case["layers"]):
        own = {name: value for name, value in fields.items() if name != "state_bytes"}
        options = tuple(Option(str(n), **option) for n, option in enumerate(own.pop("options")))
        layers.append(Layer(name=f"layer {i}", options=options, **own))
    return Pipeline(
        Chain(tuple(layers), case["input_bytes"]),
        tuple(layer["state_bytes"] for layer in case["layers"]),
        tuple(case["budgets"]),
        SCHEDULES[case["schedule"]](case["stages"], case["microbatches"]),
        case["communication_time"],
        Runtime(**case["runtime"]),
    )


def result(done: Sequence[StageReplay]) -> tuple[list[int], float]:
    return [stage.peak_bytes for stage in done], max(stage.runs[-1].end for stage in done)


def moved(item: Item, by: int) -> Item:
    if isinstance(item, Keep):
        return Keep(item.layer + by, item.option)
    body = tuple(moved(each, by) for each in item.body)
    return Checkpoint(item.first + by, item.last + by, body)


def in_place(cuts: Sequence[int], plans: Sequence[tuple[Item, ...]]) -> list[tuple[Item, ...]]:
    """The plans with layers by their place in the whole chain, as the oracle has them."""
    return [
        tuple(moved(item, first) for item in items)
        for first, items in zip(cuts[:-1], plans, strict=True)
    ]


def checked(pipeline: Pipeline) -> Solution | None:
    """The answer, replayed; None where nothing fits, and that only just."""
    try:
        found = solve(pipeline)
    except Infeasible as error:
        missing = error.missing
        assert missing is not None
        more = replace(pipeline, budgets=tuple(b + missing for b in pipeline.budgets))
        solve(more)
        with pytest.raises(Infeasible):
            solve(replace(more, budgets=tuple(b - 1 for b in more.budgets)))
        return None
    peaks, time = result(replay(pipeline, found.cuts, found.plans))
    assert all(peak <= budget for peak, budget in zip(peaks, pipeline.budgets, strict=True))
    assert time == found.time
    assert found.status is Status.OPTIMAL
    return found


def test_reference() -> None:
    for n, case in enumerate(REFERENCE):
        found = checked(problem(case))
        assert (found and found.time) == case["least_time"], f"instance {n}"


def test_brute_force_and_the_replay_of_its_own() -> None:
    for seed in range(150):
        case = random_case(seed, most_layers=4)
        found = checked(problem(case))
        assert (found and found.time) == least_time(case), f"seed {seed}"
        if found is not None:
            plans = in_place(found.cuts, found.plans)
            assert machine(case, found.cuts, plans) == result(
                replay(problem(case), found.cuts, found.plans)
            )


def test_any_plan_replays_as_by_the_oracle() -> None:
    for seed in range(200):
        case, draw = random_case(seed, most_layers=7), Random(seed)
        length = len(case["layers"])
        cuts = (0, *sorted(draw.sample(range(1, length), case["stages"] - 1)), length)
        plans = [random_plan(case, first, end - 1, draw) for first, end in pairwise(cuts)]
        own = [tuple(moved(each, -cuts[s]) for each in items) for s, items in enumerate(plans)]
        done = replay(problem(case), cuts, own)
        assert result(done) == machine(case, cuts, plans)
        for s, stage in enumerate(done):
            fixed = problem(case).outside(s, cuts[s], cuts[s + 1] - 1)
            assert stage.runs[-1].after_bytes == fixed


BLOCK = Layer("block", 3, 7, 10, 80, 3)


def equal(stages: int, microbatches: int, schedule: str = "1f1b", budget: int = 10**6) -> Pipeline:
    chain = Chain((BLOCK,) * 8, 10)
    orders = SCHEDULES[schedule](stages, microbatches)
    return Pipeline(chain, (0,) * 8, (budget,) * stages, orders)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 3), (2, 5), (4, 4), (8, 16), (4, 1)])
def test_equal_stages_with_memory_enough(stages: int, microbatches: int, schedule: str) -> None:
    found = checked(equal(stages, microbatches, schedule))
    assert found is not None
    assert found.time == (microbatches + stages - 1) * 10 * 8 // stages
    assert all(isinstance(item, Keep) for items in found.plans for item in items)


def test_more_memory_or_fewer_microbatches_never_take_longer() -> None:
    times = []
    for budget in range(300, 900, 50):
        found = checked(equal(4, 8, budget=budget))
        times.append(10**9 if found is None else found.time)
    assert times == sorted(times, reverse=True)
    assert len(set(times)) > 3
    by_count = [checked(equal(4, count, budget=500)) for count in (1, 2, 4, 8, 16)]
    assert [each.time for each in by_count if each] == sorted(
        each.time for each in by_count if each
    )


def test_a_search_that_is_ended_has_a_true_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solvers.methods.PAUSE", 1e-4)
    draw = Random(5)
    layers = tuple(
        replace(BLOCK, forward_time=draw.randint(20, 90), backward_time=draw.randint(50, 200))
        for _ in range(30)
    )
    orders = SCHEDULES["1f1b"](6, 64)
    pipeline = Pipeline(Chain(layers, 10), (0,) * 30, (1400,) * 6, orders)
    best = solve(pipeline).time
    ended = 0
    for calls in (0, 1, 3, 10, 30, 100, 300, 10**6):
        left = iter(range(calls))
        limits = Limits(interrupted=lambda left=left: next(left, None) is None)  # type: ignore[misc]
        try:
            found = solve(pipeline, limits)
        except Infeasible as error:
            ended += error.missing is None
            continue
        assert found.lower_bound_time <= best <= found.time
    assert ended
    assert found.status is Status.OPTIMAL


def test_gradients_of_parameters_are_there_and_fresh_ones_come_and_go() -> None:
    block = replace(BLOCK, gradient_bytes=40)
    chain = Chain((block,) * 2, 10)
    pipeline = Pipeline(chain, (0, 0), (10**6,), SCHEDULES["1f1b"](1, 1))
    (stage,) = replay(pipeline, (0, 2), [(Keep(0), Keep(1))])
    # Input, two saved sets, two outputs held by them, two gradients, and that of the parameters.
    assert stage.peak_bytes == 10 + 2 * 80 + 2 * 10 + 2 * 10 + 40


def test_what_layers_are_handed_beside_is_held_by_each_microbatch() -> None:
    plain = equal(4, 8)
    layers = tuple(replace(BLOCK, beside_bytes=5) for _ in range(8))
    beside = replace(plain, chain=Chain(layers, 10))
    plans = [(Keep(0), Keep(1))] * 4
    peaks, more = (result(replay(each, range(0, 9, 2), plans))[0] for each in (plain, beside))
    assert [b - a for a, b in zip(peaks, more, strict=True)] == [40, 30, 20, 10]


def test_gpipe_holds_all_gradients_that_went_back() -> None:
    """As measured: three checkpointed blocks on the middle one of 3 stages, 6 microbatches."""
    block = Layer("block", 1, 2, 1, 8, 3, 1, drop_transient_bytes=7)
    orders = SCHEDULES["gpipe"](3, 6)
    torch = Runtime(output_held=True, input_buffers="all", output_buffers=True, sends_held=True)
    pipeline = Pipeline(Chain((block,) * 9, 1), (0,) * 9, (10**6,) * 3, orders, runtime=torch)
    plan = (Checkpoint(0, 2, (Keep(0), Keep(1), Keep(2))),)
    peak = replay(pipeline, (0, 3, 6, 9), [plan] * 3)[1].peak_bytes
    measured = 6 + 6 + 41  # of it 12 of buffers that are made in the first step
    assert measured <= peak <= measured + 2


def test_what_is_no_pipeline() -> None:
    with pytest.raises(InvalidProblem, match="8 layers are no 9 stages"):
        equal(9, 2)
    with pytest.raises(InvalidProblem, match="stage 1: B0 is no forward"):
        replace(equal(2, 1), orders=((("F", 0), ("B", 0)), (("B", 0), ("F", 0))))
    with pytest.raises(InvalidProblem, match="stage 1 does not run each of 2 microbatches"):
        replace(equal(2, 2), orders=(equal(2, 2).orders[0], (("F", 0), ("B", 0))))
    crossed = ((("F", 0), ("F", 1), ("B", 1), ("B", 0)), (("F", 0), ("B", 0), ("F", 1), ("B", 1)))
    waits = replace(equal(2, 2), orders=(crossed[0], crossed[1]))
    assert solve(waits).time > 0  # slow, but it ends
    stuck = ((("F", 1), ("B", 1), ("F", 0), ("B", 0)), (("F", 0), ("B", 0), ("F", 1), ("B", 1)))
    with pytest.raises(IllegalPlan, match=r"stage \d waits for ever"):
        replay(replace(equal(2, 2), orders=stuck), (0, 4, 8), [tuple(map(Keep, range(4)))] * 2)
