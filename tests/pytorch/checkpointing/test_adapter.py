"""Traps on the way through a block that a naive adapter falls into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointError

from scheduler import InvalidPlan, UnsupportedModel, solve
from scheduler.pytorch import apply, measure, profile
from tests.plans.test_graph_plan import PLAN as GRAPH_PLAN
from tests.pytorch.checkpointing.test_refusals import Stack, blocks_of, segments
from tests.pytorch.models import assert_equal, gradients, mean_square, mlp, noise

X = noise(256, 16)


class InPlace(nn.Module):
    """A block that begins by changing its input."""

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.inner = inner or mlp(dropout=0.0)

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(torch.relu_(x))


def test_a_block_that_changes_its_input_in_place() -> None:
    """A recomputation would start from what the block has made of it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), InPlace(), InPlace())
    names = ["0", "1", "2"]
    reference = gradients(model, X, mean_square)
    for lengths, block in (((0, 1, 1), "1"), ((0, 1), "1"), ((2, 1), "2")):
        kept = 1 if lengths[0] == 0 else 0
        plan = segments(names[kept:], *[n for n in lengths if n])
        blocks = [model[i] for i in range(kept)]
        part = model if not kept else nn.Sequential(*blocks, *list(model)[kept:])
        with (
            apply(plan, part, names[kept:]),
            pytest.raises(UnsupportedModel, match=f"block '{block}' changes its input in place"),
        ):
            part(X)
    # Inside a segment it does no harm: its input is recomputed as well.
    with apply(segments(names, 3), model):
        assert_equal(gradients(model, X, mean_square), reference)


def test_a_router_that_decides_otherwise_when_it_is_recomputed() -> None:
    """A mixture of experts whose decision hangs on something that moves: never silently wrong."""

    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(mlp(dropout=0.0) for _ in range(2))
            self.threshold = 0.0

        def forward(self, x: torch.Tensor) -> Any:
            first = x[:, 0] > self.threshold
            out = torch.zeros_like(x)
            out[first] = self.experts[0](x[first])
            out[~first] = self.experts[1](x[~first])
            return out

    model = Stack(3, Routed)
    reference = gradients(model, X, mean_square)
    with apply(segments(blocks_of(3), 1, 1), model):
        assert_equal(gradients(model, X, mean_square), reference)
        loss = mean_square(model(X))
        for block in model.blocks:
            block.threshold = 0.5  # type: ignore[assignment]
        with pytest.raises(CheckpointError, match="have different metadata"):
            loss.backward()


class ByKeyword(Stack):
    """Blocks are handed their activation by keyword."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(input=x)
        return x


@pytest.mark.parametrize("lengths", [(6,), (2, 4), (1, 1, 1, 1, 1, 1)])
def test_activations_by_keyword_do_not_outlive_their_segment(lengths: tuple[int, ...]) -> None:
    """A keyword tensor of `checkpoint` stays until the segment's backward is over."""
    plan = segments(blocks_of(6), *lengths)
    found = []
    for kind in (Stack, ByKeyword):
        model = kind(6)
        with apply(plan, model):
            found.append(measure(model, X, mean_square).peak_bytes)
            mine = gradients(model, X, mean_square)
        assert_equal(mine, gradients(model, X, mean_square))
    assert found[0] == found[1]


# torch's word on a hook of the first block, whose input takes no gradient, with and without a plan.
@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
def test_backward_hooks_of_a_block_run_once() -> None:
    model = Stack(4)
    seen: list[str] = []
    for name, block in model.blocks.named_children():
        block.register_full_backward_hook(lambda *_, name=name: seen.append(name))
    reference = gradients(model, X, mean_square)
    assert seen == ["3", "2", "1", "0"]
    seen.clear()
    for lengths in ((1, 1, 1), (2, 2), (4,)):
        with apply(segments(blocks_of(4), *lengths), model):
            assert_equal(gradients(model, X, mean_square), reference)
        assert seen == ["3", "2", "1", "0"]
        seen.clear()


class Twice(Stack):
    """A model that runs through its blocks two times."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(super().forward(x))


@pytest.mark.parametrize("lengths", [(1, 1, 1), (3,), (2, 1)])
def test_blocks_that_run_twice(lengths: tuple[int, ...]) -> None:
    """A profile refuses them; a plan from elsewhere runs them right."""
    model = Twice(3)
    with pytest.raises(UnsupportedModel, match="is called a second time"):
        profile(model, X, mean_square, "blocks.*")
    reference = gradients(model, X, mean_square)
    with apply(segments(blocks_of(3), *lengths), model):
        assert_equal(gradients(model, X, mean_square), reference)


@pytest.mark.parametrize("again", [0, 1])
def test_a_block_that_runs_twice_in_a_row(again: int) -> None:
    class Echo(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for i, block in enumerate(self.blocks):
                x = block(block(x)) if i == again else block(x)
            return x

    model = Echo(3)
    reference = gradients(model, X, mean_square)
    with apply(segments(blocks_of(3), 1, 1, 1), model):
        assert_equal(gradients(model, X, mean_square), reference)
    with (
        apply(segments(blocks_of(3), 3), model),
        pytest.raises(UnsupportedModel, match=r"of one segment|not called|does not receive"),
    ):
        mean_square(model(X)).backward()


def test_the_plan_of_a_graph_is_not_for_blocks() -> None:
    with pytest.raises(InvalidPlan, match="plan of a compute graph, whose nodes torch"):
        apply(GRAPH_PLAN, Stack(3))


def test_a_plan_within_a_model_that_is_a_part() -> None:
    """Reused inside another model, with hooks of its own around it."""
    inner = Stack(3)
    outer = nn.Sequential(nn.Linear(16, 16), inner, nn.Linear(16, 16))
    counts: list[int] = []
    inner.register_forward_hook(lambda *_: counts.append(1))
    reference = gradients(outer, X, mean_square)
    names = [f"1.{name}" for name in blocks_of(3)]
    costs = profile(outer, X, mean_square, blocks=names)
    plan = solve(costs, budget=10**9, method="every-layer")
    with apply(plan, outer, names):
        assert_equal(gradients(outer, X, mean_square), reference)
    assert len(counts) == 2  # what the profile's own runs have counted was taken back
    with apply(segments(blocks_of(3), 3), inner):  # the inner model alone knows its names
        assert_equal(gradients(outer, X, mean_square), reference)


def test_gradients_of_an_output_beside_the_loss() -> None:
    """torch.autograd.grad for one tensor runs no more of the plan than it needs."""
    model: Callable[..., Any] = Stack(4)
    x = X.clone().requires_grad_()
    torch.manual_seed(1)
    (expected,) = torch.autograd.grad(mean_square(model(x)), x)
    with apply(segments(blocks_of(4), 3, 1), model):  # type: ignore[call-overload]
        torch.manual_seed(1)
        (found,) = torch.autograd.grad(mean_square(model(x)), x)
    assert torch.equal(found, expected)
