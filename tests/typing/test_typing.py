"""mypy accepts the public interface used rightly, and refuses it used wrongly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WRONG = """\
from scheduler import CostGraph, frontier, solve
from scheduler.pytorch import apply

costs = CostGraph.example("gpt2-small")
plan = solve(costs, budget=40, threads="all")
words: int = plan.method
apply("plan.json", plan)
frontier(costs).cheapest
solve()
"""


def mypy(*paths: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--hide-error-context", *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


def test_right_uses_are_accepted() -> None:
    done = mypy(*sorted(Path(__file__).parent.glob("*.py")))
    assert done.returncode == 0, done.stdout


def test_wrong_uses_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(WRONG)
    done = mypy(file)
    found = [line for line in done.stdout.splitlines() if ": error: " in line]
    lines = {int(line.split("wrong.py:")[1].partition(":")[0]) for line in found}
    assert done.returncode == 1
    assert lines == {5, 6, 7, 8, 9}, done.stdout
