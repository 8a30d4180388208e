"""What `verify` finds, what it stores with a plan, and what a handle says of its model."""

from __future__ import annotations

import copy
import io
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from scheduler import InvalidPlan, Plan, UnsupportedModel, frontier, solve
from scheduler.pytorch import apply, measure, profile, verify
from scheduler.pytorch.observe.tracker import MemoryTracker
from solvers.schedule import Checkpoint, Item, Items, Keep
from tests.pytorch import models
from tests.pytorch.checkpointing.test_refusals import Stack, blocks_of, segments
from tests.pytorch.models import Case, assert_equal, case, costs, gradients, mean_square, mlp, noise

X = noise(32, 16)


def half(name: str) -> Plan:
    """A plan at half of keep-all."""
    return solve(costs(name), budget=models.untouched(name)[1].peak_bytes // 2)


# --- what is found ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sequential", "convolutions", "gpt2", "llama-bfloat16"])
@pytest.mark.parametrize("device", ["real", "fake"])
def test_a_plan_that_holds(name: str, device: str) -> None:
    this, plan = case(name), half(name)
    before = torch.get_rng_state(), random.getstate()
    found = verify(plan, this.model, this.inputs, this.loss_fn, device)
    assert found.ok
    assert found.parted is None
    assert found.forwards == {block: plan.forwards[block] for block in found.forwards}
    assert found.peak_bytes == pytest.approx(plan.peak_bytes, rel=0.005)
    assert found.peak_bytes_without == models.untouched(name)[1].peak_bytes
    assert (found.left_bytes, found.left_bytes_without) == (0, 0)
    real = device == "real"
    assert found.gradients == ("equal" if real else "not compared")
    assert found.state == ("equal" if real else "not compared")
    assert found.deterministic is (True if real else None)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert all(parameter.grad is None for parameter in this.model.parameters())
    assert "forward" not in this.model.get_submodule(next(iter(found.forwards))).__dict__


def test_a_report_on_one_screen() -> None:
    this = case("gpt2")
    found = verify(half("gpt2"), this.model, this.inputs)
    lines = str(found).splitlines()
    assert lines[0] == "as planned, on real tensors"
    assert len(lines) == 6
    assert max(map(len, lines)) <= 120
    assert "equal bit by bit" in lines[1]
    assert "within" in lines[4]
    record = json.loads(json.dumps(found.to_dict()))
    assert record["ok"] is True
    assert record["predicted_peak_bytes"] == half("gpt2").peak_bytes
    assert record["planned_forwards"] == found.forwards
    assert "plan" not in record


def test_a_device_that_is_none() -> None:
    with pytest.raises(UnsupportedModel, match="device must be 'real' or 'fake', got 'cuda'"):
        verify(half("gpt2"), case("gpt2").model, models.batch(), device="cuda")


def test_a_plan_for_another_model() -> None:
    with pytest.raises(InvalidPlan, match="another model"):
        verify(half("gpt2"), models.gpt2(n_layer=11), models.batch())


class Holding(nn.Module):
    """A block that holds on to 28 bytes whenever it runs."""

    def __init__(self, held: list[Any] | None = None) -> None:
        super().__init__()
        self.inner = mlp(dropout=0.0)
        self.held: Any = [] if held is None else held

    def forward(self, x: torch.Tensor) -> Any:
        self.held.append(torch.ones(7))
        return self.inner(x)


def recomputing() -> bool:
    """Are we inside a backward?"""
    return torch._C._current_graph_task_id() != -1


def test_the_first_block_that_parts_is_named() -> None:
    """Block 2 sees another input when it is recomputed; block 1 gets a wrong gradient from it."""
    torch.manual_seed(0)
    model = nn.Sequential(*(mlp(dropout=0.0) for _ in range(4)))
    inner = model[2]
    plan = segments(["0", "1", "2", "3"], 1, 1, 1, 1)
    plan = replace(plan, budget_bytes=None, peak_bytes=10**6)
    assert verify(plan, model, X, mean_square).ok
    original = inner.forward

    def forward(x: torch.Tensor) -> Any:
        return original(x * (2.0 if recomputing() else 1.0))

    inner.forward = forward
    found = verify(plan, model, X, mean_square)
    assert not found.ok
    assert found.deterministic
    assert found.gradients == "different"
    assert found.largest_difference > 0.1
    assert found.parted is not None
    assert "block '2'" in found.parted
    assert "in the backward" in found.parted
    assert "NOT as planned" in str(found)
    assert "DIFFERENT" in str(found)
    assert found.parted in str(found).replace("\n", " ")


def test_a_block_that_runs_more_often_than_planned() -> None:
    """Somebody else checkpoints a block, in a way nothing announces."""
    from torch.utils.checkpoint import checkpoint

    model = Stack(4)

    class Outer(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result = checkpoint(super().forward, x, use_reentrant=False)
            assert isinstance(result, torch.Tensor)
            return result

    outer = Outer(4)
    plan = replace(segments(blocks_of(4), 1), budget_bytes=None, peak_bytes=10**6)
    assert verify(plan, model, X, mean_square).ok
    found = verify(plan, outer, X, mean_square)
    assert not found.ok
    assert found.forwards != found.planned_forwards
    assert found.gradients == "equal"
    assert found.parted is not None
    assert "'blocks.0'" in found.parted
    assert "where the plan has 2" in found.parted


def test_a_step_above_its_budget() -> None:
    """A longer batch than the one that was profiled."""
    this, plan = case("gpt2"), half("gpt2")
    found = verify(plan, this.model, models.batch(8))
    assert found.peak_bytes > plan.peak_bytes
    assert not found.within_budget
    assert not found.ok
    assert found.gradients == "equal"
    assert "ABOVE" in str(found)


HELD: list[Any] = []


class Elsewhere:
    """Where a module's attributes do not lead to."""

    @staticmethod
    def append(value: Any) -> None:
        HELD.append(value)


@pytest.mark.parametrize("held", [None, Elsewhere])
def test_what_a_block_holds_on_to(held: Any) -> None:
    """It runs twice as often with the plan; what it has on itself it holds once."""
    torch.manual_seed(0)
    model = nn.Sequential(mlp(dropout=0.0), Holding(held), mlp(dropout=0.0))
    plan = replace(segments(["0", "1", "2"], 1, 1), budget_bytes=None, peak_bytes=10**6)
    found = verify(plan, model, X, mean_square)
    more = 0 if held is None else 28
    expected = (28 + more, 28, more)
    assert (found.left_bytes, found.left_bytes_without, found.leaked_bytes) == expected
    assert found.ok is not bool(more)


def test_steps_that_are_not_deterministic() -> None:
    """Noise from a generator nobody puts back: gradients are compared with that noise."""
    source = torch.Generator().manual_seed(0)

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp(dropout=0.0)

        def forward(self, x: torch.Tensor) -> Any:
            return self.inner(x + 1e-6 * torch.randn(x.shape, generator=source))

    torch.manual_seed(0)
    model = nn.Sequential(*(Noisy() for _ in range(3)))
    plan = replace(segments(["0", "1", "2"], 1, 1, 1), budget_bytes=None, peak_bytes=10**6)
    found = verify(plan, model, X, mean_square)
    assert found.deterministic is False
    assert found.gradients == "within noise"
    assert 0 < found.largest_difference < 1e-3
    assert found.state == "not compared"
    assert found.ok
    assert "no more than between two steps" in str(found)


def test_a_buffer_that_parts_is_named() -> None:
    this = case("convolutions")
    model = copy.deepcopy(this.model)
    plan = solve(costs("convolutions"), budget=10**9, method="every-layer")
    assert verify(plan, model, this.inputs, this.loss_fn).ok
    norm, other = model.get_submodule("1.1"), model.get_submodule("2.1")
    original = norm.forward

    def forward(x: torch.Tensor) -> Any:
        if recomputing():  # what the block cannot know to be its own
            other.running_mean.add_(1)  # type: ignore[operator]
        return original(x)

    norm.forward = forward
    found = verify(plan, model, this.inputs, this.loss_fn)
    assert found.state == "different"
    assert not found.ok
    assert found.parted == "What the model has as '2.1.running_mean' is another after the step."


# --- calibration --------------------------------------------------------------------------------


def test_the_measured_peak_is_stored_and_used(tmp_path: Path) -> None:
    """Solving again with the margin as `reserved` gives a plan that is measured within budget."""
    this = case("gpt2")
    inputs = models.batch(5)  # a quarter more rows than were profiled
    budget = models.untouched("gpt2")[1].peak_bytes * 3 // 4
    plan = solve(costs("gpt2"), budget=budget)
    assert (plan.measured_peak_bytes, plan.margin_bytes) == (None, 0)
    assert "measured_peak_bytes" not in plan.to_dict()
    found = verify(plan, this.model, inputs)
    assert not found.ok
    found.calibrated.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded == found.calibrated != plan
    assert loaded.measured_peak_bytes == found.peak_bytes
    assert loaded.margin_bytes == found.margin_bytes == found.peak_bytes - plan.peak_bytes > 0
    again = solve(costs("gpt2"), budget=budget, reserved=loaded.margin_bytes)
    second = verify(again, this.model, inputs)
    assert second.peak_bytes <= budget
    assert second.ok or second.peak_bytes <= budget


def test_a_plan_measured_below_its_peak_needs_no_margin() -> None:
    plan = replace(half("gpt2"), measured_peak_bytes=5)
    assert plan.margin_bytes == 0
    assert Plan.from_json(plan.to_json()).measured_peak_bytes == 5
    record = {**plan.to_dict(), "measured_peak_bytes": -1}
    with pytest.raises(InvalidPlan, match="'measured_peak_bytes' must be a whole number of bytes"):
        Plan.from_dict(record)


# --- autocast -----------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("name", ["sequential", "thin", "convolutions", "gpt2", "llama-float32"])
def test_autocast_is_profiled(name: str, cache: bool) -> None:
    """Within 1 % of what is measured, and never below it, at three points of the frontier."""
    this = case(name)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=cache):
        points = frontier(profile(this.model, this.inputs, this.loss_fn))
        for place in (0, len(points) // 2, len(points) - 1):
            plan = points.plan(budget=points[place][0])
            found = verify(plan, this.model, this.inputs, this.loss_fn)
            assert found.ok, found
            assert found.gradients == "equal"
            assert 0.99 * plan.peak_bytes <= found.peak_bytes <= plan.peak_bytes


def test_weights_cast_in_a_segment_are_let_go() -> None:
    """Autocast's cache would hold a copy of every weight until its end."""
    model, inputs = models.llama(n_layer=8), models.batch(1, 4)
    plan = solve(profile(model, inputs), budget=10**12, method="every-layer")
    blocks = [parameter.numel() for parameter in model.model.layers.parameters()]

    def live() -> int:
        with MemoryTracker() as tracker, torch.autocast("cpu", torch.bfloat16):
            loss = model(**inputs).loss
            return tracker.live_bytes if loss.requires_grad else 0

    without = live()
    with apply(plan, model):
        assert without - live() > 2 * sum(blocks)


# --- the handle ---------------------------------------------------------------------------------


def test_a_plan_applied_for_a_while() -> None:
    this, plan = case("gpt2"), half("gpt2")
    block = this.model.get_submodule("transformer.h.5")
    with apply(plan, this.model) as handle:
        assert handle.report().ok
        assert "forward" in block.__dict__
        assert_equal(gradients(this.model, this.inputs), models.untouched("gpt2")[0])
    assert "forward" not in block.__dict__


def test_the_report_says_what_is_in_the_way() -> None:
    model: Any = copy.deepcopy(case("gpt2").model)
    plan = solve(costs("gpt2"), budget=10**12, method="every-layer")
    handle = apply(plan, model)
    report = handle.report()
    assert report.ok
    assert len(report) == 14
    assert report["transformer.h.3"] == "checkpoint"
    assert report.calls["transformer.h.3"] == 0
    model(**models.batch()).loss.backward()
    report = handle.report()
    assert report.ok
    assert report.calls["transformer.h.3"] == 1  # a recomputation is no call
    lines = str(report).splitlines()
    assert len(lines) == 15
    assert lines[0].split() == ["layer", "planned", "found", "calls"]
    assert lines[5].split() == ["transformer.h.3", "checkpoint", "as", "planned", "1"]

    layers = model.transformer.h
    layers[0].forward = lambda *args, **kwargs: None
    layers[1] = copy.deepcopy(layers[1])
    layers[2].gradient_checkpointing = True
    layers[3].compile(backend="eager")
    report = handle.report()
    assert not report.ok
    assert report.found["transformer.h.0"] == "its forward was replaced since"
    assert report.found["transformer.h.1"] == "another module has taken its place"
    assert report.found["transformer.h.2"] == "its own gradient checkpointing is on"
    assert report.found["transformer.h.3"] == "compiled from outside since: it runs uncompiled"
    assert report.found["transformer.h.4"] == "checkpoint"
    assert "its forward was replaced since" in str(report)
    handle.remove()
    assert set(handle.report().found.values()) >= {"the plan was removed"}


def test_gradient_checkpointing_after_the_plan_is_refused() -> None:
    model: Any = copy.deepcopy(case("llama-float32").model)
    plan = solve(costs("llama-float32"), budget=10**12, method="every-layer")
    apply(plan, model)
    model.model.layers[3].gradient_checkpointing = True
    with pytest.raises(UnsupportedModel, match=r"'model.layers.3' has its own gradient check.*on,"):
        model(**models.batch())


@pytest.mark.parametrize("name", ["gpt2", "convolutions"])
def test_a_model_saved_whole(name: str) -> None:
    this, plan = case(name), half(name)
    model = copy.deepcopy(this.model)
    apply(plan, model)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert_equal(gradients(loaded, this.inputs, this.loss_fn), models.untouched(name)[0])
    assert list(loaded.state_dict()) == list(this.model.state_dict())
    found = measure(loaded, this.inputs, this.loss_fn)
    assert found.forwards == {block: plan.forwards[block] for block in found.forwards}


def test_a_plan_that_nests_deeper_than_python_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    names = [str(i) for i in range(150)]
    deep: tuple[Item, ...] = (Keep(0),)
    for last in range(1, len(names)):
        deep = (Checkpoint(0, last - 1, deep), Keep(last))
    plan = replace(segments(names), schedule=Items(deep))
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in names))
    limit = 1000
    monkeypatch.setattr(sys, "getrecursionlimit", lambda: limit)
    with pytest.raises(InvalidPlan, match=r"nests 149 checkpoints, .* nest 133; .*imit\(1094\)"):
        apply(plan, model)
    monkeypatch.undo()
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, 2000))
    try:
        with apply(plan, model):
            found = gradients(model, noise(2, 4), mean_square)
    finally:
        sys.setrecursionlimit(before)
    assert_equal(found, gradients(model, noise(2, 4), mean_square))


# --- memory over many steps ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sequential", "convolutions", "gpt2", "llama-bfloat16"])
def test_ten_steps_leave_what_two_leave(name: str) -> None:
    this = Case(copy.deepcopy(case(name).model), case(name).inputs, case(name).loss_fn)
    optimizer = torch.optim.AdamW(this.model.parameters())
    plan = solve(costs(name), budget=models.smallest_budget(costs(name)))
    live = []
    with apply(plan, this.model), MemoryTracker() as tracker:
        for _ in range(10):
            output = models.run(this.model, this.inputs)
            loss = this.loss_fn(output) if this.loss_fn else output.loss
            del output
            loss.backward()
            del loss
            optimizer.step()
            optimizer.zero_grad()
            live.append(tracker.live_bytes)
    assert live[1] > 0  # the optimizer's moments
    assert live[1:] == [live[1]] * 9
