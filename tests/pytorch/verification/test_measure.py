"""`measure` on models that are no stack, or that checkpoint on their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from scheduler import UnsupportedModel
from scheduler.pytorch import apply, measure, verify
from tests.pytorch import models
from tests.pytorch.checkpointing.test_refusals import Stack, blocks_of, segments
from tests.pytorch.models import mean_square, mlp, noise

X = noise(32, 16)


def test_a_model_without_a_stack() -> None:
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))
    outer = nn.ModuleDict({"only": nn.Linear(16, 4)})
    outer.forward = lambda x: outer["only"](x)
    found = measure(outer, X, mean_square)
    assert found.forwards == {}
    assert found.peak_bytes >= X.nbytes + 32 * 4 * 4
    assert measure(outer, X, mean_square, blocks=["only"]).forwards == {"only": 1}
    assert measure(model, X, mean_square).forwards == {"0": 1, "1": 1, "2": 1}
    with pytest.raises(UnsupportedModel, match="no module 'absent'"):
        measure(outer, X, mean_square, blocks=["absent"])


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_:FutureWarning")
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("make", [models.gpt2, models.llama])
def test_the_checkpointing_of_transformers(make: Callable[..., Any], reentrant: bool) -> None:
    model = make(n_layer=2)
    once = measure(model, models.batch())
    model.gradient_checkpointing_enable(
        gradient_checkpointing_kwargs={"use_reentrant": reentrant, "preserve_rng_state": True}
    )
    for fake in (False, True):
        found = measure(model, models.batch(), fake=fake)
        assert found.forwards == dict.fromkeys(once.forwards, 2)
        assert found.peak_bytes < once.peak_bytes


class Checkpointing(nn.Module):
    """A block with a checkpoint of its own: around all of it, a part, or a part in another."""

    def __init__(self, around: str, reentrant: bool) -> None:
        super().__init__()
        self.one, self.other, self.act = mlp(dropout=0.0), mlp(dropout=0.0), nn.Tanh()
        self.around, self.reentrant = around, reentrant

    def again(self, body: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        made = checkpoint(body, x, use_reentrant=self.reentrant)
        assert isinstance(made, torch.Tensor)
        return made

    def part(self, x: torch.Tensor) -> torch.Tensor:
        made = self.act(self.other(self.act(x)))
        assert isinstance(made, torch.Tensor)
        return made

    def whole(self, x: torch.Tensor) -> torch.Tensor:
        x = self.one(self.act(x))
        return self.part(x) if self.around == "whole" else self.again(self.part, x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.whole(x) if self.around == "part" else self.again(self.whole, x)


@pytest.mark.parametrize(
    ("around", "reentrant"),
    [("whole", True), ("whole", False), ("part", True), ("part", False), ("both", False)],
)
def test_a_checkpoint_inside_a_forward(around: str, reentrant: bool) -> None:
    model = Stack(3, lambda: Checkpointing(around, reentrant))
    x = X.clone().requires_grad_()
    before = {name: dict(module.__dict__) for name, module in model.named_modules()}
    assert measure(model, x, mean_square).forwards == dict.fromkeys(blocks_of(3), 2)
    assert before == {name: dict(module.__dict__) for name, module in model.named_modules()}
    if not reentrant:  # a plan counts what it runs again, the block's own checkpoint is the block's
        plan = segments(blocks_of(3), 1)
        assert verify(plan, model, x, mean_square).forwards == plan.forwards
        with apply(plan, model):
            found = measure(model, x, mean_square).forwards
        assert found == {**dict.fromkeys(blocks_of(3), 2), "blocks.0": 3}


def test_a_part_that_the_model_calls_from_outside_is_no_recomputation() -> None:
    class Outside(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.blocks[0][0](super().forward(x))  # type: ignore[index, no-any-return]

    assert measure(Outside(3), X, mean_square).forwards == dict.fromkeys(blocks_of(3), 1)
