"""Segments of several blocks whose blocks differ: own arguments, own hooks, code in between."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from scheduler import CostGraph, InvalidPlan, Plan, UnsupportedModel
from scheduler.pytorch import apply, measure, profile
from solvers.schedule import Checkpoint, Item, Items, Keep
from tests.pytorch import models
from tests.pytorch.checkpointing.test_refusals import Stack, blocks_of, segments
from tests.pytorch.models import assert_equal, case, gradients, mean_square, mlp, noise, plan_of
from tests.pytorch.suite import SUITE

X = noise(32, 16)


def keeps(first: int, last: int) -> tuple[Item, ...]:
    return tuple(Keep(i) for i in range(first, last + 1))


def deep(count: int = 4) -> Plan:
    """Checkpoints of 1 to `count` blocks, each around the one before."""
    body: tuple[Item, ...] = (Keep(0),)
    for last in range(1, count):
        body = (Checkpoint(0, last - 1, body), Keep(last))
    return replace(segments(blocks_of(count)), schedule=Items((Checkpoint(0, count - 1, body),)))


def late() -> Plan:
    """A checkpoint inside another that begins after it."""
    body = (Keep(0), Checkpoint(1, 2, keeps(1, 2)), Keep(3))
    return replace(segments(blocks_of(4)), schedule=Items((Checkpoint(0, 3, body),)))


PLANS = [segments(blocks_of(4), 4), segments(blocks_of(4), 2, 2), deep(), late()]
NAMES = ["one", "two", "deep", "late"]


def check(model: nn.Module, x: torch.Tensor = X, seed: Callable[[], Any] = lambda: None) -> None:
    """Four kinds of plans give the gradients of no plan."""
    seed()
    reference = gradients(model, x, mean_square)
    for plan in PLANS:
        with apply(plan, model):
            seed()
            assert_equal(gradients(model, x, mean_square), reference)


class Loop(Stack):
    """A stack whose blocks are called by a function of the test."""

    def __init__(self, call: Callable[..., Any], block: Callable[[], nn.Module] = mlp) -> None:
        super().__init__(4, block)
        self.call = call
        self.between = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, block in enumerate(self.blocks):
            x = self.call(self, block, x, i)
        return x


class Scaled(nn.Module):
    """A block with arguments beside the activation."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x: torch.Tensor, scale: Any = 1.0, shift: Any = None) -> torch.Tensor:
        x = self.inner(x) * scale
        return x if shift is None else x + shift


# --- arguments of their own ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gemma3", "whisper-encoder"])
@pytest.mark.parametrize("shape", ["pairs", "one", "nested"])
def test_architectures_whose_blocks_get_different_arguments(name: str, shape: str) -> None:
    """Gemma 3 hands two masks out in turn; Whisper draws a random number before each block."""
    this = SUITE[name].make()
    for module in this.model.modules():
        if isinstance(module, nn.Module) and isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.1  # type: ignore[assignment]
    costs = profile(this.model, this.inputs, this.loss_fn, fake=True)
    plan = plan_of(costs, shaped(costs, shape))
    reference = gradients(this.model, this.inputs, this.loss_fn)
    with apply(plan, this.model):
        measured = measure(this.model, this.inputs, this.loss_fn)
        assert_equal(gradients(this.model, this.inputs, this.loss_fn), reference)
    assert measured.forwards == {block: plan.forwards[block] for block in measured.forwards}
    assert measured.peak_bytes <= plan.peak_bytes <= 1.002 * measured.peak_bytes
    assert measured.left_bytes == 0


def shaped(costs: CostGraph, shape: str) -> list[Item]:
    """Items over six blocks, perhaps after an embedding, before a head."""
    count = len(costs.layers)
    first, last = count - 7, count - 2
    if shape == "pairs":
        pairs = [Checkpoint(i, i + 1, keeps(i, i + 1)) for i in range(first, last, 2)]
        return [*keeps(0, first - 1), *pairs, Keep(count - 1)]
    body = keeps(first, last)
    if shape == "nested":
        inner = Checkpoint(first, first + 1, keeps(first, first + 1))
        body = (Checkpoint(first, first + 2, (inner, Keep(first + 2))), *keeps(first + 3, last))
    return [*keeps(0, first - 1), Checkpoint(first, last, body), Keep(count - 1)]


@pytest.mark.parametrize(
    "scales",
    [(1.0, 2.0, 0.5, 2.0), (2, 2.0, 3, 3.0), tuple(torch.full((16,), v) for v in (1, 2, 3, 4))],
    ids=["numbers", "types", "tensors"],
)
def test_each_block_gets_its_own_argument(scales: tuple[Any, ...]) -> None:
    check(Loop(lambda model, block, x, i: block(x, scale=scales[i]), Scaled))


def test_blocks_called_in_different_ways() -> None:
    """By position and by keyword, with and without."""
    ways: list[Callable[..., Any]] = [
        lambda block, x: block(x),
        lambda block, x: block(x, 0.5),
        lambda block, x: block(scale=0.5, x=x),
        lambda block, x: block(x, shift=X),
    ]
    check(Loop(lambda model, block, x, i: ways[i](block, x), Scaled))


