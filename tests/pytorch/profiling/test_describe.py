"""A profile with its reasons, and the machine that a fake profile's times are for."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import torch
from torch import nn

from scheduler import CostGraph, InvalidCosts, UnsupportedModel
from scheduler.memory.errors import InvalidRecipe
from scheduler.memory.gpus import load_gpu
from scheduler.pytorch import Roofline, profile
from scheduler.pytorch.graph.profile import profile_graph
from scheduler.pytorch.observe.clock import Clock, spread
from scheduler.pytorch.profiling.describe import describe
from tests.pytorch import models
from tests.pytorch.models import bytes_of, mean_square, mlp, noise
from tests.pytorch.suite import t5

X = noise(32, 16)


class Several(nn.Module):
    """A model of which every kind of note can be made."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(16, 16)
        self.blocks = nn.ModuleList(mlp() for _ in range(6))
        self.small = nn.ModuleList(mlp(hidden=4) for _ in range(2))
        self.head, self.unused = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        for block in [*self.small, *self.small]:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


def test_what_was_found_and_folded() -> None:
    described = describe(Several(), X, mean_square, fake=True)
    assert described.blocks == [f"blocks.{i}" for i in range(6)]
    assert described.runs == 1
    assert described.folded == [["embedding"], described.blocks, ["(head)"]]
    assert bytes_of(described.costs) == bytes_of(profile(Several(), X, mean_square))
    text = str(described)
    assert "Several: 6 blocks, found as the stack 'blocks'. 1 of them was run by itself" in text
    assert "Times are estimated." in text.replace("\n", " ")
    assert "blocks.0 – 5  x 6" in text
    assert "embedding is what runs before the blocks: embed." in text
    assert "(head) is what runs after them, with the loss: small.0, small.1, head." in text


def test_measured_times_have_a_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    assert spread((1.0, 2.0, 3.0), (1.0, 1.0, 1.0)) == pytest.approx(1 / 3)
    assert spread((0.0,), (0.0,)) == 0
    ticks = count(1)
    monkeypatch.setattr(Clock, "mark", lambda self: next(ticks) ** 2)  # slower and slower
    described = describe(Several(), X, mean_square)
    assert all(layer.time_spread > 0 for layer in described.costs.layers)
    text = str(described)
    assert "spread" in text.splitlines()[3]
    assert "too noisy for these times to be trusted" in text
    graph = profile_graph(Several(), X, mean_square)
    assert all(layer.time_spread > 0 for layer in graph.layers)
    fake = describe(Several(), X, mean_square, fake=True)
    assert "spread" not in str(fake)


def test_what_was_left_out_and_why() -> None:
    model = Several()
    assert describe(model, X, mean_square).notes[-1] == "Not called in this step: unused."
    model.embed.requires_grad_(False)
    model.blocks[1][2].weight = model.blocks[0][2].weight  # type: ignore[index]
    model.blocks[2].eval()
    text = str(describe(model, X, mean_square))
    assert "Frozen: 2 of 37 parameters (embed.weight, embed.bias)." in text
    assert "blocks.1.2.weight is blocks.0.2.weight" in text.replace("\n", " ")
    assert "In evaluation mode: blocks.2." in text
    assert "The model is in evaluation mode" in str(describe(model.eval(), X, mean_square))


def test_blocks_that_are_always_kept_and_what_is_held() -> None:
    class Alternating(nn.Module):
        """Goes another way each time, and by what it is given."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            odd = bool(x.isfinite().all()) and next(calls) % 2
            return self.inner(x if odd else torch.sin(x))  # type: ignore[no-any-return]

    calls = count()
    model = nn.Sequential(mlp(), Alternating(), mlp())
    text = str(describe(model, X, mean_square))
    assert "3 blocks, the children of the Sequential" in text
    assert "Always kept, because they go another way when they are run again: 1." in text
    assert "held throughout: inputs and loss." in text
    assert "Times are measured." in text.replace("\n", " ")


def test_arguments_beside_the_activation() -> None:
    this = t5()
    described = describe(this.model, this.inputs, blocks="decoder.block.[1-9]", fake=True)
    text = str(described).replace("\n", " ")
    assert "5 blocks, named by the pattern 'decoder.block.[1-9]'. 2 of them were run" in text
    assert "of them 36.00 KiB that the blocks are handed beside the activation" in text
    assert "72.00 KiB more that the blocks are handed beside the activation are held for" in text
    assert "Beside the activation the blocks pass a gradient to other arguments." in text


def test_it_fits_on_a_screen() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(mlp(hidden=8 + i) for i in range(60)))
    text = str(describe(model, X, mean_square, fake=True))
    assert len(text.splitlines()) <= 40
    assert max(map(len, text.splitlines())) <= 100
    assert "(41 more rows are not shown)" in text


def test_nothing_of_the_model_changes() -> None:
    model = Several()
    before = [(dict(m._forward_hooks), dict(m._forward_pre_hooks)) for m in model.modules()]
    describe(model, X, mean_square)
    with pytest.raises(UnsupportedModel):
        describe(model, X)
    after = [(dict(m._forward_hooks), dict(m._forward_pre_hooks)) for m in model.modules()]
    assert after == before


# --- the machine --------------------------------------------------------------------------------


def times(graph: CostGraph) -> list[tuple[Any, ...]]:
    """All times of the layers."""
    return [(one.forward_time, one.recompute_time, one.backward_time) for one in graph.layers]


def test_a_gpu_by_name() -> None:
    model, inputs = models.llama(torch.bfloat16, 2), models.batch()
    gpu = load_gpu("h100")
    by_name = profile(model, inputs, fake=True, gpu="h100")
    by_hand = Roofline(
        gpu.sustained_flops, gpu.sustained_bandwidth, wide_flops_per_second=gpu.sustained_flops / 2
    )
    assert times(by_name) == times(profile(model, inputs, fake=True, roofline=by_hand))
    assert times(by_name) == times(profile(model, inputs, fake=True, gpu=gpu))
    slower = profile(model, inputs, fake=True, gpu="l40s")
    pairs = zip(by_name.layers, slower.layers, strict=True)
    assert all(one.forward_time < other.forward_time for one, other in pairs)
    assert bytes_of(by_name) == bytes_of(slower)


@pytest.mark.parametrize(("dtype", "share"), [(torch.bfloat16, 1.0), (torch.float32, 0.5)])
def test_a_product_on_a_gpu(dtype: torch.dtype, share: float) -> None:
    """Two of 4096 x 4096 x 4096 are bound by arithmetic; fp32 has half of the rate."""
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(4096, 4096, bias=False, dtype=dtype) for _ in range(2)))
        x = torch.empty(4096, 4096, dtype=dtype)
    found = profile(model, x, mean_square, gpu="h100").layers[0].forward_time
    flops = load_gpu("h100").sustained_flops * share
    assert found == pytest.approx(2 * 4096**3 / flops * 1e3)


def test_a_gpu_where_times_are_measured() -> None:
    model = nn.Sequential(mlp(), mlp())
    with pytest.raises(InvalidCosts, match=r"gpu='h100' estimates .*add fake=True, or leave gpu="):
        profile(model, X, mean_square, gpu="h100")
    with pytest.raises(InvalidCosts, match="give gpu= or roofline=, not both"):
        profile(model, X, mean_square, fake=True, gpu="h100", roofline=Roofline())
    with pytest.raises(InvalidRecipe, match="h100"):
        profile(model, X, mean_square, fake=True, gpu="h1000")
