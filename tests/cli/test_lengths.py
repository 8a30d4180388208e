"""Plans by length on the command line: solved, shown, reported, one of them exported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scheduler import Plan, PlansByLength
from tests.cli.test_cli import EXAMPLE, Capture, refused, run

MODEL = ("--model", "gpt2", "--state", "none", "--margin", "0")


@pytest.fixture
def file(tmp_path: Path, capsys: Capture) -> str:
    path = str(tmp_path / "plans.json")
    lengths = ("--lengths", "256,512", "--batch", "2", "--budget", "800MB")
    status, out, said = run(capsys, "solve", *MODEL, *lengths, "-o", path)
    assert status == 0
    assert said == f"checkpoint-scheduler: wrote {path}\n"
    assert f"\n{PlansByLength.load(path)}\n" in out
    assert PlansByLength.load(path).batch == 2
    return path


def test_shown(file: str, capsys: Capture, tmp_path: Path) -> None:
    status, out, _ = run(capsys, "show", file)
    assert (status, out) == (0, f"{PlansByLength.load(file)}\n")
    steps = tmp_path / "steps.txt"
    steps.write_text("100\n512\n")
    lost = PlansByLength.load(file).run_overhead([100, 512])
    for given in ("100,512", str(steps)):
        status, out, _ = run(capsys, "show", file, "--steps", given)
        assert status == 0
        assert f"The run loses {100 * lost.by_length:.2f}% of its time" in out
    status, out, _ = run(capsys, "show", file, "--steps", "100,512", "--json")
    assert json.loads(out)["run"] == lost._asdict()


def test_one_of_them_exported(file: str, capsys: Capture) -> None:
    status, out, _ = run(capsys, "export", file, "--to", "json", "--length", "512")
    assert status == 0
    assert Plan.from_json(out) == PlansByLength.load(file)[512]


def test_reported(file: str, capsys: Capture) -> None:
    status, page, _ = run(capsys, "report", file)
    assert status == 0
    assert "<h2>Peak and overhead by length</h2>" in page
    assert page.count('data-picture="lengths"') == 2
    status, drawn, _ = run(capsys, "report", file, "--picture", "lengths")
    assert status == 0
    plans = PlansByLength.load(file)
    for length, plan in plans.items():
        assert f'data-tokens="{2 * length}" data-bytes="{plan.peak_bytes}"' in drawn
    assert 'class="budget"' in drawn


def test_refusals(file: str, tmp_path: Path, capsys: Capture) -> None:
    one = str(tmp_path / "one.json")
    assert run(capsys, "export", file, "--to", "json", "--length", "256", "-o", one)[0] == 0
    lengths = ("--lengths", "256,512")
    for words, arguments in {
        "--lengths needs costs at each length": ("solve", *EXAMPLE, "--budget", "1GB", *lengths),
        "both say how long": ("solve", *MODEL, *lengths, "--sequence", "256"),
        "no list of whole numbers": ("solve", *MODEL, "--lengths", "256,many"),
        "the lengths must increase": ("solve", *MODEL, "--lengths", "512,256"),
        "--steps '' is no list": ("show", file, "--steps", ""),
        "is larger than the longest": ("show", file, "--steps", "513"),
        "--steps is for a file of plans by length": ("show", one, "--steps", "100"),
        "take one out to replay it": ("show", file, "--costs", EXAMPLE[0]),
        "add --length with one of 256, 512": ("export", file, "--to", "torch"),
        "there is none for 300": ("export", file, "--to", "torch", "--length", "300"),
        "this holds one plan": ("export", one, "--to", "json", "--length", "256"),
        "this file holds plans by length": ("diff", file, one),
        "a report of them needs none": ("report", file, "--costs", EXAMPLE[0]),
        "plans by length have no picture 'strip'": ("report", file, "--picture", "strip"),
        "and this file has one plan": ("report", one, "--picture", "lengths"),
    }.items():
        assert words in refused(capsys, *arguments), arguments
    said = refused(capsys, "solve", *MODEL, "--budget", "420MB", *lengths, "--batch", "2", status=3)
    assert "at length 512; the longest of the lengths that fits is 256" in said
