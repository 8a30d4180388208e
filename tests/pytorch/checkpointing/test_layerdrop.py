"""Models that leave out blocks at random while they train: LayerDrop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from scheduler import UnsupportedModel
from scheduler.pytorch import apply, describe, measure, profile, trace, verify
from solvers.schedule import Checkpoint, Item, Keep, first_of, last_of
from tests.pytorch.checkpointing.test_refusals import Stack
from tests.pytorch.models import assert_equal, gradients, mean_square, mlp, noise, plan_of

X = noise(32, 16)
DEPTH = 6


class Skipping(Stack):
    """A model with LayerDrop, that draws between its blocks, too."""

    def __init__(self, rate: float) -> None:
        super().__init__(DEPTH, lambda: nn.Sequential(mlp(), nn.Dropout(0.3)))
        self.layerdrop = rate
        self.ran: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.ran = []
        for number, block in enumerate(self.blocks):
            if not self.training or torch.rand(()) >= self.layerdrop:
                self.ran.append(number)
                x = block(x)
        return x


def keep(first: int, last: int, option: str | None = None) -> tuple[Item, ...]:
    return tuple(Keep(i, option) for i in range(first, last + 1))


def nest(*inside: Item) -> tuple[Item, ...]:
    """A checkpoint within whose recomputation are these items."""
    return (Checkpoint(first_of(inside[0]), last_of(inside[-1]), inside),)


# The blocks are layers 0 to 5; layer 6 is the loss.
PLANS: dict[str, tuple[Item, ...]] = {
    "each": tuple(item for i in range(DEPTH) for item in nest(Keep(i))),
    "one segment": nest(*keep(0, 5)),
    "two segments": (*nest(*keep(0, 2)), *nest(*keep(3, 5))),
    "nested to the left": nest(*nest(*nest(*keep(0, 1)), *keep(2, 3)), *keep(4, 5)),
    "nested to the right": nest(*keep(0, 1), *nest(*keep(2, 3), *nest(*keep(4, 5)))),
    "options in a segment": nest(*keep(0, 2, "less"), *nest(*keep(3, 5, "less"))),
    "kept in between": (*nest(*keep(0, 1)), *keep(2, 3), *nest(*keep(4, 5))),
}


@pytest.fixture(scope="module")
def costs() -> Any:
    return profile(Skipping(0.4), X, mean_square, options=True)


@pytest.mark.parametrize("name", PLANS)
def test_a_recomputation_leaves_out_the_same_blocks(name: str, costs: Any) -> None:
    option = next(each.name for each in costs.layers[1].options if each.keeps)
    plan = plan_of(costs, (*_named(PLANS[name], option), Keep(DEPTH)))
    plain, planned = Skipping(0.4), Skipping(0.4)
    missing: set[int] = set()
    with apply(plan, planned):
        for seed in range(12):
            expected = gradients(plain, X, mean_square, seed)
            assert_equal(gradients(planned, X, mean_square, seed), expected)
            assert planned.ran == plain.ran
            missing |= {*range(DEPTH)} - {*plain.ran}
        planned.layerdrop = 0.0
        peak = measure(planned, X, mean_square).peak_bytes
        assert peak <= plan.peak_bytes <= 1.01 * peak
    assert missing == {*range(DEPTH)}


def _named(items: tuple[Item, ...], option: str) -> tuple[Item, ...]:
    return tuple(
        Checkpoint(item.first, item.last, _named(item.body, option))
        if isinstance(item, Checkpoint)
        else Keep(item.layer, item.option and option)
        for item in items
    )


def test_every_block_is_profiled_verified_and_measured(costs: Any) -> None:
    model, whole = Skipping(0.4), Skipping(0.0)
    assert profile(whole, X, mean_square, options=True).names == costs.names
    plan = plan_of(costs, (*PLANS["nested to the left"], Keep(DEPTH)))
    assert verify(plan, model, X, mean_square).ok
    assert measure(model, X, mean_square).forwards == measure(whole, X, mean_square).forwards
    assert "6 blocks" in str(describe(model, X, mean_square))
    assert model.layerdrop == 0.4


def test_a_graph_cannot_leave_them_out() -> None:
    model: Any = Skipping(0.5)
    with pytest.raises(UnsupportedModel, match=r"LayerDrop, model.layerdrop is 0.5.*; set model"):
        trace(model, X)
    model.layerdrop = None
    model.config = type("Config", (), {"layerdrop": 0.1})()
    with pytest.raises(UnsupportedModel, match=r"set model.config.layerdrop = 0$"):
        trace(model, X)
