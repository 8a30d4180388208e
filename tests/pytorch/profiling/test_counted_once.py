"""What several hold counts once in a profile, and what nobody holds not at all."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from scheduler.pytorch import profile
from tests.pytorch import models
from tests.pytorch.models import Case, mean_square, noise
from tests.pytorch.profiling.test_profile import check_prediction, layer

ROWS = 256
SIZE = ROWS * 16 * 4  # of one activation


class Latents(nn.Module):
    """Its second blocks start from an expanded parameter, and square what the first have made."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.ModuleList(models.mlp() for _ in range(2))
        self.second = nn.ModuleList(Squares() for _ in range(3))
        self.latents = nn.Parameter(torch.ones(1, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x * 2
        for block in self.first:
            h = block(h)
        h, context = self.latents.expand(ROWS, 16), h * 2
        for block in self.second:
            h = block(h, context)
        return h


class Squares(nn.Module):
    """A block that holds its second argument where that takes a gradient, and only there."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return x + self.linear(x) + context**2  # type: ignore[no-any-return]


class Features(nn.Module):
    """Blocks that follow each other, of which others read all: the last first, as a decoder."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.down = nn.ModuleList(models.mlp() for _ in range(3))
        self.up = nn.ModuleList(models.mlp() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, features = x * 2, []
        for block in self.down:
            h = block(h)
            features.append(h)
        made = [block(feature) for block, feature in zip(self.up, features[::-1], strict=True)]
        return made[0] * made[1] * made[2]  # type: ignore[no-any-return]


class Biased(nn.Module):
    """Blocks of attention, each with learned scores, which its kernel holds if they are not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Attention() for _ in range(3))
        self.scales = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, distances = x * 2, x.detach() @ x.T
        for block, scale in zip(self.blocks, self.scales, strict=True):
            h = block(h, distances + scale)
        return h


class Attention(nn.Module):
    """Attention of one head."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        q = self.linear(x)[None, None]
        mixed = nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=scores)
        return x + mixed[0, 0]


class Towers(nn.Module):
    """Two stacks, of which the first has nothing to train."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tower = nn.ModuleList(models.mlp() for _ in range(2)).requires_grad_(False)
        self.trunk = nn.ModuleList(models.mlp() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.tower:
            x = block(x)
        x = x.tanh()
        for block in self.trunk:
            x = block(x)
        return x


class Buffered(nn.Module):
    """A block that could change a large buffer, and does not."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = models.mlp()
        self.register_buffer("table", torch.ones(ROWS, 16 * 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(x * self.table.mean())  # type: ignore[no-any-return, operator]


@pytest.mark.parametrize("kind", [Latents, Features, Biased])
def test_what_is_there_already_counts_once(kind: type[nn.Module]) -> None:
    x = noise(ROWS, 16)
    this = Case(kind(), x, mean_square)
    check_prediction(this, profile(this.model, x, mean_square), 0.9, 0.7, 0.5, 0.0)


def test_a_forward_that_runs_again_copies_what_it_changes() -> None:
    model = nn.Sequential(nn.Linear(16, 16), *(Buffered() for _ in range(3)))
    graph = profile(model, noise(ROWS, 16), mean_square, blocks="[1-3]")
    block = layer(graph, "2")
    assert block.drop_transient_bytes is not None
    assert block.drop_transient_bytes >= 4 * SIZE > block.again_transient_bytes


def test_what_has_no_backward_is_no_block() -> None:
    model, x = Towers(), noise(ROWS, 16)
    graph = profile(model, x, mean_square)
    assert graph.names == ("embedding", "trunk.0", "trunk.1", "trunk.2", "head")
    check_prediction(Case(model, x, mean_square), graph, 0.9, 0.0)
