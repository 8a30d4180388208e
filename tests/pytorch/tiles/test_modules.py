"""A module that runs tile by tile: equal to rounding, and what it holds."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from scheduler import UnsupportedModel
from scheduler.pytorch.observe.dispatch import OperationMode
from scheduler.pytorch.observe.tracker import MemoryTracker
from scheduler.pytorch.tiles.modules import TiledModule
from tests.pytorch.models import mlp


class Both(nn.Linear):
    """A module that is handed two tensors of tokens."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x * y)


def tiled(module: nn.Module, tiles: int) -> TiledModule:
    placed = TiledModule(module, "mlp", tiles)
    placed.put()
    return placed


def step(module: nn.Module, *given: torch.Tensor) -> list[torch.Tensor | None]:
    module.zero_grad()
    leaves = [x.detach().clone().requires_grad_(x.requires_grad) for x in given]
    made = module(*leaves)
    (made.float() ** 2).sum().backward()
    return [made.detach(), *(x.grad for x in leaves), *(p.grad for p in module.parameters())]


def close(mine: list[Any], whole: list[Any], share: float) -> bool:
    """Whether all tensors are so near, as a share of their largest entry."""
    return all(
        (a is None and b is None) or float((a - b).abs().max()) <= share * float(b.abs().max())
        for a, b in zip(mine, whole, strict=True)
    )


@pytest.mark.parametrize("case", ["rows", "one row", "frozen", "input only", "parameters only"])
def test_gradients_are_equal_to_rounding(case: str) -> None:
    module = mlp(dropout=0.0).double()
    x = torch.randn(*((3, 7) if case == "rows" else (21,)), 16, dtype=torch.float64)
    x.requires_grad_(case != "parameters only")
    for i, parameter in enumerate(module.parameters()):
        parameter.requires_grad_(not (case == "input only" or (case == "frozen" and i < 2)))
    whole = step(module, x)
    for tiles in (2, 5, 21):
        placed = tiled(module, tiles)
        assert close(step(module, x), whole, 1e-12)
        with torch.no_grad():
            assert close([module(x)], whole[:1], 1e-12)
        placed.take_away()
    assert step(module, x)[0] is not None


def test_two_inputs_and_autocast() -> None:
    module = Both(16, 4)
    pair = [torch.randn(2, 9, 16, requires_grad=True) for _ in range(2)]
    whole = step(module, *pair)
    twin = copy.deepcopy(module)
    tiled(twin, 3)
    assert close(step(copy.deepcopy(twin), *pair), whole, 1e-6)
    model, x = mlp(dropout=0.0), torch.randn(2, 32, 16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        whole = step(model, x)
        tiled(model, 4)
        mine = step(model, x)
    assert [each.dtype for each in mine if each is not None] == [
        each.dtype for each in whole if each is not None
    ]
    assert close(mine, whole, 0.02)


def test_sums_over_tiles_are_in_float32() -> None:
    """In bf16 the gradient of 64 tiles is no farther from the truth than that of the whole."""
    torch.manual_seed(0)
    exact = mlp(dropout=0.0).double()
    x = torch.randn(256, 16, dtype=torch.float64, requires_grad=True)
    truth = step(exact, x)
    model = copy.deepcopy(exact).bfloat16()
    whole = step(model, x.detach().bfloat16().requires_grad_())
    tiled(model, 64)
    mine = step(model, x.detach().bfloat16().requires_grad_())
    found: Any = zip(mine[2:], whole[2:], truth[2:], strict=True)
    for one, other, true in found:
        error = float((other.double() - true).norm())
        assert float((one.double() - true).norm()) <= error + 2 * 2**-8 * float(true.norm())


def test_it_holds_its_input_alone() -> None:
    model, tokens = mlp(16, 256, dropout=0.0), 512
    peaks = {}
    for tiles in (1, 8):
        twin = copy.deepcopy(model)
        if tiles > 1:
            tiled(twin, tiles)
            twin(torch.zeros(tokens, 16))  # looked at
        x = torch.randn(tokens, 16, requires_grad=True)
        with MemoryTracker() as tracker:
            made = twin(x)
            kept = tracker.live_bytes - made.untyped_storage().nbytes()
            forward = tracker.peak_bytes
            made.backward(x.detach())
            peaks[tiles] = kept, forward, tracker.peak_bytes
    assert peaks[8][0] == 0
    inside = 4 * tokens * 256
    assert peaks[1][0] >= 2 * inside
    assert peaks[8][1] < inside / 2
    gradients = 4 * 2 * 16 * 256
    assert peaks[8][2] < inside / 2 + 4 * tokens * 16 * 3 + 1.5 * gradients


def test_a_recomputation_ends_before_the_tiles() -> None:
    model, seen = mlp(dropout=0.0), list[int]()
    forward = model[0].forward
    tiled(model, 4)
    model(torch.zeros(8, 16))  # looked at

    def counted(x: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        made: torch.Tensor = forward(x)
        return made

    model[0].forward = counted
    x = torch.randn(8, 16, requires_grad=True)
    checkpoint(model, x, use_reentrant=False).sum().backward()
    assert seen == [2] * 9  # forward, a look at what the backward needs, and backward


@pytest.mark.parametrize("own", [False, True])
def test_a_backward_leaves_out_products_that_it_does_not_need(own: bool) -> None:
    """But where a function of the module's own may hold what it makes unseen."""

    class Held(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            ctx.held = x @ w, x, w
            made: torch.Tensor = ctx.held[0] * 1
            return made

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            product, x, w = ctx.held
            return (grads[0] + 0 * product) @ w.T, x.T @ grads[0]

    class Own(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = Held.apply(x, self.weight)
            return made

    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), Own(16, 32) if own else nn.Linear(32, 16))
    x = torch.randn(64, 16, requires_grad=True)
    whole, counts = step(model, x), list[int]()
    for tiles in (1, 4):
        placed = tiled(model, tiles)
        step(model, x)
        with Products() as seen:
            assert close(step(model, x), whole, 1e-5)
        counts.append(seen.count)
        placed.take_away()
    # Of a tile: two forward, then one or both again, and four in the backward.
    assert counts == [8, 32] if own else [7, 28]


class Products(OperationMode):
    count = 0

    def _operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.count += func._overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm)
        return func(*args, **kwargs)


def test_refusals() -> None:
    model = mlp()
    placed = tiled(model.eval(), 4)
    x = torch.randn(8, 16, requires_grad=True)
    with pytest.raises(UnsupportedModel, match="'mlp' runs in 4 tiles, and this step has 3 tokens"):
        model(x[:3])
    with torch.no_grad():
        assert model(x[:3]).shape == (3, 16)
    with pytest.raises(UnsupportedModel, match="a second derivative was asked of 'mlp'"):
        torch.autograd.grad(model(x).sum(), x, create_graph=True)
    with pytest.raises(UnsupportedModel, match="'mlp' cannot run in tiles: it draws random"):
        model.train()(x)
    placed.take_away()
    both = Both(16, 4)
    tiled(both, 2)
    both(x, x)
    with pytest.raises(UnsupportedModel, match=r"a tensor of the form \(16,\) beside its tokens"):
        both(x, x[0])
    mixing = nn.Softmax(0)
    tiled(mixing, 2)
    with pytest.raises(UnsupportedModel, match=r"it mixes tokens by aten\._softmax"):
        mixing(x)
