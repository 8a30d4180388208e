"""Where gradients come from, wait and go: what each of these models needs, as it was predicted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from scheduler import frontier
from scheduler.pytorch import apply, describe, measure, profile
from solvers.schedule import Checkpoint, Keep
from tests.pytorch.models import assert_equal, gradients, mean_square, mlp, noise, plan_of

X = noise(64, 16)
Loss = Callable[[torch.Tensor], torch.Tensor]


class Blocks(nn.Module):
    """A stack between two layers of the model's own."""

    def __init__(self, block: Callable[[], nn.Module] = mlp) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(16, 16)
        self.blocks = nn.ModuleList(block() for _ in range(4))
        self.last = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = self.through(block, x)
        last: torch.Tensor = self.last(x)
        return last

    def through(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """What comes after a block."""
        made: torch.Tensor = block(x)
        return made


class Residual(Blocks):
    """What goes around a block waits while its backward runs, and is what that was given."""

    def through(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x + block(x))


class Commitment(nn.Module):
    """A quantizer: its output is what it was given, its loss is beside that."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = mlp()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + (self.inside(x) - x).detach(), (self.inside(x) - x).square().mean()


class OnlyBeside(nn.Module):
    """A loss that depends on what blocks make beside their activation alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.ModuleList(mlp() for _ in range(2))
        self.middle = nn.Linear(16, 512)
        self.narrow = nn.Linear(512, 16)
        self.quantizers = nn.ModuleList(Commitment() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.encoder:
            x = block(x)
        x = self.narrow(torch.relu(self.middle(x)))
        losses = []
        for quantizer in self.quantizers:
            quantized, loss = quantizer(x)
            x = x - quantized
            losses.append(loss)
        return torch.stack(losses)


class Weights(nn.Module):
    """A block that hands over what nobody reads, as attention does its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = mlp()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights = torch.softmax(x @ x.T, -1)
        return self.inside(weights @ x), weights.repeat(8, 1)


class Unread(Blocks):
    """Blocks whose second output is let go."""

    def __init__(self) -> None:
        super().__init__(Weights)

    def through(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = block(x)[0]
        return made


class Wide(Blocks):
    """The head reads a half of something: the gradient is a view of twice its size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        pair = torch.stack([x, x * 2], 1).square()
        last: torch.Tensor = self.last(pair.sum(1))
        return last


class Codes(Blocks):
    """A stack that is called without gradients before one that trains."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(nn.Sequential(mlp(), mlp()) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for block in self.encoder:
                x = block(x)
        return super().forward(x.round())


class CutOff(Codes):
    """A stack that trains by nothing, and what it saved is let go with what it hands over."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.encoder:
            x = block(x)
        return Blocks.forward(self, x.round().detach())


class HalfCutOff(Codes):
    """Of a stack the last block hands on what nothing is trained by."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.encoder[0](x)
        return Blocks.forward(self, x + self.encoder[1](x).detach())


class Pyramid(nn.Module):
    """Two stages; what is between them is read at the end, too, by a layer that holds it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one = nn.ModuleList(mlp() for _ in range(2))
        self.down = nn.Linear(16, 8)
        self.two = nn.ModuleList(mlp(8) for _ in range(2))
        self.norm, self.up = nn.LayerNorm(16), nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.one:
            x = block(x)
        y = self.down(x)
        for block in self.two:
            y = block(y)
        both: torch.Tensor = torch.tanh(self.up(y)) + self.norm(x)
        return both


KINDS = [Blocks, Residual, OnlyBeside, Unread, Wide, Codes, CutOff, HalfCutOff, Pyramid]


@pytest.mark.parametrize("kind", KINDS)
def test_no_peak_is_above_its_prediction(kind: type[nn.Module]) -> None:
    expected = gradients(kind(), X, mean_square)
    model = kind()
    trades = frontier(profile(model, X, mean_square))
    for point in [*trades.points[:: max(len(trades.points) // 4, 1)], trades.points[-1]]:
        plan = trades.plan(budget=point[0])
        with apply(plan, model):
            assert_equal(gradients(model, X, mean_square), expected)
            peak = measure(model, X, mean_square).peak_bytes
        assert peak <= plan.peak_bytes <= 1.1 * peak


def test_blocks_that_no_gradient_comes_to_are_code_between_others() -> None:
    told = describe(CutOff(), X, mean_square)
    assert [layer.name for layer in told.costs.layers][:2] == ["embedding", "blocks.0"]
    assert "No blocks, because they have no backward in a step: encoder.0" in str(told)


def test_a_recomputation_lets_go_of_what_nobody_reads() -> None:
    model = Unread()
    costs = profile(model, X, mean_square)
    body = tuple(Keep(i) for i in range(1, 5))
    plan = plan_of(costs, (Keep(0), Checkpoint(1, 4, body), Keep(5)))
    with apply(plan, model):
        assert measure(model, X, mean_square).peak_bytes <= plan.peak_bytes


def test_inputs_that_a_model_changes_are_put_back() -> None:
    class Clamps(Blocks):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.clamp_(-0.5, 0.5))

    given = X.clone()
    profile(Clamps(), given, mean_square)
    assert torch.equal(given, X)


def test_what_is_put_back_costs_nothing() -> None:
    """A buffer that no forward changes is no state, though it is looked after."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = mlp()
            self.register_buffer("mask", torch.ones(64, 64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.inside(torch.mm(self.get_buffer("mask"), x) / 64)
            return made

    plain, masked = profile(Blocks(), X, mean_square), profile(Blocks(Masked), X, mean_square)
    assert masked.input_bytes == plain.input_bytes
