"""One call from a model, a batch and a budget to a step that fits."""

from __future__ import annotations

import copy
from itertools import count
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.optimization import Adafactor

from scheduler import InfeasibleBudget, InvalidBudget, UnsupportedModel
from scheduler.pytorch import Coverage, Measurement, Verification, auto_checkpoint, measure
from scheduler.pytorch.fitting import auto
from scheduler.pytorch.fitting.held import held_state
from scheduler.pytorch.observe.clock import Clock
from scheduler.pytorch.observe.dispatch import tensors_of
from scheduler.pytorch.observe.tracker import MemoryTracker, unique_bytes
from tests.pytorch.models import assert_equal

CONFIG = GPT2Config(
    n_layer=4, n_embd=32, n_head=2, vocab_size=64, bos_token_id=0, eos_token_id=0, n_positions=64
)
TOKENS = torch.randint(0, 64, (2, 64), generator=torch.Generator().manual_seed(0))
BATCH = {"input_ids": TOKENS, "labels": TOKENS}
FAST: dict[str, Any] = {"fake": False, "options": False, "margin": 0, "quiet": True}


def gpt2() -> Any:
    torch.manual_seed(0)
    return GPT2LMHeadModel(CONFIG).train()


def step(model: Any, batch: Any = BATCH) -> dict[str, torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(1)
    model(**batch).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


class Buffered(nn.Module):
    """A stack with a buffer, and a parameter that is frozen."""

    def __init__(self, width: int = 64, blocks: int = 4) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            *(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(blocks))
        )
        self.register_buffer("scale", torch.ones(100))
        self.frozen = nn.Parameter(torch.ones(50), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x).mean() * self.scale[0] * self.frozen[0]  # type: ignore[index, no-any-return]


def test_one_call(capsys: pytest.CaptureFixture[str]) -> None:
    """The step fits, is bit by bit the one without a plan, and everything is undone."""
    model = gpt2()
    plain = step(model)
    optimizer = torch.optim.AdamW(model.parameters())
    asked: dict[str, Any] = {"optimizer": optimizer, "margin": 0, "fake": False}
    with auto_checkpoint(model, BATCH, budget="1900KB", **asked) as handle:
        said = capsys.readouterr().out
        assert_equal(step(model), plain)
        report = handle.report()
        assert isinstance(report, Coverage)
        assert report.ok
        assert set(report.calls.values()) == {1}
        assert str(report).startswith(said)
    assert_equal(step(model), plain)
    assert all("forward" not in module.__dict__ for module in model.modules())
    choice = handle.choice
    parameters = list(model.parameters())
    weights = sum(4 * p.numel() for p in parameters)
    moments = 2 * weights + 4 * len(parameters)  # each parameter has a counter of its steps
    assert choice.request.reserved_bytes == weights + moments
    assert choice.request.reserved_bytes + handle.plan.peak_bytes <= 1_900_000
    assert choice.peak_bytes <= 1_900_000
    assert isinstance(choice.found, Measurement)
    assert choice.found.peak_bytes <= handle.plan.peak_bytes
    assert handle.plan.schedule.options()
    flat = " ".join(said.split())
    assert "checkpointing of GPT2LMHeadModel: " in flat
    assert "within 1.900 MB" in flat
    assert "the peak is set by the " in flat
    assert "What would help most: " in flat
    assert "times measured" in flat


@pytest.mark.parametrize("sums", [False, True])
def test_what_is_set_aside(sums: bool) -> None:
    """Parameters, frozen ones too, buffers, moments of a name, sums of gradients, the margin."""
    model = Buffered()
    trained = 4 * 4 * (64 * 64 + 64)
    x = torch.randn(256, 64)
    asked: dict[str, Any] = {"margin": "10KB", "gradient_accumulation": sums, "quiet": True}
    with auto_checkpoint(model, x, lambda y: y, budget="900KB", **asked) as handle:
        request = handle.choice.request
    held = trained + 4 * 50 + 4 * 100 + 2 * trained + 10_000 + sums * trained
    assert handle.choice.estimated  # on stand-ins, where these can
    assert request.reserved_bytes == held
    assert handle.plan.reserved_bytes == held
    assert handle.choice.peak_bytes <= 900_000
    # In the optimizer's step: the batch, gradients that are not set aside, two of the largest.
    assert request.update_bytes == 4 * 256 * 64 + (not sums) * trained + 2 * 4 * 64 * 64


