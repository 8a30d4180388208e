"""What torch recorded of a run, where costs are wanted: what is read, what is said of the rest."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.checkpoint import checkpoint

from scheduler import CostGraph, InvalidCosts, solve
from scheduler.cli.main import main
from scheduler.costs.recorded.read import read_recorded
from scheduler.costs.recorded.snapshots import Snapshot
from scheduler.costs.recorded.traces import Trace

BACKWARD = "autograd::engine::evaluate_function"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.inside(x))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = checkpoint(self.two, self.one(x), use_reentrant=False)
        assert isinstance(made, torch.Tensor)
        return made


def test_a_trace_of_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, x = Twice(), torch.randn(256, 64)
    file = tmp_path / "trace.json"
    cpu = [ProfilerActivity.CPU]
    with (
        profile(activities=cpu, with_stack=True, profile_memory=True) as done,
        record_function("step"),
    ):
        for _ in range(3):
            model(x).sum().backward()
    done.export_chrome_trace(str(file))
    trace = read_recorded(file)
    assert isinstance(trace, Trace)
    # The checkpointed block ran twice, the second time in the backward.
    calls = {path[1:]: one.calls for path, one in trace.modules.items()}
    first, second = ("Twice_0", "Block_0"), ("Twice_0", "Block_1")
    assert calls == {
        (): 1,
        ("Twice_0",): 3,
        first: 3,
        (*first, "Linear_0"): 3,
        second: 6,
        (*second, "Linear_1"): 6,
    }
    for path, one in trace.modules.items():
        assert one.forward > 0 < one.backward, path
        if len(path) > 1:
            above = trace.modules[path[:-1]]
            assert one.backward <= above.backward
    assert not trace.on_device
    assert trace.peak_bytes is not None
    assert trace.peak_bytes > 256 * 64 * 4
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert read_recorded(packed) == trace
    assert main(["show", str(file)]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"(?m)^    Block_0 +3 ", printed)
    assert "scheduler.pytorch.profile(model, inputs) measures costs" in " ".join(printed.split())
    with pytest.raises(InvalidCosts, match=r"a trace of torch.profiler, which does not say"):
        solve(str(file), budget_gb=1)
    assert main(["show", str(file), "--json"]) == 2


def event(name: str, start: float, length: float, kind: str, tid: int = 1, **said: Any) -> Any:
    args = {key.replace("_", " "): value for key, value in said.items()}
    return {
        "ph": "X",
        "name": name,
        "ts": start,
        "dur": length,
        "cat": kind,
        "tid": tid,
        "args": args,
    }


def test_kernels_are_of_the_modules_that_launch_them(tmp_path: Path) -> None:
    """As on a GPU: the backward is another thread's, and kernels run later."""
    events = [
        event("nn.Module: Net_0", 0, 100, "python_function"),
        event("aten::mm", 10, 20, "cpu_op", Sequence_number=7),
        event("cudaLaunchKernel", 12, 2, "cuda_runtime", correlation=1),
        event(
            "autograd::engine::evaluate_function: MmBackward0",
            200,
            50,
            "cpu_op",
            2,
            Sequence_number=7,
        ),
        event("cudaLaunchKernel", 210, 2, "cuda_runtime", 2, correlation=2),
        event("cudaLaunchKernel", 300, 2, "cuda_runtime", correlation=3),
        event("gemm", 1000, 400, "kernel", 99, correlation=1),
        event("gemm", 2000, 800, "kernel", 99, correlation=2),
        event("adam", 3000, 999, "kernel", 99, correlation=3),
        {
            "ph": "i",
            "name": "[memory]",
            "ts": 5,
            "args": {"Device Type": 0, "Total Allocated": 10**9},
        },
        {
            "ph": "i",
            "name": "[memory]",
            "ts": 6,
            "args": {"Device Type": 1, "Total Allocated": 2**20},
        },
    ]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": events}))
    trace = read_recorded(file)
    assert isinstance(trace, Trace)
    (one,) = trace.modules.values()
    assert (one.calls, one.forward, one.backward) == (1, 0.4, 0.8)
    assert (trace.on_device, trace.peak_bytes) == (True, 2**20)
    assert "of kernels on the device" in str(trace)
    file.write_text(json.dumps({"traceEvents": events[1:3]}))
    assert "record it with profile(..., with_stack=True)" in str(read_recorded(file))
    file.write_text('{"traceEvents": [{"ph": "X", "name": 1, "ts": 2}]}')
    with pytest.raises(InvalidCosts, match="is not a whole trace"):
        read_recorded(file)


