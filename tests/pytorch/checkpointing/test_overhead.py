"""The benchmark of the adapter's own time: that it runs and compares like with like."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from scheduler.pytorch import measure
from tests.pytorch.models import assert_equal, gradients, mean_square, noise


@pytest.fixture
def benchmark() -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks" / "torch_overhead.py"
    spec = importlib.util.spec_from_file_location("torch_overhead", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_three_compute_the_same(benchmark: ModuleType) -> None:
    made, x = benchmark.models(5), noise(2, 4)
    expected = gradients(made["bare"], x, mean_square)
    for name in ("plain checkpoint", "plan"):
        assert_equal(gradients(made[name], x, mean_square), expected)
        # What is checkpointed runs its forward twice, in both.
        counts = measure(made[name], x, mean_square).forwards
        assert set(counts.values()) == {2}, name
    assert set(measure(made["bare"], x, mean_square).forwards.values()) == {1}


def test_the_table(benchmark: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    try:
        benchmark.main(["--repeats", "2", "--blocks", "3"])
    finally:
        torch.set_num_threads(threads)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert [line.split("  ")[0] for line in lines[1:4]] == ["bare", "plain checkpoint", "plan"]
    assert lines[2].endswith("1.00")
    assert "times plain checkpointing; at most 1.2" in lines[5]