def test_the_second_of_accumulated_steps_is_within_the_budget() -> None:
    model = Buffered()
    x = torch.randn(256, 64)
    asked: dict[str, Any] = {**FAST, "gradient_accumulation": True, "optimizer": None}
    with auto_checkpoint(model, x, lambda y: y, budget="480KB", **asked) as handle:
        assert handle.plan.overhead > 0
        tracker = MemoryTracker()
        with tracker:
            tracker.count(x)
            for _ in range(2):
                model(x).backward()
        weights = unique_bytes([list(model.parameters()), list(model.buffers())])
        assert tracker.peak_bytes + weights <= 480_000


@pytest.mark.parametrize(
    "make",
    [
        torch.optim.AdamW,
        lambda ps: torch.optim.AdamW(ps, foreach=True, amsgrad=True),
        lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9),
        torch.optim.SGD,
        torch.optim.Adafactor,
        Adafactor,
        torch.optim.RMSprop,
        torch.optim.Adagrad,
    ],
)
def test_what_an_optimizer_holds(make: Any) -> None:
    """By its class before the first step, and as it is after it: what it really holds."""
    model = Buffered()
    optimizer = make(model.blocks.parameters())
    before, update = held_state(model, optimizer)
    assert update >= 0
    assert not any(p.grad is not None for p in model.parameters())
    model(torch.randn(4, 64)).backward()
    optimizer.step()
    held = unique_bytes(tensors_of(list(optimizer.state.values())))
    assert before.moments_bytes == held
    assert held_state(model, optimizer)[0] == before


def test_nothing_fits() -> None:
    """The smallest budget is one: it fits, and one byte less does not."""
    model = gpt2()
    with pytest.raises(InfeasibleBudget) as caught:
        auto_checkpoint(model, BATCH, budget="1MB", **FAST)
    error = caught.value
    assert "set by the backward of" in str(error)
    assert "an 8-bit optimizer would need" in str(error)
    assert "moments" in str(error)
    smallest = error.smallest_budget_bytes
    auto_checkpoint(model, BATCH, budget=f"{smallest}B", **FAST).remove()
    with pytest.raises(InfeasibleBudget):
        auto_checkpoint(model, BATCH, budget=f"{smallest - 1}B", **FAST)
    whole = {name: value for name, value in FAST.items() if name != "margin"}
    with pytest.raises(InfeasibleBudget) as caught:
        auto_checkpoint(model, BATCH, budget="1MB", **whole)
    # With a margin that is a share of the budget, too.
    needs = caught.value.smallest_budget_bytes
    assert needs * 97 // 100 < smallest <= needs - needs * 3 // 100
    auto_checkpoint(model, BATCH, budget=f"{needs}B", **whole).remove()
    with pytest.raises(InfeasibleBudget, match=r"less than the .* that are reserved \(state 644"):
        auto_checkpoint(model, BATCH, budget="500KB", **FAST)


def test_the_optimizer_may_set_the_peak() -> None:
    model, x = Buffered(), torch.randn(1, 64)
    optimizer = torch.optim.AdamW(model.blocks.parameters(), foreach=True)
    with auto_checkpoint(model, x, lambda y: y, budget="1MB", optimizer=optimizer, **FAST) as h:
        assert h.choice.set_by == "the optimizer's step"
        needs = h.choice.peak_bytes
    asked = {"optimizer": optimizer, **FAST, "budget": f"{needs - 1}B"}
    with pytest.raises(
        InfeasibleBudget, match=r"set by the optimizer's step; .*fused=True"
    ) as error:
        auto_checkpoint(model, x, lambda y: y, **asked)
    assert error.value.smallest_budget_bytes == needs


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.one(x)
        return self.one(torch.tanh(self.other(torch.tanh(x))) + x).mean()  # type: ignore[no-any-return]


def test_a_model_that_is_no_chain() -> None:
    model, x = Branches(), torch.randn(256, 64)

    def gradients() -> dict[str, torch.Tensor]:
        model.zero_grad()
        model(x).backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    plain = gradients()
    with auto_checkpoint(model, x, budget="450KB", **{**FAST, "optimizer": "sgd"}) as handle:
        assert handle.plan.kind == "layer graph"
        assert_equal(gradients(), plain)
    with pytest.raises(InfeasibleBudget, match="give at least that much"):
        auto_checkpoint(model, x, budget="150KB", **FAST)


