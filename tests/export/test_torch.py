"""Exported Python files, executed: with torch alone, and under the frameworks that are here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from scheduler import Plan, frontier, solve
from scheduler.export import export
from scheduler.pytorch import measure, profile
from tests.export.export_cases import (
    MODEL,
    chain_costs,
    gpt2_plan,
    loaded,
    run_alone,
    sequential_plan,
)
from tests.pytorch.models import gpt2


def test_with_torch_alone(tmp_path: Path) -> None:
    cases = [
        ("gpt2", gpt2_plan(8), 8),
        ("gpt2", gpt2_plan(6, 0.5), 6),
        ("convolutions", sequential_plan(8), 8),
        ("convolutions", sequential_plan(5, 1.0), 5),
    ]
    said = run_alone(tmp_path, [(export(p, "torch").text, make, n) for make, p, n in cases])
    for (model, plan, depth), done in zip(cases, said, strict=True):
        what = model, depth
        assert done["gradients"], what
        assert done["state"], what  # batch norms have counted the batch once
        expected = {name: n for name, n in plan.forwards.items() if name in done["counts"]}
        assert len(expected) >= depth
        assert done["counts"] == done["counts in a copy"] == expected, what
        assert done["refused twice"] or not plan.depth
        assert done["left"] == []
        assert set(done["counts after removal"].values()) == {1}, what


def test_the_nested_plans_nest() -> None:
    assert gpt2_plan(8).depth >= 2
    assert sequential_plan(8).depth >= 2


def test_under_autocast_and_partly_frozen(tmp_path: Path) -> None:
    module = loaded(tmp_path, export(gpt2_plan(6), "torch").text, "mixed")
    tiny = loaded(tmp_path, MODEL, "tiny")
    for frozen in (False, True):
        found = []
        for planned in (False, True):
            model, tokens = tiny.gpt2(6)
            for name, parameter in model.named_parameters():
                parameter.requires_grad_("attn.proj" in name or not frozen)
            if planned:
                module.apply_plan(model)
            torch.manual_seed(1)
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(tokens)
            loss.backward()
            assert torch.is_autocast_cache_enabled()
            found.append([p.grad for p in model.parameters() if p.grad is not None])
        assert len(found[0]) == (12 if frozen else len(list(model.parameters())))
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_the_peak_is_the_plan_s(tmp_path: Path) -> None:
    model = gpt2(6)
    tokens = torch.randint(0, 64, (4, 64), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": tokens, "labels": tokens}
    costs = profile(model, batch)
    points = frontier(costs).points
    plan = solve(costs, budget=points[0][0] + (points[-1][0] - points[0][0]) // 20)
    assert plan.depth
    module = loaded(tmp_path, export(plan, "torch").text, "measured")
    applied = module.apply_plan(model)
    peak = measure(model, batch).peak_bytes
    applied.remove()
    assert 0.999 * plan.peak_bytes <= peak <= plan.peak_bytes
    assert measure(model, batch).peak_bytes > peak


def test_a_plan_that_nests_deeper_than_python_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = loaded(tmp_path, export(sequential_plan(8), "torch").text, "deep")
    monkeypatch.setattr(module.sys, "getrecursionlimit", lambda: 220)
    with pytest.raises(ValueError, match=r"nests deep: call sys\.setrecursionlimit\(2\d\d\)"):
        module.apply_plan(loaded(tmp_path, MODEL, "tiny").convolutions(8)[0])


def test_a_plan_of_another_model(tmp_path: Path) -> None:
    module = loaded(tmp_path, export(gpt2_plan(), "torch").text, "other")
    with pytest.raises(ValueError, match=r"Sequential has no module 'h\.\d' of the plan"):
        module.apply_plan(torch.nn.Sequential(torch.nn.Linear(1, 1)))


def test_blocks_that_share_a_segment_run_in_place(tmp_path: Path) -> None:
    """With hooks, arguments of their own, and random numbers of the model between them."""
    plan = gpt2_plan(6)
    assert plan.depth >= 2
    module = loaded(tmp_path, export(plan, "torch").text, "in_place")
    tiny = loaded(tmp_path, MODEL, "tiny")
    found, called = [], []
    for planned in (False, True):
        model, tokens = tiny.gpt2(6)
        masks = [torch.rand(8, 8).tril() > 0.1 * i for i in range(6)]
        for block in model.h:
            block.register_forward_hook(lambda block, *_: called.append(block))
        if planned:
            module.apply_plan(model)
        torch.manual_seed(1)
        x = model.wte(tokens)
        for block, mask in zip(model.h, masks, strict=True):
            x = block(x, mask=mask | torch.eye(8, dtype=torch.bool))[0]
            torch.rand(1)
        x.pow(2).mean().backward()
        assert called == list(model.h)
        called.clear()
        found.append([p.grad for p in model.h.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_blocks_that_do_not_follow_each_other(tmp_path: Path) -> None:
    module = loaded(tmp_path, export(sequential_plan(8), "torch").text, "alike")
    model, inputs = loaded(tmp_path, MODEL, "tiny").convolutions(8)
    module.apply_plan(model)
    with pytest.raises(RuntimeError, match="not called with what '0' returned"):
        model[1](model[0](inputs) * 1)
    with pytest.raises(RuntimeError, match="'1' runs out of order"):
        model[1](inputs)
    with pytest.raises(RuntimeError, match="'2' runs out of order after '0'"):
        model[2](model[0](inputs))
    x = model[0](inputs)
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(RuntimeError, match="'1' runs under another autocast than '0'"),
    ):
        model[1](x)
    with pytest.raises(RuntimeError, match="'2' was not called"):
        model[1](model[0](inputs)).sum().backward()
    model[0].insert(0, torch.nn.ReLU(inplace=True))
    with pytest.raises(RuntimeError, match="'0' changes its input in place"):
        model(inputs)


# --- frameworks ---------------------------------------------------------------------------------


def weights(folder: Path, callbacks: list[Any]) -> dict[str, torch.Tensor]:
    from transformers import Trainer, TrainingArguments

    model = gpt2(4)
    tokens = torch.randint(0, 64, (8, 16), generator=torch.Generator().manual_seed(0))
    rows: Any = [{"input_ids": row, "labels": row} for row in tokens]
    quiet: dict[str, Any] = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True}
    arguments = TrainingArguments(
        str(folder), max_steps=2, use_cpu=True, per_device_train_batch_size=4, **quiet
    )
    Trainer(model, arguments, train_dataset=rows, callbacks=callbacks).train()
    assert not any("forward" in module.__dict__ for module in model.modules())
    return model.state_dict()


def hf_plan() -> Plan:
    names = [f"transformer.h.{i}" for i in range(4)]
    costs = chain_costs(["embedding", *names, "head"], ("embedding", "head"))
    return solve(costs, budget=solve(costs, 1).keep_all_peak_bytes - 60)


def test_the_callback_runs_under_trainer(tmp_path: Path) -> None:
    plan = hf_plan()
    module = loaded(tmp_path, export(plan, "transformers").text, "trainer_plan")
    ran: list[int] = []

    class Counting(module.ApplyPlan):  # type: ignore[misc, name-defined]
        def on_step_end(self, *_: Any, **kwargs: Any) -> None:
            blocks = kwargs["model"].transformer.h
            ran.append(sum("forward" in block.__dict__ for block in blocks))

    found, expected = weights(tmp_path, [Counting()]), weights(tmp_path, [])
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    inside = [name for name, is_in in module.IS_CHECKPOINTED.items() if is_in]
    assert ran == [len(inside)] * 2
    assert inside


def test_the_nearest_setting_is_one_that_transformers_has(tmp_path: Path) -> None:
    plan = hf_plan()
    done = export(plan, "transformers")
    module = loaded(tmp_path, done.text, "nearest")
    assert module.NEAREST["activation_checkpointing"] is True
    model = gpt2(4)
    model.activation_checkpointing_enable(**module.NEAREST["activation_checkpointing_kwargs"])
    on = [i for i, block in enumerate(model.transformer.h) if block.gradient_checkpointing]
    assert done.outcome is not None
    assert [f"transformer.h.{i}" for i in on] == [
        plan.layers[first] for first, _ in done.outcome.setting.segments
    ]


def test_lightning(tmp_path: Path) -> None:
    import lightning

    plan = gpt2_plan(4)
    module = loaded(tmp_path, export(plan, "lightning").text, "lightning_plan")
    tiny = loaded(tmp_path, MODEL, "tiny")

    class Wrapped(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = tiny.gpt2(4)[0]

        def training_step(self, tokens: torch.Tensor, _: int) -> Any:
            return self.model(tokens)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.model.parameters(), lr=0.1)

    def train(*callbacks: Any) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        settings: dict[str, Any] = {"accelerator": "cpu", "logger": False, "max_epochs": 1}
        settings |= {"enable_checkpointing": False, "enable_progress_bar": False}
        settings |= {"enable_model_summary": False, "default_root_dir": str(tmp_path)}
        whole, tokens = Wrapped(), torch.randint(0, 32, (4, 8))
        trainer = lightning.Trainer(callbacks=list(callbacks), **settings)
        trainer.fit(whole, torch.utils.data.DataLoader(tokens, batch_size=2))  # type: ignore[arg-type]
        assert not any("forward" in part.__dict__ for part in whole.model.h)
        return dict(whole.state_dict())

    found, expected = train(module.ApplyPlan("model")), train()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_accelerate(tmp_path: Path) -> None:
    from accelerate import Accelerator

    plan = gpt2_plan(4)
    module = loaded(tmp_path, export(plan, "accelerate").text, "accelerate_plan")
    tiny = loaded(tmp_path, MODEL, "tiny")
    gradients = []
    for planned in (True, False):
        model, tokens = tiny.gpt2(4)
        accelerator = Accelerator(cpu=True)
        prepare = module.prepare_with_plan if planned else type(accelerator).prepare
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = prepare(accelerator, model, optimizer)
        torch.manual_seed(1)
        accelerator.backward(model(tokens))
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


FSDP = """
import os, sys
sys.path.insert(0, sys.argv[1])
import torch, plan, tiny
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

torch.set_num_threads(1)
store = dist.FileStore(sys.argv[1] + "/store", 1)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
found = []
for planned in (True, False):
    model, tokens = tiny.gpt2(6)
    if planned:
        plan.shard_with_plan(model, mesh=mesh)
        assert all(isinstance(block, FSDPModule) for block in model.h)
    else:
        for block in model.h:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    for step in range(2):
        torch.manual_seed(1)
        model(tokens).backward()
    found.append([p.grad.to_local() for p in model.parameters()])
print(all(map(torch.equal, *found)))
dist.destroy_process_group()
"""


def test_fsdp(tmp_path: Path) -> None:
    plan = gpt2_plan(6)
    assert plan.depth >= 2
    (tmp_path / "plan.py").write_text(export(plan, "fsdp").text)
    (tmp_path / "tiny.py").write_text(MODEL)
    (tmp_path / "step.py").write_text(FSDP)
    done = subprocess.run(
        [sys.executable, "-I", "step.py", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "True"
