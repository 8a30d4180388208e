"""Each example runs, and finds what it trains equal to the run without a plan."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATHS = sorted(f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py"))
TEXTS = {path: (ROOT / path).read_text(encoding="utf-8") for path in PATHS}
ALONE = [path for path in PATHS if "torchrun" not in TEXTS[path]]
EACH = """
import runpy, sys
for path in sys.argv[1:]:
    print(path)
    runpy.run_path(path, run_name="__main__")
"""
TWO_PROCESSES = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def test_there_are_examples() -> None:
    assert (len(ALONE), len(PATHS)) == (6, 9)


def verdicts(*command: str) -> list[str]:
    """What a command prints of plans: each was held to the run without it, and found equal."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = (sys.executable, *command)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NOT as planned" not in done.stdout
    found = [line for line in done.stdout.splitlines() if "the plan: " in line or line in PATHS]
    assert all(line.endswith("the plan: True") or line in PATHS for line in found), done.stdout
    return found


def test_an_example_is_short() -> None:
    for path, text in TEXTS.items():
        assert len(text.splitlines()) < 60, path


def test_the_examples_of_one_process() -> None:
    """One after the other in one process: importing what they need takes longer than to run."""
    found = verdicts("-c", EACH, *ALONE)
    for path, after in zip(ALONE, [*ALONE[1:], None], strict=True):
        end = found.index(after) if after else len(found)
        assert end - found.index(path) > 1, path


@pytest.mark.parametrize("path", sorted({*PATHS} - {*ALONE}))
def test_an_example_of_two_processes(path: str) -> None:
    assert len(verdicts(*TWO_PROCESSES, path)) >= 2