class Routed(Buffered):
    """A stack with experts, of which a step takes one, and a module that nothing calls."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))
        self.idle = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.experts[int(x.sum() > 0)](x))


@pytest.mark.parametrize("fake", [False, True])
def test_what_has_no_gradient_is_said(fake: bool) -> None:
    """No moments are set aside of it, and none are made; a step in which it has one is told."""
    model, words = gpt2(), "of 17.00 KiB have no gradient in this step"
    asked: dict[str, Any] = {**FAST, "verify": False, "budget_gb": 1, "fake": fake}
    with auto_checkpoint(model, BATCH, **asked) as handle:
        before = handle.choice.request
        assert words not in handle.choice.paragraph()
    model.idle = nn.Linear(16, 256)
    made = torch.optim.AdamW(model.parameters(), foreach=False)
    for optimizer in ("adamw", made):
        with auto_checkpoint(model, BATCH, optimizer=optimizer, **asked) as handle:
            assert words in handle.choice.paragraph()
            counters = 4 * len([*gpt2().parameters()]) if optimizer is made else 0
            found = handle.choice.request.state.moments_bytes - before.state.moments_bytes
            assert found == counters
            with pytest.warns(UserWarning, match=r"^'idle.bias' of GPT2LMHeadModel has a gradient"):
                model.idle.bias.sum().backward()
            model.idle.weight.sum().backward()  # once
        model.idle.bias.sum().backward()


def test_what_may_have_a_gradient_in_another_step_is_set_aside() -> None:
    model, x = Routed(), torch.ones(4, 64)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with auto_checkpoint(
        model, x, lambda y: y, budget="1MB", optimizer=optimizer, **FAST
    ) as handle:
        for each in (x, -x):
            model.zero_grad()
            model(each).backward()
            optimizer.step()
    held = unique_bytes([[*state.values()] for state in optimizer.state.values()])
    assert held == handle.choice.request.state.moments_bytes


def test_its_own_checkpointing_is_off_meanwhile() -> None:
    model = gpt2()
    model.transformer.gradient_checkpointing = True
    with auto_checkpoint(model, BATCH, budget_gb=1, **FAST) as handle:
        assert model.transformer.gradient_checkpointing is False
        assert "checkpointing was switched off" in " ".join(str(handle.report()).split())
        assert "Nothing is lost" in str(handle.report())
    assert model.transformer.gradient_checkpointing is True
    with pytest.raises(InfeasibleBudget):
        auto_checkpoint(model, BATCH, budget="1MB", **FAST)
    assert model.transformer.gradient_checkpointing is True


def test_a_machine_that_is_too_noisy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count(1)
    monkeypatch.setattr(Clock, "mark", lambda self: next(ticks) ** 2)  # slower and slower
    asked: dict[str, Any] = {**FAST, "budget_gb": 1, "verify": False}
    noisy = "The machine was too noisy for these times to be trusted: repeated runs were"
    for fake in (False, True):
        with auto_checkpoint(gpt2(), BATCH, **{**asked, "fake": fake}) as handle:
            assert (noisy in " ".join(str(handle.report()).split())) == (not fake)


def test_values_are_compared_when_asked() -> None:
    with auto_checkpoint(gpt2(), BATCH, budget="1900KB", verify="values", **FAST) as handle:
        found = handle.choice.found
        assert isinstance(found, Verification)
        assert found.gradients == "equal"


def test_what_is_wrong_is_said() -> None:
    model = gpt2()
    with pytest.raises(InvalidBudget, match=r"no CUDA and no budget: .* pass budget_gb="):
        auto_checkpoint(model, BATCH)
    with pytest.raises(UnsupportedModel, match="does not take this batch: missing a req"):
        auto_checkpoint(Buffered(), {"input_id": TOKENS}, budget_gb=1)
    with pytest.raises(UnsupportedModel, match=r"does not run a step on this batch .*shapes"):
        auto_checkpoint(Buffered(), torch.randn(4, 63), lambda y: y, budget_gb=1)
    whole = torch.ones(4, 64, dtype=torch.long)  # which fake tensors take
    with pytest.raises(UnsupportedModel, match=r"does not run a step on this batch .*dtype"):
        auto_checkpoint(Buffered(), whole, lambda y: y, budget="1GB")
    wrong: Any = "value"
    with pytest.raises(UnsupportedModel, match=r"verify must be True, False or .*'value'"):
        auto_checkpoint(model, BATCH, budget_gb=1, verify=wrong)
    with pytest.raises(ValueError, match="gpu must be one of"):
        auto_checkpoint(model, BATCH, budget_gb=1, gpu="h1000")
    other = torch.optim.AdamW(gpt2().parameters())
    with pytest.raises(UnsupportedModel, match="of other parameters: it has none of this GPT2"):
        auto_checkpoint(model, BATCH, budget_gb=1, optimizer=other)
    with pytest.raises(ValueError, match="did you mean 'lion'"):
        auto_checkpoint(model, BATCH, budget_gb=1, optimizer="lyon")
    with pytest.raises(InvalidBudget, match="did you mean"):
        auto_checkpoint(model, BATCH, budget=1, **FAST)
    with pytest.raises(InvalidBudget, match=r"margin 16 is 16 bytes, .* did you mean '16MB'"):
        auto_checkpoint(model, BATCH, budget_gb=1, **{**FAST, "margin": 16})


def test_what_is_measured_above_the_plan_goes_into_the_margin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As an allocator may take more than tensors do; where it is so again, nothing is applied."""
    model = gpt2()
    with auto_checkpoint(model, BATCH, budget_gb=1, **FAST) as handle:
        needs, peak = handle.choice.peak_bytes, handle.plan.peak_bytes
    peaks = [peak + 50_000, 1_000_000]
    monkeypatch.setattr(auto, "measure", lambda *_: Measurement(peaks.pop(0), {}, 1.0))
    with auto_checkpoint(model, BATCH, budget=f"{needs}B", **FAST) as handle:
        assert handle.choice.request.margin_bytes == 50_000
        assert handle.plan.peak_bytes <= peak - 50_000
        assert "a first plan was measured 48.83 KiB above" in handle.choice.notes[-1]
    monkeypatch.setattr(auto, "measure", lambda *_: Measurement(peak + 50_000, {}, 1.0))
    with pytest.raises(UnsupportedModel, match=r"with a second plan too; give a larger margin="):
        auto_checkpoint(model, BATCH, budget=f"{needs}B", **FAST)
    monkeypatch.setattr(auto, "measure", lambda *_: Measurement(1, {"transformer.h.0": 7}, 1.0))
    with pytest.raises(UnsupportedModel, match=r"'transformer.h.0' runs 7 times in a step, where"):
        auto_checkpoint(model, BATCH, budget=f"{needs}B", **FAST)
    assert all("forward" not in module.__dict__ for module in model.modules())


