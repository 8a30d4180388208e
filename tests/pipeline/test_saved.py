"""The plan of a pipeline as a file, beside other ways, drawn, and for other libraries."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from scheduler import CostGraph, InfeasibleBudget, InvalidPlan, SchedulerError
from scheduler.cli.main import main
from scheduler.export import export
from scheduler.pipeline import PipelinePlan, compare_pipeline, solve_pipeline
from scheduler.pipeline.pictures import gantt_picture, memory_picture
from scheduler.pipeline.question import PipelineFields, read_question
from solvers.pipeline.problem import one_forward_one_backward
from tests.pipeline.test_pipeline import BLOCK

END = replace(BLOCK, recomputable=False)
COSTS = CostGraph(
    (
        replace(END, name="embedding"),
        *(replace(BLOCK, name=f"model.layers.{i}") for i in range(8)),
        replace(END, name="head", forward_time=6, backward_time=12),
    ),
    name="small",
)
ASKED: dict[str, Any] = {"stages": 4, "microbatches": 8, "budget": "70MB", "runtime": "megatron"}


@pytest.fixture(scope="module")
def plan() -> PipelinePlan:
    return solve_pipeline(COSTS, **ASKED)


def test_a_file_holds_the_whole_plan(plan: PipelinePlan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    again = PipelinePlan.load(tmp_path / "plan.json")
    assert again == plan
    assert again.replay(COSTS) == plan.replay()
    with pytest.raises(InvalidPlan, match="does not carry its costs"):
        again.replay()
    custom = solve_pipeline(COSTS, **ASKED | {"schedule": one_forward_one_backward(4, 8)})
    assert PipelinePlan.from_json(custom.to_json()) == custom


@pytest.mark.parametrize(
    ("where", "value", "words"),
    [
        (("stages", 0, "budget_bytes"), 10**9, "the bound was proven for 70000000 bytes"),
        (("stages", 0, "peak_bytes"), 10**9, "the budget leaves 70000000"),
        (("lower_bound_time",), 1, "which cannot all be so"),
        (("cuts",), [0, 2, 4, 6, 9], "'cuts' must be 0 and where each stage ends"),
        (("schedule",), "zbv", "there is no schedule 'zbv'"),
        (("runtime", "output_held"), 1, "'output_held' cannot be 1"),
        (("stages", 1), 3, r"stages\[1\] must be an object"),
        (("microbatches",), "8", "'microbatches' must be a whole number"),
    ],
)
def test_a_file_that_says_what_cannot_be(
    plan: PipelinePlan, where: tuple[Any, ...], value: object, words: str
) -> None:
    record = json.loads(plan.to_json())
    *path, last = where
    at = record
    for key in path:
        at = at[key]
    at[last] = value
    with pytest.raises(InvalidPlan, match=words):
        PipelinePlan.from_dict(record)


@pytest.mark.parametrize("field", ["peak_bytes", "state_bytes", "forward_time", "backward_time"])
def test_a_replay_finds_what_was_changed(plan: PipelinePlan, field: str) -> None:
    stage = replace(plan.stages[1], **{field: getattr(plan.stages[1], field) - 1})
    changed = replace(plan, stages=(plan.stages[0], stage, *plan.stages[2:]))
    with pytest.raises(InvalidPlan, match="its replay gives"):
        changed.replay()
    with pytest.raises(InvalidPlan, match="belongs to other costs"):
        plan.replay(replace(COSTS, input_bytes=1))


def test_the_optimum_is_below_every_other_row() -> None:
    asked = ASKED | {"budget": "82MB"}
    compared = compare_pipeline(COSTS, **asked)
    *others, best = compared.rows
    assert best.time == solve_pipeline(COSTS, **asked).time
    assert best.status == "optimal"
    names = [row.method for row in others]
    assert names[0] == "no recomputation, even cuts"
    assert not others[0].fits
    assert names[-2:] == ["torchtitan's cuts, best plans", "even cuts, best plans"]
    fitting = [row for row in others if row.fits]
    assert any("full block" in row.method for row in fitting)
    for row in fitting:
        assert (row.peak_bytes or 0) <= 82 * 10**6
        assert (row.time or 0) >= (best.time or 0)
    by_hand = min(row.time or 0 for row in fitting if "megatron" in row.method)
    even = next(row for row in others if row.method == "even cuts, best plans")
    assert (best.time or 0) < (even.time or 0) < by_hand
    tight = compare_pipeline(COSTS, **ASKED | {"budget": "30MB"})
    assert not tight.optimal.fits
    assert "Nothing fits" in str(tight)


def test_pictures(plan: PipelinePlan) -> None:
    drawn = gantt_picture(plan)
    assert "one step of the pipeline" in drawn
    for words in ("stage 3: forward", "stage 0: recomputation", "stage 3: backward"):
        assert words in drawn
    assert "stage 3: recomputation" not in drawn
    assert "memory of each stage" in memory_picture(plan)


def test_exports(plan: PipelinePlan) -> None:
    done = export(plan, "megatron")
    (line,) = (each for each in done.text.splitlines() if each.startswith("--pipeline"))
    letters = line.split("'")[1]
    assert letters == _layout(plan)
    assert "--recompute-granularity full" in done.text
    assert "longer), replayed" in done.notes[0]
    parts = json.loads(export(plan, "torchtitan").text)
    named = [name for part in parts["parallelism"]["module_fqns_per_model_part"] for name in part]
    blocks = [f"layers.{i}" for i in range(8)]
    assert named == ["tok_embeddings", *blocks, "norm", "output"]
    assert export(plan, "json").text == plan.to_json()
    with pytest.raises(SchedulerError, match="cannot be exported to 'jax'; choose megatron"):
        export(plan, "jax")
    other = solve_pipeline([BLOCK] * 4, **ASKED | {"stages": 2})
    with pytest.raises(InvalidPlan, match="an embedding, decoder layers and a loss"):
        export(other, "megatron")


def _layout(plan: PipelinePlan) -> str:
    """What Megatron's layout says of the cuts, written out by hand."""
    stages = []
    for first, end in pairwise(plan.cuts):
        blocks = sum(0 < i < 9 for i in range(first, end))
        run = "t" if blocks == 1 else f"t*{blocks}"
        stages.append("E" * (first == 0) + run + "L" * (end == 10))
    return "|".join(stages)


