"""What a forward changes on its module: once a step, whatever it is, with any plan."""

from __future__ import annotations

import copy
import random
from collections import deque
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from scheduler import CostGraph, solve
from scheduler.common.errors import UnsupportedModel
from scheduler.export.standalone.state import named_state
from scheduler.plans.plan import Plan
from scheduler.pytorch import apply, describe, measure, profile, verify
from solvers.schedule import Checkpoint, Item, Keep
from tests.pytorch.models import mean_square, plan_of


class Box:
    """An object that a module has."""

    def __init__(self) -> None:
        self.count = 0


class Slotted:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Everything(nn.Module):
    """Changes all that a forward can change; `scale` and `average` change what it gives, too."""

    average: torch.Tensor

    def __init__(self, shared: Box) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer("average", torch.zeros(16))
        self.load: torch.Tensor | None = None
        self.last: torch.Tensor | None = None
        self.scale, self.word = 1.0, ""
        self.seen: list[int] = []
        self.recent: deque[float] = deque(maxlen=2)
        self.by_length: dict[int, Any] = {}
        self.lengths: set[int] = set()
        self.box, self.slotted, self.shared = Box(), Slotted(), shared
        self.array, self.tensors = np.zeros(2), [torch.zeros(())]
        self.generator = torch.Generator().manual_seed(1)
        self.dice, self.numbers = random.Random(1), np.random.default_rng(1)
        self.pair = (torch.zeros(()), [0])
        self.hooked: list[int] = []
        self.linear.register_forward_hook(self.note)

    def note(self, *_: Any) -> None:
        self.hooked.append(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.linear(x)) * self.scale + self.average
        with torch.no_grad():
            mean = y.mean(0)
            self.average.mul_(0.5).add_(mean)
            self.load = mean.clone() if self.load is None else self.load + mean
            if self.last is None:
                self.last = mean.clone()
            else:
                self.last += mean
        self.scale += 0.25
        self.word += "x"
        self.seen.append(len(self.seen))
        self.recent.append(self.scale)
        self.by_length.setdefault(len(x), []).append(1)
        self.lengths.add(len(self.seen))
        for counted in (self.box, self.slotted, self.shared):
            counted.count += 1
        self.array += 1
        self.tensors[0].add_(1)
        self.pair[0].add_(1)
        self.pair[1][0] += 1
        noise = torch.rand(y.shape, generator=self.generator)
        return torch.sin(y + noise * self.dice.random() * float(self.numbers.random()))


