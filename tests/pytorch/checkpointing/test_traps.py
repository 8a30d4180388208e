"""Things real models do that a naive adapter gets wrong without a word."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from scheduler import Plan, frontier, solve
from scheduler.common.errors import UnsupportedModel
from scheduler.pytorch import apply, measure, profile
from tests.pytorch.models import mean_square, noise


def mean(output: Any) -> torch.Tensor:
    result: torch.Tensor = output.pow(2).mean()
    return result


def blocks(count: int = 4, width: int = 16) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(count)
        )
    )


class Stack(nn.Module):
    """A stack called block by block, of which some may be skipped."""

    def __init__(self, count: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(blocks(count))
        self.skip: set[int] = set()

    def forward(self, x: torch.Tensor) -> Any:
        for i, layer in enumerate(self.layers):
            if i not in self.skip:
                x = layer(x)
        return x


def two_by_two(model: nn.Module, x: torch.Tensor) -> Plan:
    """The plan of segments of two layers."""
    costs = profile(model, x, mean)
    plan = solve(costs, budget="1GB", method="uniform-sqrt")
    assert any(getattr(item, "last", 0) > getattr(item, "first", 0) for item in plan.items)
    return plan


class Activated(nn.Module):
    """A block whose cost depends on a function it was given."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.linear(x))


def heavy(x: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        x = torch.tanh(x) * torch.sigmoid(x)
    return x


class Numbered(nn.Module):
    """A block that does more from the third on."""

    def __init__(self, layer_idx: int) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.layer_idx = layer_idx

    def forward(self, x: torch.Tensor) -> Any:
        x = self.linear(x)
        return heavy(x) if self.layer_idx >= 2 else x


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Sequential(*(Activated(F.relu if i < 2 else heavy) for i in range(6))), (128, 64)),
        (nn.Sequential(*(Numbered(i) for i in range(6))), (128, 64)),
        (nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=p) for p in (1, 1, 9, 1))), (4, 8, 32, 32)),
        (
            nn.Sequential(
                nn.Conv2d(8, 8, 1),
                nn.Upsample(scale_factor=(1, 1)),
                nn.Upsample(scale_factor=(4, 4)),
                nn.Conv2d(8, 8, 1),
            ),
            (2, 8, 16, 16),
        ),
    ],
    ids=["function", "number", "padding", "scale"],
)
@pytest.mark.parametrize("fake", [False, True])
def test_blocks_that_only_look_alike_are_told_apart(
    model: nn.Sequential, shape: tuple[int, ...], fake: bool
) -> None:
    x = torch.randn(shape)
    costs = profile(model, x, mean, fake=fake)
    points = frontier(costs)
    for budget in (points[0][0], points[len(points) // 2][0], points[-1][0]):
        plan = solve(costs, budget=budget)
        with apply(plan, model):
            peak = measure(model, x, mean).peak_bytes
        assert peak <= budget
        assert peak >= 0.9 * plan.peak_bytes


def test_autocast_is_seen_by_profile_and_measure() -> None:
    model, x = blocks(), torch.randn(8, 16)
    plain = profile(model, x, mean)
    with torch.autocast("cpu", torch.bfloat16):
        assert profile(model, x, mean).layers[1].output_bytes == plain.layers[1].output_bytes // 2
        again = [measure(model, x, mean).peak_bytes for _ in range(2)]
    assert again[0] == again[1]  # the second finds no cached weights of the first
    assert again[0] > 0


def test_gradients_may_be_off_around_profile_and_measure() -> None:
    model, x = blocks(), torch.randn(8, 16)
    with torch.no_grad():
        assert profile(model, x, mean).layers[0].backward_time > 0
        assert measure(model, x, mean).peak_bytes > 0


@pytest.mark.parametrize("skipped", [0, 1, 2, 3])
def test_a_skipped_block_of_a_shared_segment_is_refused(skipped: int) -> None:
    model, x = Stack(5), torch.randn(8, 16)
    plan = two_by_two(model, x)
    with apply(plan, model):
        mean(model(x)).backward()
        model.skip = {skipped}
        with pytest.raises(UnsupportedModel, match=r"segment|not called"):
            mean(model(x)).backward()


def test_a_graph_may_be_run_backward_twice() -> None:
    model, x = blocks(), torch.randn(8, 16)
    loss = mean(model(x))
    loss.backward(retain_graph=True)
    loss.backward()
    expected = [p.grad for p in model.parameters()]
    model.zero_grad()
    plan = solve(profile(model, x, mean), budget="1GB", method="every-layer")
    with apply(plan, model):
        loss = mean(model(x))
        loss.backward(retain_graph=True)
        loss.backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert gradient is not None
        assert torch.equal(parameter.grad, gradient)  # type: ignore[arg-type]


def test_a_model_with_a_plan_can_be_pickled_after_a_step() -> None:
    model, x = blocks(), torch.randn(8, 16)
    apply(two_by_two(model, x), model)
    expected = mean(model(x))
    expected.backward()
    copy = pickle.loads(pickle.dumps(model))
    loss = mean(copy(x))
    loss.backward()
    assert torch.equal(loss, expected)
    for mine, theirs in zip(model.parameters(), copy.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)  # type: ignore[arg-type]


def test_a_module_called_embedding_is_not_mistaken_for_the_layer() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Linear(16, 16)
            self.layers = nn.ModuleList(blocks())

        def forward(self, x: torch.Tensor) -> Any:
            x = self.embedding(x)
            for layer in self.layers:
                x = layer(x)
            return x

    model, x = Model(), torch.randn(8, 16)
    costs = profile(model, x, mean)
    assert costs.layers[0].name == "(embedding)"
    with apply(solve(costs, budget="1GB", method="every-layer"), model):
        assert measure(model, x, mean).forwards == {f"layers.{i}": 2 for i in range(4)}


class Early(nn.Module):
    """Its backward begins without anything saved; its forward begins at its peak."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = (x.repeat(1, 8) * 2).view(-1, 8, 8).sum(1)
        return (x * 1.5 + 2 * torch.tanh(self.linear(wide))) * 3


def test_what_a_backward_makes_before_a_recomputation_is_counted() -> None:
    torch.manual_seed(0)
    model, inputs = nn.Sequential(*[Early() for _ in range(4)]), noise(64, 8)
    costs = profile(model, inputs, mean_square)
    for method in ("every-layer", "uniform"):
        plan = solve(costs, budget="1GB", method=method)
        with apply(plan, model):
            assert measure(model, inputs, mean_square).peak_bytes <= plan.peak_bytes
