"""Exported Python files of plans with options: executed, with torch alone."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import torch

from scheduler import CostGraph, InvalidPlan, Plan, solve
from scheduler.export import export
from scheduler.pytorch import measure, profile
from scheduler.pytorch.observe.tracker import MemoryTracker
from solvers.schedule import Checkpoint, Keep
from tests.export.export_cases import MODEL, chain_costs, gpt2_plan, loaded, run_alone
from tests.pytorch.models import plan_of, smallest_budget


@cache
def option_costs(name: str) -> CostGraph:
    tiny = ModuleType("tiny")
    exec(MODEL, tiny.__dict__)
    model, inputs = getattr(tiny, name)(8)
    return profile(model, inputs, lambda loss: loss, options=True, fake=True)


def with_options(name: str) -> Plan:
    """Options by themselves, in a segment, at its end, nested, and alone in a checkpoint."""
    layers = option_costs(name)
    first = next(i for i, layer in enumerate(layers.layers) if layer.options)
    few, some, many = (layers.layers[first].options[n].name for n in (-4, -2, -1))
    nested = Checkpoint(
        first + 2, first + 4, (Keep(first + 2, many), Keep(first + 3), Keep(first + 4, few))
    )
    return plan_of(
        layers,
        [
            *map(Keep, range(first)),
            Keep(first, some),
            Checkpoint(first + 1, first + 5, (Keep(first + 1, few), nested, Keep(first + 5))),
            Checkpoint(first + 6, first + 6, (Keep(first + 6, many),)),
            Keep(first + 7, few),
            *map(Keep, range(first + 8, len(layers))),
        ],
    )


def test_options_with_torch_alone(tmp_path: Path) -> None:
    plans = {name: with_options(name) for name in ("gpt2", "convolutions")}
    texts = [(export(plan, "torch").text, name, 8) for name, plan in plans.items()]
    for plan, done in zip(plans.values(), run_alone(tmp_path, texts), strict=True):
        kept = {operation for keeps in plan.policies.values() for operation, *_ in keeps}
        assert kept >= {"aten.bernoulli_.float", "aten.div_.Scalar"}  # drawn, changed in place
        assert done["gradients"]
        assert done["state"]
        expected = {name: n for name, n in plan.forwards.items() if name in done["counts"]}
        assert done["counts"] == done["counts in a copy"] == expected
        assert max(expected.values()) == 4


@pytest.mark.parametrize("share", [0.1, 0.4])
def test_the_peak_with_options_is_the_plan_s(tmp_path: Path, share: float) -> None:
    layers = option_costs("gpt2")
    least = smallest_budget(layers)
    everything = solve(layers, budget=10**12).keep_all_peak_bytes
    plan = solve(layers, budget=round(least + share * (everything - least)))
    assert plan.policies
    module = loaded(tmp_path, export(plan, "torch").text, "measured_options")
    model, tokens = loaded(tmp_path, MODEL, "tiny").gpt2(8)
    module.apply_plan(model)
    peak = measure(model, tokens, lambda loss: loss).peak_bytes
    assert 0.98 * plan.peak_bytes <= peak <= plan.peak_bytes


@contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_step_leaves_nothing(tmp_path: Path) -> None:
    """Without a backward neither, and no garbage collector is needed."""
    module = loaded(tmp_path, export(with_options("gpt2"), "torch").text, "leaves_nothing")
    model, tokens = loaded(tmp_path, MODEL, "tiny").gpt2(8)
    module.apply_plan(model)
    with no_collector(), MemoryTracker() as tracker:
        for backward in (True, False, True):
            loss = model(tokens)
            if backward:
                loss.backward()
            del loss
            model.zero_grad()
            assert tracker.live_bytes == 0


def test_two_forwards_and_a_backward_in_parts(tmp_path: Path) -> None:
    module = loaded(tmp_path, export(with_options("gpt2"), "torch").text, "twice")
    found = []
    for planned in (False, True):
        model, tokens = loaded(tmp_path, MODEL, "tiny").gpt2(8)
        if planned:
            module.apply_plan(model)
        torch.manual_seed(1)
        first, second = model(tokens), model(tokens)
        torch.autograd.grad(first, list(model.head.parameters()), retain_graph=True)
        first.backward()
        second.backward()
        found.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_options_of_another_model(tmp_path: Path) -> None:
    plan = with_options("gpt2")
    module = loaded(tmp_path, export(plan, "torch").text, "of_another")
    model, tokens = loaded(tmp_path, MODEL, "tiny").gpt2(8)
    model.h[0].mlp = torch.nn.Identity()
    module.apply_plan(model)
    with pytest.raises(RuntimeError, match=r"'h.0' runs aten.addmm.default 2 times.* number 3"):
        model(tokens)


def test_other_operations_when_a_block_runs_again(tmp_path: Path) -> None:
    module = loaded(tmp_path, export(with_options("gpt2"), "torch").text, "switching")
    model, tokens = loaded(tmp_path, MODEL, "tiny").gpt2(8)
    module.apply_plan(model)
    loss = model(tokens)
    model.h[7].attn.drop.p = 0.0
    with pytest.raises(RuntimeError, match=r"'h.7' runs aten.* again where it ran aten.*whole"):
        loss.backward()


def test_compiled_blocks_are_refused(tmp_path: Path) -> None:
    module = loaded(tmp_path, export(with_options("gpt2"), "torch").text, "compiled")
    model, _ = loaded(tmp_path, MODEL, "tiny").gpt2(8)
    own = model.h[0].forward
    model.h[0].forward = torch.compile(own)
    with pytest.raises(ValueError, match=r"'h.0' is compiled: no results from inside"):
        module.apply_plan(model)
    del model.h[0].forward
    model.h[0].mlp[1] = torch.compile(model.h[0].mlp[1])
    with pytest.raises(ValueError, match=r"'h.0' is compiled: no results from inside"):
        module.apply_plan(model)
    model.h[0].mlp[1] = model.h[0].mlp[1]._orig_mod
    model.h[3].compile()
    with pytest.raises(ValueError, match=r"compile 'h.3' by block.forward"):
        module.apply_plan(model)
    assert not any("forward" in part.__dict__ for part in model.modules())


def test_options_under_fully_shard_are_refused() -> None:
    with pytest.raises(InvalidPlan, match=r"'h.0' with option .*fully_shard.*without options"):
        export(with_options("gpt2"), "fsdp")


def test_a_block_that_was_sharded_by_itself(tmp_path: Path) -> None:
    module = loaded(tmp_path, export(with_options("gpt2"), "torch").text, "sharded")
    model, tokens = loaded(tmp_path, MODEL, "tiny").gpt2(8)
    module.apply_plan(model)
    kind = type("FSDPModule", (), {"unshard": lambda _: None, "reshard": lambda _: None})
    model.h[0].__class__ = type("Sharded", (kind, type(model.h[0])), {})
    with pytest.raises(RuntimeError, match=r"'h.0' is a unit of fully_shard, where no option"):
        model(tokens)


def test_options_that_do_not_say_what_they_keep() -> None:
    costs = chain_costs(["0", "1", "2"]).to_dict()
    for layer in costs["layers"]:
        layer["saved_bytes"] = 1000
        layer["options"] = [{"name": "save-little", "saved_bytes": 10, "recompute_time": 0.1}]
    plan = solve(costs, budget=2000)
    assert any("option" in item for item in plan.to_dict()["items"] if isinstance(item, dict))
    for target in ("torch", "torchtitan", "accelerate"):
        with pytest.raises(InvalidPlan, match=r"'0' with .*'save-little', and does not say .* jax"):
            export(plan, target)


@pytest.mark.parametrize("target", ["torch", "transformers", "lightning", "accelerate", "fsdp"])
def test_files_are_code_that_ruff_accepts(tmp_path: Path, target: str) -> None:
    path = tmp_path / "plan.py"
    plan = gpt2_plan() if target == "fsdp" else with_options("gpt2")
    path.write_text(export(plan, target).text)
    rules = ["--select", "E,F,W,I", "--line-length", "100"]
    for command in (["check", *rules], ["format", "--check", "--line-length", "100"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--isolated", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("plan", [gpt2_plan, lambda _: with_options("gpt2")])
def test_torchtitan_names_its_blocks(tmp_path: Path, plan: Callable[[int], Plan]) -> None:
    module = loaded(tmp_path, export(plan(8), "torchtitan").text, "titan")
    tiny = loaded(tmp_path, MODEL, "tiny")
    model, tokens = tiny.gpt2(8)
    # A model of torchtitan has its blocks in a ModuleDict called layers.
    model.layers = torch.nn.ModuleDict({str(i): block for i, block in enumerate(model.h)})
    del model.h
    type(model).h = property(lambda self: self.layers.values())
    gradients = []
    for planned in (False, True):
        if planned:
            module.PlanPolicy().apply(model)
            assert any("forward" in block.__dict__ for block in model.layers.values())
        model.zero_grad()
        torch.manual_seed(1)
        model(tokens).backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
