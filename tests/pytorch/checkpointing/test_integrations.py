"""Plans beside what else people wrap around a model: data parallelism, sharding, compilation."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PrefixTuningConfig, get_peft_model
from torch import nn
from transformers import DynamicCache

from scheduler import Plan, UnsupportedModel, solve
from scheduler.pytorch import apply, describe, measure, profile, verify
from scheduler.pytorch.observe.tracker import MemoryTracker
from solvers.schedule import Checkpoint, Items, Keep
from tests.pytorch import models
from tests.pytorch.checkpointing.test_refusals import Stack, blocks_of, segments
from tests.pytorch.models import assert_equal, case, costs, gradients, mean_square, mlp, noise

ROOT = Path(__file__).parents[3]
X = noise(1024, 16)
CHECKS = [
    *(f"ddp {when}{how}" for when in ("before", "after") for how in ("", " static_graph")),
    *(f"ddp {when} find_unused_parameters" for when in ("before", "after")),
    *(f"fsdp {when}{how}" for when in ("before", "after") for how in ("", " mixed")),
    *(f"fsdp {when} {how}" for when in ("before", "after") for how in ("nested", "nested mixed")),
    *("fsdp before deep", "fsdp after deep", "fsdp kept", "fsdp kept nested"),
    *("fsdp grouped", "fsdp stages", "fsdp stages refused", "fsdp scattered"),
]


# --- two processes ------------------------------------------------------------------------------


def test_two_processes() -> None:
    """Bitwise the gradients without a plan, and a refusal where blocks would not be gathered."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command, "-m", "tests.pytorch.checkpointing.spread"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = [line[8:] for line in done.stdout.splitlines() if line.startswith("passed: ")]
    assert sorted(passed) == sorted(CHECKS)


def test_data_parallel_is_refused() -> None:
    """Its copies would run the first device's blocks."""
    with pytest.raises(UnsupportedModel, match="use DistributedDataParallel"):
        apply(segments(blocks_of(4), 1), nn.DataParallel(Stack(4)))


# --- compilation --------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def stack() -> Stack:
    """Without dropout, which a compiled block draws otherwise."""
    return Stack(6, lambda: mlp(dropout=0.0))


def nested() -> Plan:
    """Two levels, over five of the six blocks."""
    inner = (Checkpoint(0, 2, tuple(Keep(i) for i in range(3))), Keep(3), Keep(4))
    return replace(segments(blocks_of(6)), schedule=Items((Checkpoint(0, 4, inner), Keep(5))))


def peak(model: Any) -> int:
    """Of one step, the compiler warmed up."""
    mean_square(model(X)).backward()
    with MemoryTracker() as tracker:
        model.zero_grad()
        mean_square(model(X)).backward()
        found: int = tracker.peak_bytes
    model.zero_grad()
    return found


def test_blocks_compiled_by_their_forwards() -> None:
    model = stack()
    for block in model.blocks:
        block.forward = torch.compile(block.forward, backend="aot_eager")
    reference = gradients(model, X, mean_square)
    with apply(nested(), model) as handle:
        assert handle.report().ok
        assert_equal(gradients(model, X, mean_square), reference)
        found = measure(model, X, mean_square)
    assert found.forwards == {f"blocks.{i}": n for i, n in enumerate((3, 3, 3, 2, 2, 1))}
    assert found.peak_bytes < 0.7 * measure(model, X, mean_square).peak_bytes


def test_blocks_compiled_as_modules() -> None:
    model = stack()
    for i in range(6):
        model.blocks[i] = torch.compile(model.blocks[i], backend="aot_eager")  # type: ignore[assignment]
    reference = gradients(model, X, mean_square)
    with apply(nested(), model):
        assert_equal(gradients(model, X, mean_square), reference)
        planned = peak(model)
    assert planned < 0.7 * peak(model)


def test_a_model_compiled_as_a_whole_still_nests() -> None:
    """Traced together, nested checkpoints become one, which holds all that they drop."""
    model = stack()
    reference = gradients(model, X, mean_square)
    with apply(nested(), model):
        eager = peak(model)
        compiled = torch.compile(model, backend="aot_eager")
        compared = gradients(model, X, mean_square)
        assert peak(compiled) <= eager
        mean_square(compiled(X)).backward()
        found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert_equal(compared, reference)
    assert_equal(found, reference)


def test_a_plan_for_a_compiled_model_is_refused() -> None:
    compiled: Any = torch.compile(stack(), backend="aot_eager")
    with pytest.raises(UnsupportedModel, match=r"compiled as a whole.* torch.compile\(block.forw"):
        apply(nested(), compiled)


def test_blocks_compiled_in_place_are_refused() -> None:
    model = stack()
    model.blocks[1].compile(backend="aot_eager")
    with pytest.raises(UnsupportedModel, match=r"'blocks.1' was compiled .* by .compile\(\)"):
        apply(nested(), model)
    assert all("forward" not in block.__dict__ for block in model.blocks)


def test_blocks_compiled_in_place_afterwards_run_uncompiled() -> None:
    model = stack()
    reference = gradients(model, X, mean_square)
    with apply(nested(), model) as handle:
        for block in model.blocks:
            block.compile(backend="aot_eager")
        assert_equal(gradients(model, X, mean_square), reference)
        assert not handle.report().ok


# --- what a naive adapter gets wrong -------------------------------------------------------------


# transformers 5.24 has another name for it.
@pytest.mark.filterwarnings("ignore:.*past_key_values:FutureWarning")
def test_a_generation_cache_that_is_handed_over_is_refused() -> None:
    """It would stay empty, and whoever handed it over looks into it; from every entry."""
    model: Any = copy.deepcopy(case("llama-float32").model)
    plan = solve(costs("llama-float32"), budget=models.smallest_budget(costs("llama-float32")))
    inputs = {**models.batch(), "past_key_values": DynamicCache(config=model.config)}
    for entry in (profile, describe, measure, partial(verify, plan)):
        with pytest.raises(UnsupportedModel, match=r"handed a generation cache \(DynamicCache"):
            entry(model, inputs)
    with apply(plan, model), pytest.raises(UnsupportedModel, match="handed a generation cache"):
        model(**inputs)


@pytest.mark.filterwarnings("ignore:.*:FutureWarning")
def test_prefix_tuning_is_refused() -> None:
    settings = PrefixTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM")
    model = get_peft_model(models.llama(use_cache=True), settings)
    with pytest.raises(UnsupportedModel, match=r"cache that holds something .* prefix tuning"):
        profile(model, models.batch())
