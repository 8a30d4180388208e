"""Models cut to stages of a plan: which cuts are refused (examples/pipeline.py trains them)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from scheduler import InvalidPlan, LayerCost, UnsupportedModel, solve_pipeline
from scheduler.pipeline import PipelinePlan
from scheduler.pytorch import pipeline_stage
from scheduler.pytorch.pipelining.cut import Spans, StageModel, check_cuts


def plan_of(
    *names: str, stages: int = 1, budget: str = "1GB", schedule: Any = "1f1b"
) -> PipelinePlan:
    costs = [
        LayerCost(name=n, forward_time=1, backward_time=2, output_bytes=64, saved_bytes=640)
        for n in names
    ]
    return solve_pipeline(
        costs, stages=stages, microbatches=4, budget=budget, schedule=schedule, input_bytes=64
    )


def mlp(count: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.GELU()) for _ in range(count)))


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Decoder(nn.Module):
    """Blocks with weights around them."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.last = nn.Linear(4, 9)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.embed = nn.Embedding(9, 4)
        if tied:
            self.last.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x).relu()
        return self.last(x)  # type: ignore[no-any-return]


LAYERS = ("embedding", "layers.0", "layers.1", "layers.2", "head")
TOKENS = torch.arange(6).reshape(2, 3)


@pytest.mark.parametrize("cuts", [(0, 5), (0, 2, 5), (0, 1, 4, 5), (0, 1, 2, 3, 4, 5)])
def test_stages_one_after_the_other_are_the_model(cuts: tuple[int, ...]) -> None:
    whole, x = Decoder(), TOKENS
    for first, end in pairwise(cuts):
        model = Decoder()
        model.load_state_dict(whole.state_dict())
        spans = Spans(model, LAYERS, TOKENS)
        check_cuts(model, LAYERS, cuts, spans)
        stage = StageModel(model, range(first, end), spans)
        names = {name for name, _ in model.named_parameters()}
        wanted = {f"{name}.weight" for name in LAYERS[first:end] if name.startswith("layers")}
        assert {n for n in names if n.startswith("layers") and n.endswith("weight")} == wanted
        assert ("embed.weight" in names, "last.weight" in names) == (first == 0, end == 5)
        x = stage(x)
    assert torch.equal(x, whole(TOKENS))


def test_what_cannot_be_cut() -> None:
    with pytest.raises(UnsupportedModel, match=r"are one weight, and the plan has them on stages"):
        check_cuts(m := Decoder(tied=True), LAYERS, (0, 2, 5), Spans(m, LAYERS, TOKENS))
    with pytest.raises(UnsupportedModel, match="runs 'last' outside of its blocks; give inputs="):
        Spans(Decoder(), LAYERS, None)
    with pytest.raises(UnsupportedModel, match="cuts before 'between', which is no block"):
        check_cuts(n := mlp(2), ("0", "between", "1"), (0, 1, 3), Spans(n, ("0", "1"), None))


def test_schedules_that_are_not_the_plans_are_refused(alone: None) -> None:
    from torch.distributed.pipelining import ScheduleGPipe

    x = torch.randn(8, 4)
    stage = pipeline_stage(mlp(2), plan_of("0", "1"))
    with pytest.raises(InvalidPlan, match="holds more than 1 microbatches on stage 0"):
        ScheduleGPipe(stage, 4, loss_fn=nn.functional.mse_loss).step(x, target=x)
    stage = pipeline_stage(mlp(2), plan_of("0", "1", schedule="gpipe"))
    with pytest.raises(InvalidPlan, match="runs more than the 4 microbatches"):
        ScheduleGPipe(stage, 8, loss_fn=nn.functional.mse_loss).step(x, target=x)
    ScheduleGPipe(stage, 4, loss_fn=nn.functional.mse_loss).step(x, target=x)
    found = [p.grad for p in stage.submod.parameters()]
    whole = mlp(2)
    for part in x.chunk(4):
        nn.functional.mse_loss(whole(part), part).backward()
    for mine, p in zip(found, whole.parameters(), strict=True):
        assert p.grad is not None
        assert mine is not None
        assert torch.equal(mine, p.grad / 4)
