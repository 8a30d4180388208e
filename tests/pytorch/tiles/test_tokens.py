"""Whether a module treats tokens alone, and which operation does not."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from scheduler.pytorch.observe.tracker import MemoryTracker
from scheduler.pytorch.tiles.tokens import why_whole

OTHER = nn.Parameter(torch.ones(8, 8))
X = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))
Forward = Callable[..., Any]


class Does(nn.Module):
    """A module with a weight, a table of positions and a counter, that does one thing."""

    def __init__(self, does: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.does = does
        self.lin = nn.Linear(8, 8)
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm1d(8)
        self.position = nn.Parameter(torch.zeros(64, 8))
        self.drop = nn.Dropout(0.1)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> Any:
        return self.does(self, x)


def counted(module: Any, x: torch.Tensor) -> torch.Tensor:
    module.calls += 1
    return x


def heads(module: Any, x: torch.Tensor) -> torch.Tensor:
    rows, length, width = x.shape
    parts = module.lin(x).view(rows, length, 2, width // 2).transpose(1, 2).softmax(-1)
    made: torch.Tensor = parts.transpose(1, 2).reshape(rows, length, width)
    return made


ALONE: dict[str, nn.Module] = {
    "mlp": nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 5)),
    "gated": LlamaMLP(LlamaConfig(hidden_size=8, num_attention_heads=2, intermediate_size=22)),
    "upcast norm": LlamaRMSNorm(8).bfloat16(),
    "layer norm": nn.LayerNorm(8),
    "heads": Does(heads),
    "parts": Does(lambda m, x: torch.cat([a * b for a, b in [m.lin(x).chunk(2, -1)]], -1)),
    "best": Does(lambda m, x: x.topk(2, -1).values / x.norm(dim=-1, keepdim=True)),
    "no dropout": Does(lambda m, x: m.drop(x)).eval(),
}


@pytest.mark.parametrize("name", ALONE)
def test_what_treats_tokens_alone(name: str) -> None:
    module = ALONE[name]
    x = X.to(next(module.parameters()).dtype)
    assert why_whole(module, module.forward, (x,), {}) == ""
    if name != "heads":  # which takes apart what it is handed by three names
        assert why_whole(module, module.forward, (x[0],), {}) == ""


MIXED: dict[str, tuple[Callable[[Any, torch.Tensor], Any], str]] = {
    "attention": (
        lambda m, x: F.scaled_dot_product_attention(x, x, x),
        "mixes tokens by aten.bmm",
    ),
    "scores": (lambda m, x: (x @ x.mT).softmax(-1) @ x, "mixes tokens by aten.bmm"),
    "time": (lambda m, x: m.conv(x.mT).mT, "mixes tokens by aten.convolution"),
    "batch norm": (lambda m, x: m.norm(x.flatten(0, 1)).view_as(x), "aten.native_batch_norm"),
    "mean": (lambda m, x: x - x.mean(1, keepdim=True), "mixes tokens by aten.mean.dim"),
    "rows": (lambda m, x: x - x.mean(0, keepdim=True), "mixes tokens by aten.mean.dim"),
    "all": (lambda m, x: x / x.sum(), "mixes tokens by aten.sum"),
    "softmax": (lambda m, x: x.softmax(1), "mixes tokens by aten._softmax"),
    "running": (lambda m, x: x.cumsum(1), "mixes tokens by aten.cumsum"),
    "order": (lambda m, x: x.flip(1), "mixes tokens by aten.flip"),
    "sorted": (lambda m, x: x.sort(1).values, "mixes tokens by aten.sort"),
    "places": (lambda m, x: x + m.position[: x.shape[1]], "mixes tokens by aten.slice"),
    "numbers": (
        lambda m, x: x * torch.arange(x.shape[1])[:, None],
        "mixes tokens by aten.arange",
    ),
    "turned": (
        lambda m, x: x.reshape(x.shape[0], x.shape[2], x.shape[1]).mT,
        "mixes tokens by aten.view",
    ),
    "routed": (lambda m, x: x.index_add(0, (x[:, 0, 0] > 0).nonzero()[:, 0], x), "mixes tokens"),
    "more": (lambda m, x: torch.cat([x, x], 1)[:, ::2], "mixes tokens by aten.cat"),
    "dropout": (lambda m, x: m.drop(x), "draws random numbers by aten."),
    "counter": (counted, "changes something in its forward"),
    "in place": (lambda m, x: x.add_(1), "changes its input in place"),
    "two": (lambda m, x: (x, x), "returns more than one tensor"),
    "last": (lambda m, x: x[:, -1], "mixes tokens by aten.select"),
    "error": (lambda m, x: x.view(2, 6, 8), "does not run on fewer tokens .RuntimeError"),
    "other": (lambda m, x: F.linear(x, OTHER), "by aten.*, a tensor that needs a gradient"),
}


@pytest.mark.parametrize("name", MIXED)
def test_what_mixes_them_is_named(name: str) -> None:
    does, what = MIXED[name]
    module, before = Does(does), torch.get_rng_state()
    why = why_whole(module, module.forward, (X.clone(),), {})
    assert re.search(what, why), why
    assert module.calls == 0
    assert torch.equal(torch.get_rng_state(), before)


def test_more_than_tokens_and_hooks_inside() -> None:
    module: Any = nn.Linear(8, 8)
    assert why_whole(module, lambda x, y: module(x * y), (X, X), {}) == ""
    scaled = Does(lambda m, x: x)
    why = why_whole(scaled, lambda x, scale: x * scale, (X, torch.ones(8)), {})
    assert why == "is handed a tensor of the form (8,) beside its tokens"
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    module[0].register_forward_hook(lambda *_: None)
    assert why_whole(module, module.forward, (X,), {}) == (
        "has hooks on '0', which would run once a tile"
    )
    assert why_whole(module, module.forward, (X[0, 0],), {}) == "is handed no tokens"


def test_values_decide_where_operations_say_nothing() -> None:
    """A custom operation is not seen from inside; what it does is."""

    class Hidden(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            made = torch.empty_like(x)
            made.numpy()[:] = x.numpy()[:, ::-1]
            return made

    module = Does(lambda m, x: Hidden.apply(x))
    why = why_whole(module, module.forward, (X,), {})
    assert why == "returns other values in tiles than whole"


def test_looking_at_a_module_takes_no_room_for_all_its_tokens() -> None:
    module, tokens = nn.Linear(8, 8), torch.randn(1, 4096, 8)
    tracker = MemoryTracker()
    with tracker:
        assert not why_whole(module, module.forward, (tokens,), {})
    assert tracker.peak_bytes < tokens.nbytes // 8