def test_arguments_made_between_blocks_by_what_is_trained() -> None:
    """What the model saves there is no part of a checkpoint, and it gets its gradient."""

    def call(model: Any, block: nn.Module, x: torch.Tensor, i: int) -> Any:
        return block(x, shift=torch.tanh(model.between(X * (i + 1))))

    model = Loop(call, Scaled)
    assert "between.weight" in gradients(model, X, mean_square)
    check(model)


@pytest.mark.parametrize(
    "draw",
    [lambda: torch.rand(()), np.random.rand, random.random],
    ids=["torch", "numpy", "python"],
)
@pytest.mark.parametrize("noisy", [False, True])
def test_random_numbers_drawn_between_blocks(draw: Callable[[], Any], noisy: bool) -> None:
    """As layer drop does; what is drawn inside the blocks, and after the step, is the same."""

    class Noisy(Scaled):
        def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if noisy:
                x = x * random.random() * float(np.random.rand())
            return super().forward(x, *args, **kwargs)

    def step() -> tuple[dict[str, torch.Tensor], list[float]]:
        random.seed(0)
        np.random.seed(0)
        found = gradients(model, X, mean_square)
        return found, [random.random(), np.random.rand(), float(torch.rand(()))]

    def call(model: Any, block: nn.Module, x: torch.Tensor, i: int) -> Any:
        return block(x, scale=float(draw())) if i % 2 else block(x)

    model = Loop(call, Noisy)
    reference, after = step()
    for plan in PLANS:
        with apply(plan, model):
            found, drawn = step()
        assert_equal(found, reference)
        assert drawn == after


# --- hooks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", PLANS, ids=NAMES)
def test_hooks_run_once_and_see_their_own_block(plan: Plan) -> None:
    model = Stack()
    seen: list[torch.Tensor] = []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach().clone()))
        block.register_forward_hook(lambda module, args, out: seen.append(out.detach().clone()))
    reference = gradients(model, X, mean_square)
    expected, seen[:] = list(seen), []
    with apply(plan, model):
        assert_equal(gradients(model, X, mean_square), reference)
    assert len(seen) == len(expected) == 8
    assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))


def test_a_hook_that_changes_an_argument() -> None:
    model = Loop(lambda model, block, x, i: block(x, scale=1.0), Scaled)
    for i, block in enumerate(model.blocks):
        block.register_forward_pre_hook(
            lambda module, args, kwargs, i=i: (args, {"scale": 1.0 + i}), with_kwargs=True
        )
    check(model)


@pytest.mark.parametrize("pre", [False, True])
def test_a_hook_that_changes_the_activation_is_refused(pre: bool) -> None:
    """Inside a segment; at its beginning and its end it is no part of it."""
    model = Stack()
    if pre:
        model.blocks[2].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    else:
        model.blocks[1].register_forward_hook(lambda module, args, out: out * 2)
    reference = gradients(model, X, mean_square)
    expected = r"'blocks.2' does not receive what block 'blocks.1' returned, .* or a hook changes"
    with apply(segments(blocks_of(4), 4), model), pytest.raises(UnsupportedModel, match=expected):
        model(X)
    with apply(segments(blocks_of(4), 2, 2), model):
        assert_equal(gradients(model, X, mean_square), reference)


def test_hidden_states_of_blocks_in_one_segment() -> None:
    """transformers reads them off each block's output; a loss may read them, too."""
    model, inputs = copy.deepcopy(case("llama-float32").model), models.batch()

    def step() -> tuple[Any, dict[str, torch.Tensor]]:
        output = model(**inputs, output_hidden_states=True)
        loss = output.loss + sum(state.pow(2).mean() for state in output.hidden_states)
        loss.backward()
        found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        model.zero_grad(set_to_none=True)
        return output.hidden_states, found

    states, reference = step()
    names = [f"model.layers.{i}" for i in range(12)]
    with apply(segments(names, 4, 8), model):
        found, grads = step()
    assert len(found) == 13
    assert all(torch.equal(a, b) for a, b in zip(found, states, strict=True))
    assert_equal(grads, reference)


# --- names --------------------------------------------------------------------------------------


def test_blocks_by_a_pattern() -> None:
    """As `profile` takes it: for the blocks that match, neither more nor fewer."""
    model = models.gpt2(n_layer=4)
    names = [f"transformer.h.{i}" for i in range(4)]
    reference = gradients(model, models.batch())
    for pattern, part in (("transformer.h.*", names), ("*.h.[12]", names[1:3])):
        with apply(segments(part, len(part)), model, pattern) as handle:
            assert handle.report().ok
            assert_equal(gradients(model, models.batch()), reference)
    with pytest.raises(InvalidPlan, match=r"has a block 'transformer.h.0' where the plan has"):
        apply(segments(names[1:3], 2), model, "transformer.h.*")
    with pytest.raises(InvalidPlan, match=r"the plan has a block 'transformer.h.3' that is not"):
        apply(segments(names, 4), model, "transformer.h.[0-2]")
    with pytest.raises(UnsupportedModel, match=r"matches the pattern 'h\.\*'"):
        apply(segments(names, 4), model, "h.*")