def test_the_command_line(
    plan: PipelinePlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    costs, file = tmp_path / "costs.json", str(tmp_path / "plan.json")
    COSTS.save(costs)
    asked = [str(costs), "--budget", "70MB", "--stages", "4", "--microbatches", "8"]
    asked += ["--runtime", "megatron"]
    assert main(["solve", *asked, "-o", file]) == 0
    assert capsys.readouterr().out == f"{plan}\n"
    assert PipelinePlan.load(file) == plan
    assert main(["show", file, "--costs", str(costs)]) == 0
    assert "Replayed: every stage's peak" in capsys.readouterr().out
    assert main(["export", file, "--to", "megatron", "--costs", str(costs)]) == 0
    assert "--pipeline-model-parallel-layout" in capsys.readouterr().out
    picture = str(tmp_path / "gantt.svg")
    drawn = ["report", file, "--costs", str(costs), "--picture", "gantt", "-o", picture]
    assert main(drawn) == 0
    assert Path(picture).read_text() == gantt_picture(plan)
    assert main(["compare", *asked]) == 0
    assert "optimal cuts and plans" in capsys.readouterr().out
    assert main(["solve", str(costs), "--budget", "1GB", "--microbatches", "8"]) == 2
    assert "say its stages too" in capsys.readouterr().err


def test_a_model_by_its_shape(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--model", "gpt2", "--stages", "3", "--microbatches", "4", "--sequence", "512"]
    assert main(["solve", *asked, "--budget", "4GB"]) == 0
    out = capsys.readouterr().out
    assert "embedding … transformer.h." in out
    assert "reserved" in out
    assert main(["solve", *asked, "--budget", "2.2GB"]) == 3
    assert "set by stage" in capsys.readouterr().err


def test_a_budget_that_no_flags_fit() -> None:
    tight = solve_pipeline(COSTS, **ASKED | {"budget": "48MB"})
    with pytest.raises(InfeasibleBudget, match="flags are the same for all"):
        export(tight, "megatron")


def test_fields_are_the_keywords() -> None:
    names = set(read_question.__kwdefaults__ or ())
    assert set(PipelineFields.__annotations__) == names
