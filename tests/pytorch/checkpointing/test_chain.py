"""A model whose head reads around its blocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from scheduler import solve
from scheduler.pytorch import apply, measure, profile
from tests.pytorch.models import smallest_budget


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))


class Skip(nn.Module):
    """The head reads the embedding too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(block() for _ in range(3))
        self.around = True

    def forward(self, x: torch.Tensor) -> Any:
        start = x = self.embedding(x)
        for inner in self.blocks:
            x = inner(x)
        return x + start if self.around else x


@pytest.mark.parametrize("fake", [False, True])
def test_a_skip_around_all_blocks(fake: bool) -> None:
    model, x = Skip(), torch.randn(4, 8)
    costs = profile(model, x, lambda y: y.sum(), fake=fake)
    assert len(costs.layers) == 5
    for budget in (10**9, smallest_budget(costs)):
        plan = solve(costs, budget=budget)
        with apply(plan, model):
            measured = measure(model, x, lambda y: y.sum())
        assert measured.peak_bytes <= plan.peak_bytes <= 1.05 * measured.peak_bytes
