"""Profiles of module trees of all sorts: what blocks are handed, give and share."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from scheduler import CostGraph, UnsupportedModel, solve
from scheduler.pytorch import apply, measure, profile
from scheduler.pytorch.model.find import find_blocks
from tests.pytorch import models
from tests.pytorch.models import Case, assert_equal, bytes_of, gradients, mean_square, mlp, noise
from tests.pytorch.suite import budgets, t5

X = noise(96, 16)


def check(this: Case, blocks: Any = "auto", *, error: float = 0.02) -> CostGraph:
    """A fake profile is the real one; plans keep within their budgets, as predicted."""
    names = find_blocks(this.model, blocks, this.inputs)
    costs = profile(this.model, this.inputs, this.loss_fn, blocks, fake=True)
    assert bytes_of(profile(this.model, this.inputs, this.loss_fn, blocks)) == bytes_of(costs)
    reference = gradients(this.model, this.inputs, this.loss_fn)
    for budget in (10**12, *budgets(costs).values()):
        plan = solve(costs, budget=budget)
        with apply(plan, this.model, names):
            assert_equal(gradients(this.model, this.inputs, this.loss_fn), reference)
            measured = measure(this.model, this.inputs, this.loss_fn, names)
        assert measured.forwards == {name: plan.forwards[name] for name in names}
        assert measured.peak_bytes <= plan.peak_bytes <= measured.peak_bytes * (1 + error)
    return costs


class Model(nn.Module):
    """An embedding, a stack of blocks that `call` calls, a head."""

    def __init__(self, block: Callable[[], nn.Module], call: Any = None, depth: int = 5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(16, 16)
        self.blocks = nn.ModuleList(block() for _ in range(depth))
        self.head = nn.Linear(16, 16)
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        start = None if self.call is None else torch.tanh(x)
        for block in self.blocks:
            x = block(x) if self.call is None else self.call(self, block, x, start)
        return self.head(x)  # type: ignore[no-any-return]


class Handed(nn.Module):
    """A block that is handed something beside its activation, and may give it back."""

    def __init__(self, use: Any, give: Any = None) -> None:
        super().__init__()
        self.inner, self.use, self.give = mlp(), use, give

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        x = self.use(self.inner(x), *args, **kwargs)
        return x if self.give is None else self.give(x, *args, **kwargs)


# --- names --------------------------------------------------------------------------------------


def test_blocks_by_a_pattern() -> None:
    model = models.gpt2(n_layer=3)
    names = [f"transformer.h.{i}" for i in range(3)]
    assert find_blocks(model, "transformer.h.*") == names
    assert find_blocks(model, "*.h.[12]") == names[1:]
    assert find_blocks(model, "transformer.h.?") == names
    found = profile(model, models.batch(), blocks="transformer.h.*", fake=True)
    assert bytes_of(found) == bytes_of(profile(model, models.batch(), fake=True))


def test_a_pattern_stays_within_its_parts() -> None:
    model = models.gpt2(n_layer=3)
    assert find_blocks(model, "transformer.*") == [
        f"transformer.{name}" for name in ("wte", "wpe", "drop", "h", "ln_f")
    ]
    with pytest.raises(UnsupportedModel, match=r"no module of GPT2\w+ matches the pattern 'h\.\*'"):
        find_blocks(model, "h.*")


# --- what blocks are handed ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda model, block, x, start: block(x, (0.5, None)),
        lambda model, block, x, start: block(x, [0.5, {"mask": model.mask}]),
        lambda model, block, x, start: block(x, settings={"mask": model.mask, "scale": 0.5}),
        lambda model, block, x, start: block(x, None, scale=(model.mask,)),
    ],
    ids=["tuple", "list", "keyword", "none"],
)
def test_nested_arguments(call: Any) -> None:
    def use(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        for leaf in leaves:
            x = x if leaf is None else x * leaf
        return x

    model = Model(lambda: Handed(use), call)
    model.register_buffer("mask", (noise(96, 1) > 0).float())
    check(Case(model, X, mean_square))


def test_an_activation_by_keyword() -> None:
    class Keyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, *, mask: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
            return self.inner(hidden_states) * mask  # type: ignore[no-any-return]

    model = Model(Keyword, lambda model, block, x, _: block(mask=model.mask, hidden_states=x))
    model.register_buffer("mask", torch.ones(96, 1))
    check(Case(model, X, mean_square))


def test_a_second_tensor_with_a_gradient() -> None:
    """It is made once, before the blocks; its gradient is there from the last block's backward."""
    model = Model(
        lambda: Handed(lambda x, bias: x + bias), lambda model, block, x, start: block(x, start)
    )
    costs = check(Case(model, X, mean_square))
    gradient = [layer.gradient_bytes for layer in costs.layers[1:-1]]
    assert gradient[:-1] == [gradient[0]] * 4
    assert gradient[-1] == gradient[0] + X.nbytes


