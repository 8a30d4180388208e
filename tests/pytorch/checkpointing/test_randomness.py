"""A recomputation draws what its forward drew, from every generator, and nothing is drawn twice."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from scheduler.pytorch import apply
from scheduler.pytorch.model.rng import Generator, NumpyGenerator, PythonGenerator
from tests.pytorch.checkpointing.test_refusals import Stack, blocks_of, segments
from tests.pytorch.models import assert_equal, mean_square, mlp, noise

X = noise(8, 16)
DRAWS: dict[str, Callable[[], float]] = {
    "random": random.random,
    "gauss": lambda: random.gauss(0, 1),  # made two at a time: the second waits
    "bits": lambda: float(random.getrandbits(3)),
    "rand": lambda: float(np.random.rand()),
    "randn": lambda: float(np.random.randn()),  # two at a time, too
    "choice": lambda: float(np.random.choice(5)),
    "torch": lambda: float(torch.rand(())),
    "all": lambda: random.random() + float(np.random.randn()) + float(torch.rand(())),
}


class Drawing(nn.Module):
    """A block that draws, from the first step on or from a later one."""

    def __init__(self, draw: Callable[[], float], first: int = 0) -> None:
        super().__init__()
        self.inner = mlp(dropout=0.0)
        self.draw, self.first, self.step = draw, first, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        drawn = self.draw() if self.step >= self.first else 1.0
        return self.inner(x * drawn)  # type: ignore[no-any-return]


def train(model: nn.Module, between: Callable[[], object]) -> dict[str, torch.Tensor]:
    """Four steps, two of them on two forwards before their backward."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    found = {}
    for step in range(4):
        model.zero_grad()
        for part in model.modules():
            if isinstance(part, Drawing):
                part.step = step
        between()
        loss = mean_square(model(X))
        if step % 2:
            between()
            loss = loss + mean_square(model(2 * X))
        loss.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            found[f"{step} {name}"] = parameter.grad.clone()
    left = [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()]
    return {**found, "left": torch.tensor([*map(float, left), float(torch.rand(()))])}


def check(model: nn.Module, between: Callable[[], object]) -> None:
    """The same gradients, and the same numbers left to draw, with a plan and without."""
    expected = train(copy.deepcopy(model), between)
    for lengths in ((1, 1, 1, 1), (2, 2), (1, 3)):
        twin = copy.deepcopy(model)
        with apply(segments(blocks_of(4), *lengths), twin):
            assert_equal(train(twin, between), expected)


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("draw", DRAWS)
def test_a_block_that_draws(draw: str, first: int) -> None:
    check(Stack(4, lambda: Drawing(DRAWS[draw], first)), lambda: None)


@pytest.mark.parametrize("draw", ["gauss", "randn", "all"])
def test_numbers_drawn_around_the_model(draw: str) -> None:
    """A normal number of a pair waits when the model begins."""
    check(Stack(4, lambda: Drawing(DRAWS[draw])), lambda: (random.gauss(0, 1), np.random.randn()))


@pytest.mark.parametrize("draw", ["gauss", "randn"])
def test_generators_seeded_before_every_forward(draw: str) -> None:
    def seed() -> None:
        random.seed(5)
        np.random.seed(5)
        random.gauss(0, 1)
        np.random.randn()

    check(Stack(4, lambda: Drawing(DRAWS[draw], 2)), seed)


@pytest.mark.parametrize("kind", [PythonGenerator, NumpyGenerator])
@pytest.mark.parametrize("blind", [False, True])
def test_a_state_is_read_again_only_when_it_has_moved(
    kind: type[Generator], blind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    random.seed(0)
    np.random.seed(0)
    generator = kind()
    if blind:  # an interpreter, or a generator, whose memory is not known
        monkeypatch.setattr(generator, "place", lambda: None)
    reads: list[Any] = []
    read = generator.read

    def noted() -> Any:
        reads.append(read())
        return reads[-1]

    monkeypatch.setattr(generator, "read", noted)
    first = generator.state()
    assert not generator.moved_from(first)
    assert (len(reads) > 1) == blind
    random.random()
    np.random.rand()
    assert generator.moved_from(first)
    assert not generator.moved_from(generator.state())
    generator.put(first)
    assert not generator.moved_from(first)
    assert (random.random() if kind is PythonGenerator else np.random.rand()) == pytest.approx(
        0.8444218515250481 if kind is PythonGenerator else 0.5488135039273248
    )


def test_another_generator_of_numpy() -> None:
    """One that is no Mersenne twister."""
    numpy: Any = np.random
    before = numpy.get_bit_generator()
    try:
        numpy.set_bit_generator(np.random.PCG64(0))
        model = Stack(4, lambda: Drawing(DRAWS["rand"]))

        def step() -> dict[str, torch.Tensor]:
            numpy.set_bit_generator(np.random.PCG64(0))
            model.zero_grad()
            mean_square(model(X)).backward()
            return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

        expected = step()
        with apply(segments(blocks_of(4), 1, 2), model):
            assert_equal(step(), expected)
    finally:
        numpy.set_bit_generator(before)