class Own(nn.BatchNorm1d):
    """A batch norm with a buffer of its own, which its output depends on."""

    mine: torch.Tensor

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.register_buffer("mine", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mine += 1
        return super().forward(x) * self.mine


class Moved(nn.Module):
    """Has its statistics in other memory each time: in that of a result which options keep."""

    spread: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("spread", torch.zeros(16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.spread.data = x.detach().mT @ x.detach()
        return torch.tanh(x @ self.spread)


def norms() -> nn.Module:
    return nn.Sequential(
        Moved(),
        nn.BatchNorm1d(16),
        nn.SyncBatchNorm(16),
        nn.BatchNorm1d(16, momentum=None),
        Own(16),
        spectral_norm(nn.Linear(16, 16)),
    )


def everything() -> nn.Module:
    torch.manual_seed(0)
    shared = Box()
    return nn.Sequential(nn.Linear(16, 16), *(Everything(shared) for _ in range(4)))


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), *(norms() for _ in range(4)))


X = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
NESTED: list[Item] = [
    Keep(0),
    Checkpoint(1, 3, (Checkpoint(1, 2, (Checkpoint(1, 1, (Keep(1),)), Keep(2))), Keep(3))),
    Checkpoint(4, 4, (Keep(4),)),
    Keep(5),
]


def state(model: nn.Module) -> dict[str, bytes]:
    """Everything that a model can be seen to have."""
    values = {**named_state(model), **dict(model.named_parameters())}
    values |= {f"{n}.grad": p.grad for n, p in model.named_parameters()}
    values |= {f"{n} trains": m.training for n, m in model.named_modules()}
    values |= {f"{n} hooks": len(m._forward_hooks) for n, m in model.named_modules()}
    return {
        name: value.detach().numpy().tobytes()
        if isinstance(value, torch.Tensor)
        else repr(value).encode()
        for name, value in values.items()
    }


def steps(model: nn.Module, plan: Plan | None = None) -> dict[str, bytes]:
    """Three training steps."""
    handle = None if plan is None else apply(plan, model)
    for seed in range(3):
        torch.manual_seed(seed)
        mean_square(model(X)).backward()
    if handle is not None:
        handle.remove()
    return state(model)


@pytest.fixture(scope="module", params=[everything, normed])
def made(request: pytest.FixtureRequest) -> tuple[nn.Module, CostGraph]:
    model = request.param()
    before, drawn = state(model), (torch.get_rng_state(), random.getstate(), np.random.get_state())
    costs = profile(model, X, mean_square, options=True)
    describe(model, X, mean_square)
    measure(model, X, mean_square)
    assert state(model) == before
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert random.getstate() == drawn[1]
    assert repr(np.random.get_state()) == repr(drawn[2])
    return model, costs


@pytest.mark.parametrize("kind", ["every-layer", "nested", "options"])
def test_state_is_as_without_a_plan(made: tuple[nn.Module, CostGraph], kind: str) -> None:
    model, costs = made
    if kind == "nested":
        plan = plan_of(costs, NESTED)
    elif kind == "every-layer":
        plan = solve(costs, budget="1GB", method="every-layer")
    else:
        names = [[o.name for o in layer.options if o.keeps] for layer in costs.layers]
        # Which keeps what `Moved` has as its statistics, and not what it makes of them.
        half = "every-second-matmul"
        options = [half if half in each else each[0] if each else None for each in names]
        plan = plan_of(costs, [Keep(i, option) for i, option in enumerate(options)])
        assert plan.schedule.options()
    found = steps(copy.deepcopy(model), plan)
    assert found == steps(copy.deepcopy(model))
    touched = copy.deepcopy(model)
    verified = verify(plan, touched, X, mean_square)
    assert verified.ok, str(verified)
    assert state(touched) == state(model)
    with apply(plan, touched):
        assert measure(touched, X, mean_square).peak_bytes <= plan.peak_bytes


class Walking(nn.Module):
    """Moves its own parameter, or a large buffer, which nobody copies."""

    queue: torch.Tensor

    def __init__(self, what: str) -> None:
        super().__init__()
        self.linear, self.what = nn.Linear(16, 16), what
        self.register_buffer("queue", torch.zeros(2**18 + 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.get_parameter(self.what).clamp_(-0.1, 0.1) if self.what else self.queue.add_(1)
        return torch.tanh(self.linear(x))


@pytest.mark.parametrize("what", ["linear.weight", ""])
def test_what_a_forward_changes_and_nobody_copies_is_refused_by_name(what: str) -> None:
    model = nn.Sequential(*(Walking(what) for _ in range(3)))
    before = state(model)
    with pytest.raises(UnsupportedModel, match=f"'.*{what or 'queue'}' in place"):
        profile(model, X, mean_square)
    assert state(model) == before
    costs = profile(nn.Sequential(*(nn.Linear(16, 16) for _ in range(3))), X, mean_square)
    if not what:
        with (
            apply(solve(costs, budget="1GB", method="every-layer"), model),
            pytest.raises(UnsupportedModel, match=r"block '0' changes 'queue' in place"),
        ):
            model(X)


class Adding(nn.Module):
    """Adds to what it is handed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        total.add_(1)
        return torch.tanh(self.linear(x))


class Totalling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Adding() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(())
        for layer in self.layers:
            x = layer(x, total)
        return x


def test_an_argument_that_a_forward_changes_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"block 'layers.0' .*it is handed in place"):
        profile(Totalling(), X, mean_square)


class Passing(nn.Module):
    """Leaves something for the next block, which nobody hands on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, carry: dict[str, torch.Tensor]) -> torch.Tensor:
        x = self.linear(x) + carry.get("x", 0)
        carry["x"] = x * 0.1
        return torch.tanh(x)


class Carrying(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Passing() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        carry: dict[str, torch.Tensor] = {}
        for layer in self.layers:
            x = layer(x, carry)
        return x


def test_what_blocks_leave_for_others_in_an_argument_makes_a_graph() -> None:
    model = Carrying()
    with pytest.raises(UnsupportedModel, match=r"'layers.0' leaves a tensor .* \(dict\)"):
        profile(model, X, mean_square, [f"layers.{i}" for i in range(3)])
    costs = profile(model, X, mean_square)
    everything = solve(costs, budget="1GB").peak_bytes
    plan = solve(costs, budget=int(0.95 * everything))
    found = verify(plan, model, X, mean_square)
    assert found.ok, str(found)
    assert found.peak_bytes < everything


def test_an_iterator_that_a_forward_moves_is_refused() -> None:
    class Stepping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.steps = nn.Linear(16, 16), count()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * (1 + next(self.steps))  # type: ignore[no-any-return]

    with pytest.raises(UnsupportedModel, match=r"changes '.*steps' in place"):
        profile(nn.Sequential(Stepping(), Stepping()), X, mean_square)


def test_a_weight_of_two_blocks_under_autocast_is_refused() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3)))
    model[1][0].weight = model[0][0].weight  # type: ignore[index]
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(UnsupportedModel, match="cast"):
        profile(model, X, mean_square)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        plan = solve(profile(model, X, mean_square), budget="1GB", method="every-layer")
        assert verify(plan, model, X, mean_square).gradients == "equal"
