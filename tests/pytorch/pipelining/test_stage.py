"""A model cut by a pipeline's plan, trained in several processes by torch's own schedules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F

from scheduler import InfeasibleBudget, InvalidPlan, UnsupportedModel
from scheduler.pipeline import PipelinePlan, solve_pipeline
from scheduler.pytorch import pipeline_stage, profile, with_output
from scheduler.pytorch.observe.tracker import MemoryTracker

WORDS, ROWS, TOKENS, MICROBATCHES = 128, 2, 32, 4


def llama(**more: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=WORDS,
        use_cache=False,
        **more,
    )
    return LlamaForCausalLM(config)


def loss_of(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), ids.flatten())


def planned(stages: int, schedule: str) -> PipelinePlan:
    """A plan of a tight budget, which keeps some blocks and checkpoints others."""
    model, ids = llama(), torch.zeros(ROWS, TOKENS, dtype=torch.long)
    costs = profile(model, {"input_ids": ids}, with_output(lambda out: loss_of(out.logits, ids)))
    asked: dict[str, Any] = {
        "stages": stages,
        "microbatches": MICROBATCHES,
        "schedule": schedule,
    }
    with pytest.raises(InfeasibleBudget) as caught:
        solve_pipeline(costs, budget="10kB", **asked)
    least = caught.value.smallest_budget_bytes
    free = max(stage.peak_bytes for stage in solve_pipeline(costs, 1, **asked).stages)
    return solve_pipeline(costs, budget=least + (free - least) // 3, **asked)


def train(rank: int, folder: str, schedule: str, text: str) -> None:
    """Two steps of one stage; what was measured is written for the test."""
    from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

    torch.set_num_threads(1)
    plan = PipelinePlan.from_json(text)
    stages = len(plan.stages)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=stages
    )
    model, whole = llama(), llama()
    stage = pipeline_stage(model, plan, rank)
    kind = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}[schedule]
    run = kind(stage, MICROBATCHES, loss_fn=loss_of)
    torch.manual_seed(1)
    ids = torch.randint(0, WORDS, (ROWS * MICROBATCHES, TOKENS))
    for _ in range(2):
        model.zero_grad(set_to_none=False)
        with MemoryTracker() as tracker:
            given = (ids,) if rank == 0 else ()
            target = ids if rank == stages - 1 else None
            run.step(*given, target=target, return_outputs=False)
    for rows in ids.chunk(MICROBATCHES):
        (loss_of(whole(rows).logits, rows) / MICROBATCHES).backward()
    own = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    same = {
        name: torch.equal(own[name], p.grad)  # type: ignore[arg-type]
        for name, p in whole.named_parameters()
        if name in own
    }
    kept = {"names": list(own), "same": all(same.values()), "peak": tracker.peak_bytes}
    Path(folder, f"{rank}.json").write_text(json.dumps(kept))
    dist.destroy_process_group()


@pytest.mark.parametrize(("stages", "schedule"), [(2, "1f1b")])
def test_a_planned_pipeline_trains(stages: int, schedule: str, tmp_path: Path) -> None:
    plan = planned(stages, schedule)
    assert any(stage.plan.overhead > 0 for stage in plan.stages)
    mp.spawn(train, (str(tmp_path), schedule, plan.to_json()), nprocs=stages)  # type: ignore[attr-defined]
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(stages)]
    names = [name for each in found for name in each["names"]]
    assert sorted(names) == sorted(name for name, _ in llama().named_parameters())
    for stage, each in zip(plan.stages, found, strict=True):
        assert each["same"]
        assert each["peak"] <= stage.peak_bytes


@pytest.fixture
def alone(tmp_path: Path) -> Any:
    """A group of one process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_what_cannot_be_cut() -> None:
    plan = planned(2, "1f1b")
    with pytest.raises(InvalidPlan, match="the plan has 2 stages, and there are 1 processes"):
        pipeline_stage(llama(), plan, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "get_world_size", lambda group=None: 2)
        with pytest.raises(InvalidPlan, match="stages 0 to 1, and no stage 2"):
            pipeline_stage(llama(), plan, 2)
        with pytest.raises(UnsupportedModel, match="are one weight, and the plan has them on"):
            pipeline_stage(llama(tie_word_embeddings=True), plan, 0)
        with pytest.raises(InvalidPlan, match=r"none of the plan's layers"):
            pipeline_stage(nn.Linear(2, 2), plan, 0)


def test_costs_of_a_shape_hold_the_logits() -> None:
    from scheduler.memory import pipeline_costs

    asked: dict[str, Any] = {"batch": 1, "sequence": 64, "pipeline_parallel": 2}
    heads = [
        pipeline_costs("gpt2", runtime=runtime, **asked).layers[-1].saved_bytes
        for runtime in ("torch", "megatron")
    ]
    assert heads[0] >= heads[1] + 64 * 50257 * 2