def frames(line: int) -> list[dict[str, Any]]:
    """As torch has them: its own first."""
    return [
        {"filename": "/lib/torch/nn/modules/linear.py", "line": 1, "name": "forward"},
        {"filename": "/home/me/train.py", "line": line, "name": "forward"},
    ]


def change(action: str, addr: int, size: int, line: int = 0) -> dict[str, Any]:
    return {"action": action, "addr": addr, "size": size, "frames": frames(line), "time_us": 1}


def test_a_snapshot_of_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights from before the history are known by what is left at the end."""
    history = [
        change("segment_alloc", 1, 10**6),
        change("alloc", 10, 700, 5),
        change("alloc", 20, 300, 6),
        change("alloc", 30, 50, 6),
        change("free_requested", 20, 300, 9),
        change("free_completed", 20, 300, 9),
        change("alloc", 20, 200, 7),
        change("free_requested", 10, 700, 9),
    ]
    blocks = [
        {"size": 4000, "state": "active_allocated", "frames": []},
        {"size": 200, "state": "active_allocated", "frames": frames(7)},
        {"size": 50, "state": "active_allocated", "frames": frames(6)},
        {"size": 9000, "state": "inactive", "frames": frames(7)},
    ]
    value = {
        "segments": [{"device": 0, "address": 0, "blocks": blocks}],
        "device_traces": [history, []],
    }
    file = tmp_path / "snapshot.pickle"
    file.write_bytes(pickle.dumps(value))
    found = read_recorded(file)
    assert found == Snapshot(
        device=0,
        peak_bytes=4000 + 700 + 300 + 50,
        alive={
            "before the history": 4000,
            "/home/me/train.py:5 forward": 700,
            "/home/me/train.py:6 forward": 350,
        },
        events=8,
    )
    assert main(["show", str(file)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Device 0: 4.932 KiB allocated at the highest moment of 8 events" in printed
    assert "scheduler.pytorch.profile(model, inputs) measures costs" in printed
    assert main(["solve", str(file), "--budget", "1GB"]) == 2
    assert "`checkpoint-scheduler show` says what it has" in capsys.readouterr().err
    file.write_bytes(pickle.dumps(value | {"device_traces": []}))
    bare = read_recorded(file)
    assert isinstance(bare, Snapshot)
    assert (bare.peak_bytes, bare.events) == (4250, 0)
    assert "(no history: torch.cuda.memory._record_memory_history() begins one)" in " ".join(
        str(bare).split()
    )


def test_other_files_are_left_as_they_are(tmp_path: Path) -> None:
    pipe, costs = tmp_path / "pipe", tmp_path / "costs.json"
    os.mkfifo(pipe)
    costs.write_text(CostGraph.example("resnet18").to_json())
    for path in (pipe, costs, tmp_path, tmp_path / "absent"):
        assert read_recorded(path) is None


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("harmed"),)


@pytest.mark.parametrize(
    "data", [pickle.dumps({"segments": Harmful()}), pickle.dumps([1]), b"\x80"]
)
def test_other_pickles_are_refused_and_not_run(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.pickle").write_bytes(data)
    with pytest.raises(
        InvalidCosts, match=r"a.pickle is no snapshot that torch.cuda.mem"
    ) as caught:
        read_recorded("a.pickle")
    assert "object is not" not in str(caught.value)  # Python's own words
    assert not Path("harmed").exists()
