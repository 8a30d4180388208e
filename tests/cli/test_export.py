"""The export command: what it prints where, and what it refuses."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from scheduler import CostGraph, solve
from scheduler.cli.main import main
from scheduler.export import TARGETS, export
from tests.cli import test_cli as cli
from tests.export.export_cases import sequential_plan

GPT2 = CostGraph.example("gpt2-small")
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    plan, costs = tmp_path / "plan.json", tmp_path / "costs.json"
    solve(GPT2, 5).save(plan)
    GPT2.save(costs)
    return str(plan), str(costs)


def refused(capsys: Capture, *arguments: str, status: int = 2) -> str:
    return cli.refused(capsys, "export", *arguments, status=status)


@pytest.mark.parametrize("target", TARGETS)
def test_each_target(capsys: Capture, files: tuple[str, str], target: str) -> None:
    """Of a plan that has its costs with it, as that of a model or an example has."""
    plan, _ = files
    # Within 5 GB no flags of axolotl have a plan.
    assert main(["solve", "--example", "gpt2-small", "--budget", "6GB", "-o", plan]) == 0
    capsys.readouterr()
    assert main(["export", plan, "--to", target]) == 0
    out, err = capsys.readouterr()
    done = export(solve(GPT2, 6), target)
    assert out == done.text
    assert err == "".join(f"checkpoint-scheduler: {note}\n" for note in done.notes)


def test_a_file_is_replaced_by_a_whole_one(
    capsys: Capture, files: tuple[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "apply_plan.py"
    path.write_text("old")
    assert main(["export", files[0], "--to", "torch", "-o", str(path)]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"checkpoint-scheduler: wrote {path}\n")
    whole = path.read_text()
    assert whole == export(solve(GPT2, 5), "torch").text
    # An export that fails leaves what was there.
    plan = tmp_path / "nested.json"
    nested = sequential_plan()
    nested.save(plan)
    costs = tmp_path / "nested-costs.json"
    carried = nested._costs
    assert isinstance(carried, CostGraph)
    carried.save(costs)
    arguments = (str(plan), "--costs", str(costs), "--to", "megatron", "-o", str(path))
    assert "no plan of method 'megatron' fits" in refused(capsys, *arguments, status=3)
    assert path.read_text() == whole


def test_a_place_that_cannot_be_written(
    capsys: Capture, files: tuple[str, str], tmp_path: Path
) -> None:
    to = (files[0], "--to", "torch", "-o")
    assert "there is no directory" in refused(capsys, *to, str(tmp_path / "no" / "x.py"))
    assert "it is a directory" in refused(capsys, *to, str(tmp_path))


def test_what_is_missing_or_wrong(capsys: Capture, files: tuple[str, str], tmp_path: Path) -> None:
    plan, costs = files
    assert "no target given; add --to with one of torch, " in refused(capsys, plan)
    assert "unknown target 'trch'" in refused(capsys, plan, "--to", "trch")
    assert "flags can only be chosen with the costs" in refused(capsys, plan, "--to", "deepspeed")
    assert "there is no plan file" in refused(capsys, str(tmp_path / "x"), "--to", "torch")
    assert "this is a cost file, not a plan" in refused(capsys, costs, "--to", "torch")
    other = tmp_path / "other.json"
    CostGraph.example("resnet18").save(other)
    message = refused(capsys, plan, "--costs", str(other), "--to", "torch")
    assert message.startswith("the plan belongs to other costs: ")
    assert "cannot both come from" in refused(capsys, "-", "--costs", "-", "--to", "torch")
    assert "stages must be" in refused(capsys, plan, "--to", "megatron", "--stages", "0")


def test_a_plan_from_standard_input(
    capsys: Capture, files: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Path(files[0]).read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert main(["export", "-", "--to", "torch"]) == 0
    assert capsys.readouterr().out == export(solve(GPT2, 5), "torch").text


def test_the_help_names_the_targets(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["export", "--help"])
    letters = "".join(capsys.readouterr().out.split())  # it may break a line after a hyphen
    assert f"--toTARGET{','.join(TARGETS)}".replace(",json-schema", "orjson-schema") in letters
