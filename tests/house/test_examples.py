"""Each example runs, and finds what it trains equal to the run without a plan."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TWO_PROCESSES = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 8


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    spread = "torchrun" in text
    command = [sys.executable, *(TWO_PROCESSES if spread else ()), str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    verdicts = [line for line in done.stdout.splitlines() if "the plan: " in line]
    assert len(verdicts) >= (2 if spread else 1), done.stdout
    assert all(line.endswith("the plan: True") for line in verdicts), done.stdout
    assert "NOT as planned" not in done.stdout