def test_a_second_tensor_with_a_gradient_that_some_blocks_get() -> None:
    def call(model: Any, block: nn.Module, x: torch.Tensor, start: torch.Tensor) -> Any:
        return block(x, start) if block in (model.blocks[1], model.blocks[3]) else block(x)

    model = Model(lambda: Handed(lambda x, bias=0: x + bias), call)
    costs = profile(model, X, mean_square)
    gradient = [layer.gradient_bytes for layer in costs.layers[1:-1]]
    assert [size - gradient[0] for size in gradient] == [0, 0, 0, X.nbytes, 0]
    check(Case(model, X, mean_square))


def test_the_first_activation_is_handed_to_every_block() -> None:
    class Again(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            start = x = self.embed(x)
            for block in self.blocks:
                x = block(x, start)
            return self.head(x)  # type: ignore[no-any-return]

    model = Again(lambda: Handed(lambda x, start: x + 0.5 * start))
    check(Case(model, X, mean_square))
    model.embed.requires_grad_(False)
    check(Case(model, X, mean_square))


def test_a_learned_argument() -> None:
    """A parameter that is no block's own: one gradient, which the last block makes."""
    model = Model(
        lambda: Handed(lambda x, scale: x * scale), lambda model, block, x, _: block(x, model.scale)
    )
    model.scale = nn.Parameter(torch.full((16,), 0.5))
    costs = check(Case(model, X, mean_square))
    total = sum(p.nbytes for p in model.parameters())
    assert sum(layer.gradient_bytes for layer in costs.layers) == total


def test_a_skip_connection_across_blocks() -> None:
    """What is read elsewhere, too, is handed on by a layer that a plan keeps."""

    class Skips(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen = x = self.embed(x)
            for i, block in enumerate(self.blocks):
                x, seen = block(x, seen), (x if i % 2 else seen)
            return self.head(x)  # type: ignore[no-any-return]

    model = Skips(lambda: Handed(lambda x, seen: x + seen))
    costs = check(Case(model, X, mean_square))
    kept = [layer.name for layer in costs.layers if not layer.recomputable]
    assert kept == ["embedding", "before blocks.1", "before blocks.3", "(head)"]


def test_a_head_that_reads_what_blocks_are_handed() -> None:
    class Reads(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.embed(x)
            start = torch.tanh(x)
            for block in self.blocks:
                x = block(x, start)
            return self.head(x) + start  # type: ignore[no-any-return]

    check(Case(Reads(lambda: Handed(lambda x, bias: x + bias)), X, mean_square), error=0.05)


# --- what blocks give ---------------------------------------------------------------------------

Pair = namedtuple("Pair", ["x", "bias"])


@pytest.mark.parametrize(
    "pack",
    [lambda x, bias: (x, bias), lambda x, bias: [x, None, bias], Pair],
    ids=["tuple", "list", "namedtuple"],
)
def test_a_block_that_passes_an_argument_on(pack: Any) -> None:
    class Passes(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.embed(x)
            bias = torch.tanh(x)
            for block in self.blocks:
                output = block(x, bias)
                x, bias = output[0], output[-1]
            return self.head(x)  # type: ignore[no-any-return]

    model = Passes(lambda: Handed(lambda x, bias: x + bias, pack))
    check(Case(model, X, mean_square))
    apply(solve(profile(model, X, mean_square), budget=10**9, method="uniform-sqrt"), model)
    assert measure(model, X, mean_square).left_bytes == 0


def test_the_first_block_of_t5_makes_more_than_one_tensor() -> None:
    this = t5()
    expected = r"'decoder.block.1' is handed what a block before it makes .*; leave the one that"
    with pytest.raises(UnsupportedModel, match=expected):
        profile(this.model, this.inputs, blocks="decoder.block.*", fake=True)


def test_gradients_in_another_layout() -> None:
    """Blocks on a permuted activation, as in Whisper: a gradient need not lie as its tensor."""

    class Permuted(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.embed(x).reshape(4, 24, 16).transpose(1, 2).contiguous().transpose(1, 2)
            for block in self.blocks:
                x = block(x)
            return self.head(x)  # type: ignore[no-any-return]

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.inner = nn.LayerNorm(16), mlp(hidden=32, dropout=0.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.inner(self.norm(x))  # type: ignore[no-any-return]

    check(Case(Permuted(Residual), X, mean_square), error=0.001)


# --- what blocks share --------------------------------------------------------------------------


def test_weights_that_all_blocks_share() -> None:
    model = Model(mlp)
    for block in model.blocks[1:]:
        block[2].weight = model.blocks[0][2].weight  # type: ignore[index]
    # Its gradient, a thirtieth of all here, counts as there while a segment runs again.
    costs = check(Case(model, X, mean_square), error=0.04)
    assert sum(layer.gradient_bytes for layer in costs.layers) == sum(
        p.nbytes for p in model.parameters()
    )


@pytest.mark.parametrize("end", ["embed", "head", "both"])
def test_weights_that_a_block_shares_with_an_end(end: str) -> None:
    model = Model(lambda: nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16)))
    for name in ("embed", "head") if end == "both" else (end,):
        getattr(model, name).weight = model.blocks[2][0].weight  # type: ignore[index]
    costs = check(Case(model, X, mean_square))
    total = sum(p.nbytes for p in model.parameters())
    assert sum(layer.gradient_bytes for layer in costs.layers) == total


def test_a_module_called_twice_inside_a_block() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.inner(torch.tanh(self.outer(self.inner(x)))))

    check(Case(Model(Twice), X, mean_square))


def test_one_block() -> None:
    model = Model(mlp, depth=1)
    names = ["blocks.0"]
    costs = profile(model, X, mean_square, names, fake=True)
    plan = solve(costs, budget=10**9)
    assert measure(model, X, mean_square, names).peak_bytes == plan.peak_bytes


def test_a_block_called_again_is_refused() -> None:
    class Again(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(super().forward(x))

    expected = r"block 'blocks.0' is called a second time; blocks must run once each"
    with pytest.raises(UnsupportedModel, match=expected):
        profile(Again(mlp), X, mean_square, "blocks.*")


# --- frozen, and in evaluation mode -------------------------------------------------------------


@pytest.mark.parametrize("frozen", ["embed", "blocks.0", "blocks.1", "blocks", "head"])
def test_frozen_parts(frozen: str) -> None:
    model = Model(mlp)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    costs = check(Case(model, X, mean_square))
    total = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    assert sum(layer.gradient_bytes for layer in costs.layers) == total


def test_adapters_on_a_frozen_base() -> None:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = mlp(hidden=32, dropout=0.0).requires_grad_(False)
            self.a, self.b = nn.Linear(16, 2, bias=False), nn.Linear(2, 16, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.base(x) + self.b(self.a(x))  # type: ignore[no-any-return]

    model = Model(Adapted)
    for part in (model.embed, model.head):
        part.requires_grad_(False)
    costs = check(Case(model, X, mean_square))
    assert [layer.gradient_bytes for layer in costs.layers] == [0, *[4 * 64] * 5, 0]


def test_parts_in_evaluation_mode() -> None:
    """Dropout saves nothing there: such blocks are not like the others."""
    model = Model(lambda: mlp(dropout=0.5))
    for i in (1, 2):
        model.blocks[i].eval()
    costs = check(Case(model, X, mean_square))
    saved = [layer.saved_bytes for layer in costs.layers[1:-1]]
    assert saved[1] == saved[2] < saved[0] == saved[3] == saved[4]
