"""What is still there when a forward that keeps nothing is over, and to the end of a step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from scheduler import frontier
from scheduler.pytorch import apply, measure, profile
from tests.pytorch import models
from tests.pytorch.models import Case, mean_square, noise
from tests.pytorch.profiling.test_modules import Model

X = noise(96, 16)


class Sharing(nn.Module):
    """A block that leaves its keys: in a container that all are handed, or on itself."""

    keys: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.key, self.out = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor, shared: dict[Any, torch.Tensor] | None = None) -> Any:
        key = self.key(x)
        if shared is None:
            self.keys = key.detach().clone()
        else:
            shared[id(self)] = key
        return x + self.out(torch.tanh(key))


class Shared(Model):
    """Its blocks put their keys into one dict."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        shared: dict[Any, torch.Tensor] = {}
        for block in self.blocks:
            x = block(x, shared=shared)
        return self.head(x)  # type: ignore[no-any-return]


class Auxiliary(nn.Module):
    """A block that leaves a loss of its own: on itself, or in a list that all have."""

    def __init__(self, losses: list[torch.Tensor] | None = None) -> None:
        super().__init__()
        self.key, self.out = nn.Linear(16, 64), nn.Linear(64, 16)
        self.losses, self.loss = losses, torch.zeros(())

    def forward(self, x: torch.Tensor) -> Any:
        key = torch.tanh(self.key(x))
        self.loss = key.square().mean()
        if self.losses is not None:
            self.losses.append(self.loss)
        return x + self.out(key)


class WithLosses(Model):
    """Its loss is that of its blocks, too."""

    losses: list[torch.Tensor] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.losses is not None:
            self.losses.clear()
        loss = mean_square(super().forward(x))
        return loss + sum(self.losses or [block.loss for block in self.blocks])  # type: ignore


class Remembering(nn.Module):
    """A block that has its last two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(16), models.mlp())
        self.outputs: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> Any:
        y = x + self.inner(x)
        self.outputs.append(y.detach())
        self.outputs = self.outputs[-2:]
        return y


class OwnLeaf(nn.Module):
    """A block that makes a leaf: autograd's graph holds it, recomputed or not."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = models.mlp()

    def forward(self, x: torch.Tensor) -> Any:
        leaf = torch.zeros(96, 64).requires_grad_()
        return self.inner(x) + leaf.mean(1, keepdim=True)


def swept(this: Case, options: bool = False) -> list[tuple[int, int]]:
    """Predicted and measured peak of the plans of a whole frontier."""
    trades = frontier(profile(this.model, this.inputs, this.loss_fn, options=options))
    found = []
    for peak, _ in trades:
        with apply(trades.plan(budget=peak), this.model):
            found.append((peak, measure(this.model, this.inputs, this.loss_fn).peak_bytes))
    assert all(measured <= predicted for predicted, measured in found), found
    return found


def test_keys_in_a_container_that_blocks_share() -> None:
    swept(Case(Shared(Sharing), X, mean_square))


def test_keys_on_the_block() -> None:
    swept(Case(Model(Sharing), X, mean_square))


def test_losses_that_blocks_leave() -> None:
    """Their gradients go into the blocks, too."""
    losses: list[torch.Tensor] = []
    shared = WithLosses(lambda: Auxiliary(losses))
    shared.losses = losses
    for model in (WithLosses(Auxiliary), shared):
        found = swept(Case(model, X, lambda loss: loss), options=True)
        assert all(predicted <= 1.01 * measured for predicted, measured in found), found


def test_outputs_on_the_block_with_options() -> None:
    swept(Case(Model(Remembering), X, mean_square), options=True)


def test_a_leaf_that_the_block_makes() -> None:
    found = swept(Case(Model(OwnLeaf), X, mean_square))
    assert found[-1][0] <= 1.12 * found[-1][1]


def test_the_root_of_the_backward_is_there_to_its_end() -> None:
    """The embedding's backward sets the peak: its gradients are large, the blocks small."""
    model = Model(lambda: models.thin(1)[0], depth=2)
    model.add_module("embed", nn.Sequential(nn.Linear(16, 2048), nn.Linear(2048, 16)))
    found = swept(Case(model, X, mean_square))
    assert found[-1][0] == found[-1][1]
