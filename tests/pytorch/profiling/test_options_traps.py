"""Options and all that a training script may do around them: right, or refused with a reason."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from scheduler import CostGraph, Plan, UnsupportedModel
from scheduler.pytorch import apply, measure, profile
from scheduler.pytorch.observe.tracker import MemoryTracker
from solvers.schedule import Checkpoint, Item, Keep
from tests.pytorch.models import (
    Case,
    assert_equal,
    gradients,
    mean_square,
    noise,
    plan_of,
)
from tests.pytorch.profiling.test_options import assert_kept, kept_bytes, step

WIDTH, LENGTH = 24, 12
X = noise(3, LENGTH, WIDTH)


class Mixed(nn.Module):
    """Random numbers and changes in place; with a batch norm where asked, which runs twice."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, 3 * WIDTH)
        self.outer = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.2)
        self.norm = nn.BatchNorm1d(LENGTH) if norm else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.inner(self.norm(x)).chunk(3, -1)
        scores = torch.softmax(q @ k.transpose(1, 2) / 5, -1)
        found = F.dropout(scores, 0.1, self.training) @ v
        y = self.drop(self.outer(self.norm(found))).relu_() * 2
        y[..., : WIDTH // 2] += torch.sigmoid(y[..., WIDTH // 2 :])
        drawn: torch.Tensor = x + y * torch.rand(LENGTH, 1)
        return drawn


def backward(loss: Any) -> None:
    loss.backward()


def stack(make: Callable[[], nn.Module] = Mixed, count: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[make() for _ in range(count)]).train()


def costs_of(model: nn.Module, *, fake: bool = True) -> CostGraph:
    return profile(model, X, mean_square, options=True, fake=fake)


@cache
def costs() -> CostGraph:
    return costs_of(stack())


def plans(layers: CostGraph) -> dict[str, Plan]:
    names = [option.name for option in layers.layers[0].options]
    few, many = names[-2], names[-1]  # the hand-made ones come first
    shapes: dict[str, list[Item]] = {
        "each": [Keep(0, few), Keep(1, many), Keep(2, few), Keep(3, many)],
        "in a segment": [Checkpoint(0, 2, (Keep(0, many), Keep(1, few), Keep(2))), Keep(3, few)],
        "two deep": [
            Checkpoint(0, 3, (Checkpoint(0, 1, (Keep(0, few), Keep(1))), Keep(2, many), Keep(3)))
        ],
    }
    return {
        name: plan_of(layers, [*items, *map(Keep, range(4, len(layers)))])
        for name, items in shapes.items()
    }


SHAPES = ["each", "in a segment", "two deep"]
"""Of `plans`."""


def one(layers: CostGraph, option: str, block: int = 0) -> Plan:
    """The plan that keeps one block under an option, and the others whole."""
    items = [Keep(i, option if i == block else None) for i in range(len(layers))]
    return plan_of(layers, items)


def keeping(layers: CostGraph, *calls: tuple[str, int]) -> Plan:
    """The plan that keeps these results of the first block."""
    plan = one(layers, layers.layers[0].options[0].name)
    return replace(plan, policies={layers.layers[0].name: calls})


def check_all(make: Callable[[], nn.Module], *, fake: bool = True) -> None:
    """Every option of the first block gives what no plan gives, and keeps what it should."""
    model = stack(make, 2)
    this, layers = Case(model, X, mean_square), costs_of(model, fake=fake)
    reference = step(this)
    options = layers.layers[0].options
    assert options
    for option in options:
        plan = one(layers, option.name)
        with apply(plan, model):
            assert_equal(step(this), reference)
            assert_kept(kept_bytes(this), this, layers, plan.items)
    with apply(plan, model):
        assert measure(model, X, mean_square).peak_bytes <= plan.peak_bytes


# --- what a training script does ----------------------------------------------------------------


def several_forwards(model: nn.Module) -> None:
    """Each block runs twice before any backward, which must not mix what it keeps."""
    backward(mean_square(model(X)) + mean_square(model(X + 1)))


def in_another_order(model: nn.Module) -> None:
    first, second = mean_square(model(X)), mean_square(model(X * 2))
    backward(first)
    backward(second)


def accumulated(model: nn.Module) -> None:
    for i in range(3):
        backward(mean_square(model(X + i)))


def penalised(model: nn.Module) -> None:
    """A gradient of the gradient."""
    x = X.clone().requires_grad_()
    loss = mean_square(model(x))
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    backward(loss + gradient.pow(2).sum())


def bit_by_bit(model: nn.Module) -> None:
    """A part of the backward first, then all of it."""
    loss = mean_square(model(X))
    torch.autograd.grad(loss, list(model.parameters())[-2:], retain_graph=True)
    backward(loss)


def evaluated_between(model: nn.Module) -> None:
    loss = mean_square(model(X))
    model(X)  # with gradients, and no backward
    with torch.no_grad():
        model(X)
    with torch.inference_mode():
        model(X)
    backward(loss)


def scaled(model: nn.Module) -> None:
    scaler = torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    backward(scaler.scale(mean_square(model(X))))
    scaler.unscale_(optimizer)


def failing(model: nn.Module) -> None:
    """The step fails in its forward and in its backward; the next is right."""

    def fail(*args: Any) -> None:
        raise MemoryError

    blocks: Any = model
    hook = blocks[2].drop.register_forward_hook(fail)
    with pytest.raises(MemoryError):
        model(X)
    hook.remove()
    loss = mean_square(model(X))
    hook = blocks[1].drop.register_forward_hook(fail)
    recomputed = "forward" in vars(blocks[1])  # under a plan
    with pytest.raises(MemoryError) if recomputed else nullcontext():
        backward(loss)
    hook.remove()
    model.zero_grad()
    torch.manual_seed(5)
    backward(mean_square(model(X)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "train",
    [
        several_forwards,
        in_another_order,
        accumulated,
        penalised,
        bit_by_bit,
        evaluated_between,
        scaled,
        failing,
    ],
)
def test_steps(train: Callable[[nn.Module], None], shape: str) -> None:
    model = stack()

    def trained() -> dict[str, torch.Tensor]:
        model.zero_grad()
        torch.manual_seed(1)
        train(model)
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    expected = trained()
    with apply(plans(costs())[shape], model):
        assert_equal(trained(), expected)
    assert_equal(trained(), expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_is_left_after_a_step(shape: str) -> None:
    """No step leaves anything, one without a backward neither; no garbage collector is needed."""
    model = stack()
    gc.collect()
    gc.disable()
    try:
        with apply(plans(costs())[shape], model), MemoryTracker() as tracker:
            seen = []
            for i in range(6):
                loss = mean_square(model(X))
                if i % 3 != 2:
                    backward(loss)
                del loss
                model.zero_grad()
                seen.append(tracker.live_bytes)
    finally:
        gc.enable()
    assert seen == [0] * 6


@pytest.mark.parametrize("shape", SHAPES)
def test_copies(shape: str) -> None:
    model = stack()
    keys = list(model.state_dict())
    expected = gradients(model, X, mean_square)
    with apply(plans(costs())[shape], model):
        mean_square(model(X))  # something is kept when it is copied
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        assert list(model.state_dict()) == keys
    for each in [*copies, model]:
        assert_equal(gradients(each, X, mean_square), expected)
    assert measure(copies[1], X, mean_square).forwards["0"] > 1


def test_frozen_parts_and_parts_that_are_evaluated() -> None:
    def make() -> nn.Module:
        block = Mixed()
        block.inner.requires_grad_(False)
        block.drop.eval()
        return block

    check_all(make)


def test_a_batch_norm_that_runs_twice_counts_twice() -> None:
    check_all(lambda: Mixed(norm=True))


class Constants(nn.Module):
    """Makes tensors of Python's and numpy's numbers, and changes them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.tensor([0.5, 2.0]).repeat(WIDTH // 2).mul_(2)
        shift = torch.from_numpy(np.ones(WIDTH, np.float32)).mul_(3)
        shift.add_(torch.tensor(0.5).add_(1))
        return torch.sin(torch.tanh(self.linear(x) * scale) + shift)


def test_tensors_of_numbers() -> None:
    check_all(Constants, fake=False)


class Lists(nn.Module):
    """Changes tensors by operations whose names do not say so."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.linear(x))
        with torch.no_grad():
            parts = [y.sin(), y.cos()]
            torch._foreach_mul_(parts, 0.5)
            place = torch.empty_like(y)
            torch.mul(parts[0], parts[1], out=place)
            torch.add(place, 1, out=place)
        return torch.sin(y * place) * parts[0]


def test_changes_by_lists_and_into_places() -> None:
    check_all(Lists)


# --- blocks without options ---------------------------------------------------------------------


class Adding(nn.Module):
    """Saves nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def test_no_options() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Adding(), Adding())
    layers = costs_of(model, fake=False)
    assert [len(layer.options) for layer in layers.layers[1:3]] == [0, 0]


# --- what cannot be honoured is noticed ---------------------------------------------------------


class Masked(nn.Module):
    """Makes its mask when the length changes, and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.mask: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        if not self.mask or self.mask[0].shape[0] != length:
            self.mask[:] = [torch.ones(length, 1) * 2]
        return torch.sin(torch.sin(self.linear(x) * self.mask[0]) * 3)


def test_a_mask_that_is_made_in_a_first_call() -> None:
    """Its product is the first of the forward, and so of the recomputation, which makes it anew."""
    model = stack(Masked, 2)
    layers = costs_of(model, fake=False)
    plan = keeping(layers, ("aten.mul.Tensor", 0))
    longer = noise(3, LENGTH * 2, WIDTH)
    reference = gradients(model, longer, mean_square)
    model(X)
    with apply(plan, model):
        for _ in range(2):
            assert_equal(gradients(model, longer, mean_square), reference)


TIMES = [2]
"""Nothing that a module has."""


class Switching(nn.Module):
    """Does more, or less, in its first run."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.sin(self.linear(x))
        for _ in range(TIMES.pop() if len(TIMES) > 1 else TIMES[0]):
            y = torch.sin(y * 2)
        return y


def test_fewer_operations_in_the_recomputation() -> None:
    model: Any = stack(Switching, 2)
    layers = costs_of(model)
    for option in layers.layers[0].options:
        with apply(one(layers, option.name), model):
            TIMES[:] = [2, 3]
            with pytest.raises(UnsupportedModel, match=r"'0' does something else .*: ends where"):
                gradients(model, X, mean_square)


def test_more_operations_in_the_recomputation() -> None:
    """It stops where the forward did; what the plan keeps must be there in the forward."""
    model: Any = stack(Switching, 2)
    layers = costs_of(model)
    TIMES[:] = [2, 1]
    reference = gradients(model, X, mean_square)
    with apply(keeping(layers, ("aten.sin.default", 0)), model):
        TIMES[:] = [2, 1]
        assert_equal(gradients(model, X, mean_square), reference)
    with apply(keeping(layers, ("aten.sin.default", 2)), model):
        TIMES[:] = [2, 1]
        with pytest.raises(UnsupportedModel, match=r"'0' runs aten.sin.default 2 times"):
            gradients(model, X, mean_square)


class Order(nn.Module):
    """Reads a tensor before or after it is changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.early = False
        self.late = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        read = [y * 2] if self.early else []
        y.mul_(0.5)
        read += [] if self.early else [y * 2]
        z = torch.sin(read[0])
        if self.late:
            y.add_(1)
        return torch.sin(z * 3) + y


@pytest.mark.parametrize("when", ["early", "late"])
def test_another_order_in_place_than_was_profiled(when: str) -> None:
    """What is kept comes back as it is at the end, which here would be wrong."""
    model = stack(Order, 2)
    layers = costs_of(model)
    with apply(keeping(layers, ("aten.addmm.default", 0), ("aten.mul_.Tensor", 0)), model):
        reference = gradients(model, X, mean_square)
        setattr(model[0], when, True)
        with pytest.raises(UnsupportedModel, match=r"block '0' changes in place.*options=True"):
            gradients(model, X, mean_square)
    assert_equal(gradients(stack(Order, 2), X, mean_square), reference)


class Handing(nn.Module):
    """Returns what it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        self.aside = torch.sin(y * 2).sum()
        return y


def test_an_output_that_is_changed_afterwards() -> None:
    model = stack(Handing, 2)
    layers = costs_of(model)

    def loss(out: torch.Tensor) -> torch.Tensor:
        return mean_square(out) + model[0].aside  # type: ignore[operator]

    with apply(keeping(layers, ("aten.addmm.default", 0)), model):
        gradients(model, X, loss)
        hook = model[0].register_forward_hook(lambda module, args, out: out.mul_(2))
        with pytest.raises(UnsupportedModel, match=r"what block '0' returns is changed in place"):
            gradients(model, X, loss)
        hook.remove()


def test_a_block_with_a_compiled_part_is_refused() -> None:
    model: Any = stack()
    model[1].outer.compile()
    with pytest.raises(UnsupportedModel, match=r"block '1' .*compiled.*without options"):
        apply(plans(costs())["each"], model)


def test_a_mode_that_was_not_profiled_is_noticed() -> None:
    """Without dropout there is less to keep."""
    model = stack()
    drawn = [o for o in costs().layers[0].options if any("bern" in call[0] for call in o.keeps)]
    with apply(one(costs(), drawn[0].name), model):
        model.eval()
        with torch.no_grad():
            model(X)
        with pytest.raises(UnsupportedModel, match=r"block '0' runs aten.*torch.no_grad.*mode"):
            model(X)