def test_a_step_that_is_another_is_profiled_on_real_tensors_and_without_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = count()

    def unlike(*given: Any) -> Measurement:
        if next(calls) < 2:
            raise UnsupportedModel("block 'transformer.h.0' runs aten.mul.Tensor 5 times")
        return measure(*given)

    monkeypatch.setattr(auto, "measure", unlike)
    model = gpt2()
    model.activation_checkpointing_enable()
    asked: dict[str, Any] = FAST | {"fake": None, "options": True}
    with auto_checkpoint(model, BATCH, budget="1900KB", **asked) as handle:
        assert not handle.plan.policies
        assert "times measured" in handle.choice.paragraph()
        assert "own gradient checkpointing was switched off" in handle.choice.paragraph()
    assert next(calls) == 3
    assert model.is_activation_checkpointing


def test_what_is_no_batch_and_no_loss() -> None:
    model, beyond = gpt2(), torch.cat([TOKENS, TOKENS], 1)
    for tokens in (TOKENS + 600, beyond):
        wrong: Any = {"input_ids": tokens, "labels": tokens}
        with pytest.raises(UnsupportedModel, match=r"outside of its vocabulary, or the sequence"):
            auto_checkpoint(model, wrong, budget="2GB", quiet=True)
    assert all("forward" not in module.__dict__ for module in model.modules())
    wrong = 40
    with pytest.raises(UnsupportedModel, match=r"third argument, .* got 40; .* budget_gb=40"):
        auto_checkpoint(model, BATCH, wrong)
    with pytest.raises(UnsupportedModel, match=r"third argument, .* got 40"):
        measure(model, BATCH, wrong)


def test_mode_and_size_of_a_step() -> None:
    """A model in eval mode is planned in train mode; what is not as planned is said, once."""
    model = gpt2().eval()
    handle = auto_checkpoint(model, BATCH, budget="2MB", **FAST)
    assert not any(module.training for module in model.modules())
    assert "is in eval mode, as from_pretrained leaves it" in handle.choice.paragraph()
    with pytest.warns(UserWarning, match=r"^'GPT2LMHeadModel' runs in eval mode with gradients"):
        model(**BATCH)
    model.train()
    copied = copy.deepcopy(model)
    found = measure(copied, BATCH)
    assert found.peak_bytes <= handle.plan.peak_bytes
    larger = torch.cat([TOKENS, TOKENS])
    with torch.no_grad():
        copied(larger)
    with pytest.warns(UserWarning, match=r"^'attention_mask' of .* 128 .* was made for 0"):
        copy.deepcopy(model)(**BATCH, attention_mask=TOKENS > 0)
    with pytest.warns(UserWarning, match=r"^'input_ids' of this step has 256 elements"):
        copied(larger, labels=larger)
    copied(larger, labels=larger)
    handle.remove()
    model(larger)
    model.transformer.drop.eval()
    handle = auto_checkpoint(model, BATCH, budget="2MB", **FAST)
    assert "'transformer.drop' of GPT2LMHeadModel is in eval mode" in handle.choice.paragraph()
    with pytest.warns(UserWarning, match=r"^'transformer\.drop' runs in train mode"):
        model.train()(**BATCH)
