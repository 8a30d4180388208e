"""The oracle of pipelines held against answers and formulas that it does not share."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from solvers.chain.problem import Chain
from solvers.problem import Layer, Option
from solvers.schedule import Checkpoint, Item, Keep
from tests.oracles.oracle import simulate
from tests.oracles.pipeline_oracle import (
    Action,
    Case,
    least_time,
    machine,
    makespan,
    order,
    random_case,
    random_plan,
    replay,
)

REFERENCE: list[Case] = json.loads(
    (Path(__file__).parents[2] / "data" / "pipelines_reference.json").read_text()
)

TELLING = (14, 71, 84, 120)
"""Of five layers, where a nearby meaning fails: the gradient's buffer stays through the backward,
the last stage does not hold its output, the chain's input is there from the start."""


def test_reference() -> None:
    for n, case in enumerate(REFERENCE):
        if len(case["layers"]) < 5 or n in TELLING:
            assert least_time(case) == case["least_time"], f"instance {n}"


def test_one_stage_is_a_chain() -> None:
    for seed in range(40):
        case = random_case(seed, stages=1) | {"microbatches": 1}
        case["runtime"] |= {"output_held": False, "gradient_buffer_in_forward": True}
        layers = []
        for n, fields in enumerate(case["layers"]):
            own = {name: value for name, value in fields.items() if name != "state_bytes"}
            made = tuple(Option(str(k), **option) for k, option in enumerate(own["options"]))
            layers.append(Layer(**own | {"name": f"l{n}", "options": made}))
        chain = Chain(tuple(layers), case["input_bytes"])
        plan = random_plan(case, 0, len(chain) - 1, Random(seed))
        peak, time, _, _ = simulate(chain, plan)
        state = sum(layer["state_bytes"] for layer in case["layers"])
        assert machine(case, (0, len(chain)), [plan]) == ([state + peak], time)


def test_peak_grows_evenly_with_microbatches_in_flight() -> None:
    """`(k - 1) K + W` is what the machine finds, whatever goes on between the extremes."""
    for seed in range(40):
        case = random_case(seed, stages=1)
        last = len(case["layers"]) - 1
        plan = random_plan(case, 0, last, Random(seed))
        peaks = []
        for k in (1, 2, 3, 4):
            some = case | {"stages": k, "microbatches": 6, "schedule": "1f1b"}
            peaks.append(replay(some, 0, last, plan, order(some, 0))[0])
        assert len({b - a for a, b in pairwise(peaks)}) == 1


def test_forwards_and_backwards_meet_when_stages_are_equal() -> None:
    for stages, microbatches in ((1, 1), (2, 5), (4, 4), (3, 8)):
        case: Case = {"stages": stages, "microbatches": microbatches, "communication_time": 0}
        for schedule in ("1f1b", "gpipe"):
            case["schedule"] = schedule
            same = [_times(case, s, 3, 7) for s in range(stages)]
            assert makespan(case, same) == (microbatches + stages - 1) * 10


def test_gpipe_waits_for_its_slowest_stages() -> None:
    case = {"stages": 3, "microbatches": 4, "schedule": "gpipe", "communication_time": 5}
    times = [_times(case, s, f, b) for s, (f, b) in enumerate(((2, 9), (4, 3), (1, 6)))]
    assert makespan(case, times) == 7 + 3 * 4 + 18 + 3 * 9 + 4 * 5


@pytest.mark.parametrize(
    ("stages", "microbatches", "schedule", "rank", "checkpointed", "measured"),
    [
        (2, 2, "1f1b", 0, (), 59),
        (3, 4, "1f1b", 0, (), 86),
        (2, 4, "gpipe", 0, (), 113),
        (3, 4, "1f1b", 0, (0, 1, 2), 22),
        (3, 6, "1f1b", 0, (0, 2), 47 - 1),
        (3, 4, "1f1b", 1, (), 61 - 2),
    ],
)
def test_what_torch_holds(
    stages: int,
    microbatches: int,
    schedule: str,
    rank: int,
    checkpointed: tuple[int, ...],
    measured: int,
) -> None:
    """Peaks of torch 2.13 in units of an activation, less what it keeps of its own sends."""
    block: dict[str, object] = {
        "forward_time": 1,
        "backward_time": 2,
        "recompute_time": 1,
        "output_bytes": 1,
        "saved_bytes": 8,
        "forward_transient_bytes": 0,
        "drop_transient_bytes": 2,
        "backward_transient_bytes": 3,
        "input_saved": True,
        "output_saved": False,
        "state_bytes": 0,
        "options": [],
    }
    case: Case = {
        "layers": [block] * 3,
        "input_bytes": 0,
        "stages": stages,
        "microbatches": microbatches,
        "schedule": schedule,
        "runtime": {
            "output_held": True,
            "gradient_buffer_in_forward": False,
            "input_buffers": "all",
        },
    }
    plan: list[Item] = [
        Checkpoint(i, i, (Keep(i),)) if i in checkpointed else Keep(i) for i in range(3)
    ]
    assert replay(case, 0, 2, tuple(plan), order(case, rank))[0] == measured


def test_random_cases_fit_the_plan_that_they_were_made_for() -> None:
    times = [least_time(random_case(seed, most_layers=3)) for seed in range(40)]
    assert None in times
    assert sum(time is not None for time in times) >= 25


def _times(case: Case, stage: int, forward: int, backward: int) -> dict[Action, int]:
    each = {"F": forward, "B": backward}
    return {action: each[action[0]] for action in order(case, stage)}
