"""Models that look like a chain of blocks and are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from scheduler.common.errors import UnsupportedModel
from scheduler.pytorch import profile


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
def test_a_skip_around_all_blocks_is_refused(fake: bool) -> None:
    model = Skip()
    with pytest.raises(UnsupportedModel, match="also reads what runs before them"):
        profile(model, torch.randn(4, 8), lambda y: y.sum(), fake=fake)
    model.around = False
    assert len(profile(model, torch.randn(4, 8), lambda y: y.sum(), fake=fake)) == 5
