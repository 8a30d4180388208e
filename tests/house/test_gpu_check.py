"""The logic of benchmarks/gpu_check.py, with a small model on the CPU."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from scheduler import CostGraph, LayerCost, solve
from scheduler.pytorch import profile

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import gpu_check
from gpu_check import SETUPS, check, fitted, main, plans
from gpu_report import Report, Row, record, table

SMALL = replace(SETUPS["tiny"], layers=5, rows=2, length=32, dtype="float32")
BUDGETS = ("keep-all - 10%", "middle", "smallest + 2%")
METHODS = [("keep-all", "any"), ("every-layer", "any"), ("uniform-sqrt", "any")]
METHODS += [(method, budget) for budget in BUDGETS for method in ("single-level", "optimal")]


@cache
def report() -> Report:
    """The report on the small model."""
    return check(SMALL, "cpu", steps=1, limit=float("inf"))


def test_every_plan_is_run_and_measured() -> None:
    assert [(row.method, row.budget) for row in report().rows] == METHODS
    assert report().sound
    assert report().fake_differs == []
    for row in report().rows:
        assert not row.note
        assert row.forwards_as_planned
        assert row.error is not None
        assert 0 <= row.error <= 0.02
        assert row.left_bytes == 0
        assert row.reserved_bytes is None  # only an allocator reserves
        assert row.gradient_norm == pytest.approx(report().rows[0].gradient_norm)
        if row.budget_bytes is not None:
            assert row.predicted_bytes is not None
            assert row.predicted_bytes <= row.budget_bytes


def test_optimal_is_never_slower_than_the_others() -> None:
    overhead = {(row.method, row.budget): row.predicted_overhead for row in report().rows}
    assert overhead["keep-all", "any"] == 0
    for budget in BUDGETS:
        best, other = overhead["optimal", budget], overhead["single-level", budget]
        assert best is not None
        assert other is None or best <= other


def test_the_table() -> None:
    text = table(report())
    for method, budget in METHODS:
        assert any(
            line.startswith(method) and f"  {budget}  " in line for line in text.splitlines()
        )
    assert text.startswith("tiny: 0.00 billion parameters, float32, 2 rows of 32 tokens")
    assert "Fake tensors give the same bytes as real ones." in text
    assert "Every plan ran as planned, within the peak it promised." in text


def test_what_is_wrong_is_said() -> None:
    rows = list(report().rows)
    assert rows[1].allocated_bytes is not None
    over = replace(rows[1], predicted_bytes=rows[1].allocated_bytes - 1)
    other = replace(rows[2], forwards_as_planned=False)
    wrong = replace(report(), rows=[rows[0], over, other], fake_differs=["head"])
    assert not wrong.sound
    assert "NOT as planned, or above the peak it promised: every-layer at any, uniform-sqrt" in (
        table(wrong)
    )
    assert "Fake tensors give other bytes than real ones for: head." in table(wrong)
    nothing = replace(report(), rows=[Row("keep-all", "any", note="out of memory")])
    assert not nothing.sound
    assert "nothing was measured" in table(nothing)


def test_plans_after_the_limit_are_left_out() -> None:
    late = check(SMALL, "cpu", steps=1, limit=0)
    assert {row.note for row in late.rows} == {"left out: 0 s are over"}
    assert not late.sound


def test_a_budget_without_a_plan() -> None:
    """Layers that save next to nothing but their boundaries: only nesting gets low."""
    layers = [
        LayerCost(str(i), forward_time=1, backward_time=2, output_bytes=1000, saved_bytes=10)
        for i in range(40)
    ]
    found = {(row.method, row.budget): (row, plan) for row, plan in plans(CostGraph(tuple(layers)))}
    row, plan = found["single-level", "smallest + 2%"]
    assert plan is None
    assert row.note.startswith("no plan: it needs ")
    assert found["optimal", "smallest + 2%"][1] is not None


def test_out_of_memory_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("no")

    monkeypatch.setattr(gpu_check, "measure", fails)
    found = check(SMALL, "cpu", steps=1, limit=float("inf"))
    assert {row.note for row in found.rows} == {"out of memory"}


def test_the_batch_is_made_to_fit() -> None:
    setup = replace(SMALL, layers=2, rows=4)
    assert fitted(setup, 2**40) == setup
    assert fitted(setup, 1).rows == 1
    model = setup.build("cpu")
    weights = sum(parameter.nbytes for parameter in model.parameters())
    costs = profile(model, replace(setup, rows=2).batch("cpu"), fake=True)
    needed = weights + solve(costs, budget=gpu_check.ANY).keep_all_peak_bytes
    assert fitted(setup, int(needed / gpu_check.SHARE_OF_FREE) + 1).rows == 2


def test_the_record_is_json() -> None:
    found = json.loads(json.dumps(record(report())))
    assert found["sound"] is True
    assert len(found["rows"]) == len(METHODS)
    assert found["rows"][0]["error"] == report().rows[0].error
    assert found["setup"]["layers"] == 5


def test_without_cuda_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == 0
    assert "no CUDA device here: nothing was measured" in capsys.readouterr().out


def test_main_prints_the_table_and_writes_the_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_check, "check", lambda *_, **__: report())
    assert main(["--cpu", "--json", str(tmp_path / "gpu.json")]) == 0
    assert capsys.readouterr().out.strip() == table(report())
    assert json.loads((tmp_path / "gpu.json").read_text())["sound"] is True
    worse = replace(report(), rows=[])
    monkeypatch.setattr(gpu_check, "check", lambda *_, **__: worse)
    assert main(["--cpu"]) == 1
