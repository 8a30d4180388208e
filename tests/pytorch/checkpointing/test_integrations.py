"""Plans beside what else people wrap around a model: data parallelism, sharding, compilation."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from peft import PrefixTuningConfig, get_peft_model
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.nn.parallel import DistributedDataParallel
from transformers import DynamicCache

from scheduler import Plan, UnsupportedModel, solve
from scheduler.pytorch import (
    apply,
    apply_graph,
    block_graph,
    describe,
    measure,
    profile,
    profile_graph,
    trace,
    verify,
)
from scheduler.pytorch.observe.tracker import MemoryTracker
from solvers.schedule import Checkpoint, Items, Keep
from tests.pytorch import models
from tests.pytorch.checkpointing import spread
from tests.pytorch.checkpointing.test_refusals import Stack, blocks_of, segments
from tests.pytorch.models import assert_equal, case, costs, gradients, mean_square, mlp, noise

ROOT = Path(__file__).parents[3]
X = noise(1024, 16)
CHECKS = [
    *(f"ddp {when}{how}" for when in ("before", "after") for how in ("", " static_graph")),
    *(f"ddp {when} find_unused_parameters" for when in ("before", "after")),
    "ddp followed",
    *(f"fsdp {when}{how}" for when in ("before", "after") for how in ("", " mixed")),
    *(f"fsdp {when} {how}" for when in ("before", "after") for how in ("nested", "nested mixed")),
    *(f"{how} {when} tiles" for when in ("before", "after") for how in ("ddp", "fsdp")),
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


@pytest.fixture(scope="module")
def one_process() -> Iterator[None]:
    """A group of this process alone."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def entries(plan: Plan) -> dict[str, Callable[[nn.Module], Any]]:
    """Everything that takes a model."""
    return {
        "profile": lambda model: profile(model, X, mean_square),
        "describe": lambda model: describe(model, X, mean_square),
        "block_graph": lambda model: block_graph(model, X, mean_square),
        "measure": lambda model: measure(model, X, mean_square),
        "verify": lambda model: verify(plan, model, X, mean_square),
        "apply": lambda model: apply(plan, model).remove(),
        "trace": lambda model: trace(model, X),
        "profile_graph": lambda model: profile_graph(model, X, mean_square),
        "apply_graph": lambda model: apply_graph([], trace(Stack(4), X), model),
    }


def assert_refused(model: nn.Module, match: str, *, but: tuple[str, ...] = ()) -> None:
    """By every entry, before the model has run."""

    def ran(*_: Any) -> None:
        raise AssertionError("the model has run")

    hook = model.register_forward_pre_hook(ran)
    for name, call in entries(segments(blocks_of(4), 1)).items():
        if name not in but:
            with pytest.raises(UnsupportedModel, match=match):
                call(model)
    hook.remove()


@pytest.mark.usefixtures("one_process")
def test_a_model_in_ddp_is_what_is_inside() -> None:
    bare = Stack(4)
    wrapped: Any = DistributedDataParallel(bare, static_graph=True)
    costs = profile(wrapped, X, mean_square)
    assert costs.names == (*blocks_of(4), "head")
    assert models.bytes_of(costs) == models.bytes_of(profile(bare, X, mean_square))
    plan = solve(costs, budget=10**12, method="every-layer")
    assert describe(wrapped, X, mean_square).blocks == blocks_of(4)
    assert measure(wrapped, X, mean_square).forwards == dict.fromkeys(blocks_of(4), 1)
    assert verify(plan, wrapped, X, mean_square).ok
    reference = gradients(bare, X, mean_square)
    with apply(plan, wrapped):
        found = gradients(wrapped, X, mean_square)
    assert_equal({name.removeprefix("module."): g for name, g in found.items()}, reference)


class Skip(nn.Module):
    """A graph, with a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.one(x)
        return self.one(self.other(torch.tanh(x)) + x)  # type: ignore[no-any-return]


@pytest.mark.usefixtures("one_process")
def test_a_graph_in_ddp_is_what_is_inside() -> None:
    bare = Skip()
    reference = gradients(bare, X, mean_square)
    wrapped: Any = DistributedDataParallel(bare)
    costs = profile_graph(wrapped, X, mean_square)
    assert costs.names == profile_graph(bare, X, mean_square).names
    assert "one#2" in costs.names
    with apply_graph(solve(costs, budget=10**12), trace(wrapped, X), wrapped):
        found = gradients(wrapped, X, mean_square)
    assert_equal({name.removeprefix("module."): g for name, g in found.items()}, reference)


@pytest.mark.usefixtures("one_process")
def test_sharded_models() -> None:
    """FSDP2 gathers what is called as a module, and no layer by itself; FSDP1 is none of ours."""
    model: Any = Stack(4)
    mesh = init_device_mesh("cpu", (1,))
    fully_shard = spread.fully_shard  # type: ignore[attr-defined]
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    sharded = "the model is sharded with fully_shard, .* pass the model before it"
    assert_refused(model, sharded, but=("measure", "verify", "apply"))
    assert measure(model, X, mean_square).forwards == dict.fromkeys(blocks_of(4), 1)
    plan = solve(profile(Stack(4), X, mean_square), budget=10**12, method="every-layer")
    assert verify(plan, model, X, mean_square).gradients == "equal"
    earlier: Any = FullyShardedDataParallel(
        Stack(4), sharding_strategy=ShardingStrategy.NO_SHARD, device_id=torch.device("cpu")
    )
    assert_refused(earlier, "the model is wrapped in FullyShardedDataParallel, .* fully_shard")


def test_data_parallel_is_refused() -> None:
    """Its copies would run the first device's blocks."""
    assert_refused(nn.DataParallel(Stack(4)), "use DistributedDataParallel")


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


def test_a_model_compiled_as_a_whole_is_refused() -> None:
    expected = r"compiled as a whole.* torch.compile\(block.forw"
    compiled: Any = torch.compile(Stack(4), backend="aot_eager")
    assert_refused(compiled, f"the model is {expected}")
    model = Stack(4)
    model.forward = torch.compile(model.forward, backend="aot_eager")  # type: ignore[method-assign]
    assert_refused(model, f"the model is {expected}")
    model = Stack(4)
    model.compile(backend="aot_eager")
    assert_refused(model, f"the model is {expected}")
    outer = nn.ModuleDict({"inner": model})
    with pytest.raises(UnsupportedModel, match=rf"'inner', which has the blocks .* is {expected}"):
        profile(outer, X, mean_square)


def test_blocks_compiled_in_place_are_refused() -> None:
    model = stack()
    model.blocks[1].compile(backend="aot_eager")
    expected = r"'blocks.1' was compiled .* by .compile\(\)"
    with pytest.raises(UnsupportedModel, match=expected):
        apply(nested(), model)
    with pytest.raises(UnsupportedModel, match=expected):
        profile(model, X, mean_square)
    assert all("forward" not in block.__dict__ for block in model.blocks)


def test_options_in_compiled_blocks_are_refused_before_anything_runs() -> None:
    model = stack()
    model.blocks[2][0].compile(backend="aot_eager")  # type: ignore[index]
    for look in (block_graph, partial(profile, options=True), partial(describe, options=True)):
        with pytest.raises(UnsupportedModel, match=r"'blocks.2' is compiled, or a part .* without"):
            look(model, None, mean_square)


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
