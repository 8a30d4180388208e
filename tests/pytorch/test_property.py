"""Models drawn from a grammar, held to random plans: what holds for the first 60 of any number."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch

from tests.pytorch.facts import facts, parted
from tests.pytorch.grammar import Draw
from tests.pytorch.witness import drawn, made, steps, trial

GROUPS, MODELS, LEAST = 3, 20, 6
"""Of the models of each group, at least so many are planned for and not refused."""


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_plan_changes_nothing(group: int) -> None:
    trials = [trial(drawn(seed)) for seed in range(group * MODELS, (group + 1) * MODELS)]
    failed = {done.draw: done.failed for done in trials if done.failed}
    assert failed == {}
    refused = [done.refused for done in trials if not done.held]
    assert MODELS - len(refused) >= LEAST, refused


@pytest.mark.parametrize(
    "draw",
    [
        # A block leaves its input, with a gradient, where the model clears it in the next step.
        Draw(20057, "tokens", (("relay@tally", "group"),), (0, 0), ("shell=model",)),
        # What an option's recomputation changes on its module is there twice.
        Draw(20203, "tokens", (("attention", "instance"), ()), (1, 0), ("shell=model",)),
        # A hook holds the gradient that it is shown while the blocks before run again.
        Draw(20296, "tokens", (("linear",),), (0, 0, 0), ("shell=sequential", "hook=backward")),
        # No chain, and code that a graph's plan would not run changes a part that nobody calls.
        Draw(20459, "rows", (("meter@cell", "linear"),), (0, 0), ("shell=model", "give=carry")),
        # The gradient of what a block before has left waits while a block kept with an option runs.
        Draw(20641, "rows", (("mlp", "relay@tally"),), (0, 0), ("shell=model",)),
        # An option's forward has copies of what it may change, too.
        Draw(20632, "rows", (("spectral", "numpy"),), (0,) * 4, ("shell=model", "with=residual")),
        # Nobody asks for blocks to run again that save nothing.
        Draw(20021, "rows", (("numpy",), ("linear",)), (0, 1, 0), ("shell=model",)),
        # Code around the blocks leaves its gradient where a block reads it.
        Draw(21164, "rows", (("relay@tally", "mlp"),), (0,) * 4, ("shell=model", "share=block")),
    ],
)
def test_models_whose_plans_were_wrong(draw: Draw) -> None:
    done = trial(draw)
    assert bool(done.held) != bool(done.refused)
    assert done.failed == []


def test_the_witness_sees_what_changes() -> None:
    parts = ("linear", "tensors@cell", "meter@block", "generator@tally", "window@cell", "batch")
    draw = Draw(0, "rows", (parts,), (0, 0), ("shell=model", "hook=count", "with=warm"))
    model, batch = made(draw)
    assert parted(facts(model), facts(made(draw)[0])) == []
    before = facts(model, same=True)
    assert parted(facts(model, same=True), before) == []
    steps(draw, model, batch, range(1))
    changed = {line.partition(":")[0] for line in parted(facts(model, same=True), before)}
    for name in ("cell.tensors", "meter.runs", "meter.total", "cell.window", "hooked"):
        assert f".blocks.0.{name}" in changed
    assert {".blocks.0.tally.generator", ".head.weight", ".head.weight.grad"} <= changed


def test_the_witness_sees_what_is_one_thing() -> None:
    value = torch.ones(2)
    both: list[Any] = [value, [value]]
    assert parted(facts(deepcopy(both)), facts(both)) == []
    assert parted(facts([value, [value.clone()]]), facts(both)) != []
    before = facts(both, same=True)
    both[1] = [value]
    assert [line.partition(":")[0] for line in parted(facts(both, same=True), before)] == ["[1] is"]
