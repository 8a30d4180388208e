"""Segments of several blocks: what the model may not do between them, and what goes wrong."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from scheduler import Plan, UnsupportedModel
from scheduler.pytorch import apply
from scheduler.pytorch.checkpointing import passage
from tests.pytorch.checkpointing.test_refusals import Stack, blocks_of, segments
from tests.pytorch.checkpointing.test_segments import NAMES, PLANS, Loop, X, check, deep
from tests.pytorch.models import assert_equal, gradients, mean_square, noise

# --- what is refused ----------------------------------------------------------------------------


def views(x: torch.Tensor) -> torch.Tensor:
    return x.view_as(x)


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (lambda x: x * 1, True),
        (lambda x: x.mul_(2), True),
        (lambda x: x.detach(), True),
        (lambda x: x.t(), True),
        (lambda x: x.flip(0).flip(0), True),
        (views, False),
        (lambda x: x.contiguous(), False),
    ],
    ids=["times", "in place", "detached", "transposed", "copied", "view", "same"],
)
def test_code_between_blocks(change: Any, refused: bool) -> None:
    model = Loop(
        lambda model, block, x, i: block(change(x) if i == 2 else x),
        lambda: nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1)),
    )
    x = noise(16, 16)
    if not refused:
        check(model, x)
        return
    expected = r"'blocks.2' does not receive what block 'blocks.1' returned, .*code of its own"
    for plan in (PLANS[0], PLANS[2]):
        with apply(plan, model), pytest.raises(UnsupportedModel, match=expected):
            model(x)
    reference = gradients(model, x, mean_square)
    with apply(PLANS[1], model):
        assert_equal(gradients(model, x, mean_square), reference)


@pytest.mark.parametrize("lengths", [(4,), (2, 2), (1, 1, 1)])
def test_a_block_that_changes_its_input_is_refused(lengths: tuple[int, ...]) -> None:
    model = Stack(4, lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(16, 16)))
    expected = "block 'blocks.0' changes its input in place, which a recomputation would start from"
    with (
        apply(segments(blocks_of(4), *lengths), model),
        pytest.raises(UnsupportedModel, match=expected),
    ):
        model(X.clone())


def test_another_autocast_inside_a_segment_is_refused() -> None:
    def call(model: Any, block: nn.Module, x: torch.Tensor, i: int) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=i >= 2):
            return block(x)

    model = Loop(call)
    expected = r"'blocks.2' runs under another autocast than block 'blocks.1'.*every-layer"
    with apply(PLANS[0], model), pytest.raises(UnsupportedModel, match=expected):
        model(X)
    reference = gradients(model, X, mean_square)
    with apply(PLANS[1], model):
        assert_equal(gradients(model, X, mean_square), reference)


@pytest.mark.parametrize("skipped", [{3}, {2, 3}, {0}, {1}, {0, 2}])
def test_skipped_blocks(skipped: set[int]) -> None:
    """No step goes wrong in silence, and none spoils the next."""
    skip: set[int] = set()
    model = Loop(lambda model, block, x, i: x if i in skip else block(x))
    reference = gradients(model, X, mean_square)
    with apply(deep(), model):
        for _ in range(2):
            skip |= skipped
            with pytest.raises(UnsupportedModel, match=r"was not called|runs where"):
                gradients(model, X, mean_square)
            skip.clear()
            assert_equal(gradients(model, X, mean_square), reference)


def test_a_torch_without_what_this_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack()
    reference = gradients(model, X, mean_square)
    monkeypatch.setattr(passage, "_HOOKS", None)
    with (
        apply(segments(blocks_of(4), 1, 3), model),
        pytest.raises(UnsupportedModel, match=r"torch 2.* one by one, .* method='every-layer'"),
    ):
        model(X)
    with apply(segments(blocks_of(4), 1, 1, 1), model):
        assert_equal(gradients(model, X, mean_square), reference)


# --- what goes wrong half way -------------------------------------------------------------------


class Failing(Loop):
    """Fails inside a block, or between two, when `fail` says so."""

    fail = ""

    def __init__(self) -> None:
        def call(model: Any, block: nn.Module, x: torch.Tensor, i: int) -> Any:
            if model.fail == "between" and i == 2:
                raise MemoryError
            return block(x)

        super().__init__(call)
        self.embedding = nn.Linear(16, 16)
        self.blocks[2].insert(1, Fuse(self))  # type: ignore[operator]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.embedding(x))


class Fuse(nn.Module):
    """Fails where its model says so."""

    def __init__(self, model: Failing) -> None:
        super().__init__()
        self.models = [model]  # a list, or it would be its child

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.models[0].fail == "inside":
            raise MemoryError
        return x


@pytest.mark.parametrize("where", ["inside", "between"])
@pytest.mark.parametrize("plan", PLANS, ids=NAMES)
def test_a_step_that_fails_half_way_leaves_nothing(plan: Plan, where: str) -> None:
    """Nothing is open, nothing is held, the next step is right."""
    model = Failing()
    reference = gradients(model, X, mean_square)
    other = nn.Linear(16, 16)
    with apply(plan, model):
        model.fail = where
        held: list[weakref.ref[torch.Tensor]] = []
        hook = model.embedding.register_forward_hook(
            lambda module, args, out: held.append(weakref.ref(out))
        )
        gc.collect()
        gc.disable()
        try:
            with pytest.raises(MemoryError):
                model(X)
            assert [reference() for reference in held] == [None]
        finally:
            gc.enable()
        hook.remove()
        assert gradients(other, X, mean_square).keys() == {"weight", "bias"}  # under no hooks
        model.fail = ""
        assert_equal(gradients(model, X, mean_square), reference)


def test_hooks_on_saved_tensors_around_a_step() -> None:
    """As of offloading: what a segment saves, its input, goes through them."""
    model = Stack()
    reference = gradients(model, X, mean_square)
    packed: list[torch.Size] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor.shape)
        return tensor.detach()

    with apply(deep(), model), torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        assert_equal(gradients(model, X, mean_square), reference)
    assert packed[0] == X.shape
    assert len(packed) < 4
