"""Heads that run in tiles: as predicted, equal to rounding, and only where they can."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from scheduler import InfeasibleBudget, InvalidCosts, InvalidPlan, Plan, frontier
from scheduler.export.export import export
from scheduler.plans.policies import chosen
from scheduler.plans.rows import policy_sentences
from scheduler.pytorch import apply, auto_checkpoint, describe, profile, verify
from solvers.schedule import Checkpoint, Item, Keep
from tests.pytorch.models import batch as rows
from tests.pytorch.models import llama, mlp, plan_of

TOKENS, WORDS = 64, 1000


class Tagger(nn.Module):
    """Blocks, and a head whose loss is made outside of the model."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(mlp() for _ in range(3))
        self.head = nn.Linear(16, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        made: torch.Tensor = self.head(x)
        return made


def tagged(logits: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, torch.arange(TOKENS))


def case(name: str) -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(0)
    if name == "tagger":
        return Tagger(), torch.randn(TOKENS, 16), tagged
    config = GPT2Config(n_embd=16, n_head=2, n_layer=3, vocab_size=WORDS, n_positions=TOKENS)
    ids = torch.randint(0, WORDS, (2, TOKENS // 2))
    return GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}, None


@pytest.mark.parametrize("name", ["tagger", "gpt2"])
def test_a_head_in_tiles_is_as_predicted(name: str, tmp_path: Path) -> None:
    model, batch, loss_fn = case(name)
    whole = frontier(profile(model, batch, loss_fn))
    costs = profile(model, batch, loss_fn, tiles=16)
    assert [option.tiles for option in costs.layers[-1].options] == [2, 4]
    trades = frontier(costs)
    assert trades.points[0][0] < 0.6 * whole.points[0][0]
    trades.plan(budget=trades.points[0][0]).save(tmp_path / "plan.json")
    plan = Plan.load(tmp_path / "plan.json")
    pieces = plan.tiles[costs.layers[-1].name]
    plan.replay(costs)
    assert (
        f"{costs.layers[-1].name} in {pieces}. Gradients are the model's"
        in policy_sentences(plan)[-1]
    )
    found = verify(plan, model, batch, loss_fn)
    assert found.ok, str(found)
    assert found.gradients == "equal to rounding"
    assert 0 < found.largest_difference_units < 64
    assert 0.99 * plan.peak_bytes <= found.peak_bytes <= plan.peak_bytes
    with pytest.raises(InvalidPlan, match="tiles, which a file for torch does not do"):
        export(plan, "torch", costs)


def test_modules_inside_blocks_in_tiles_are_as_predicted(tmp_path: Path) -> None:
    model, batch = llama(n_layer=3, hidden_size=16, intermediate_size=56), rows(1, 64)
    whole = frontier(profile(model, batch)).points[0][0]
    told = describe(model, batch, tiles=8)
    words, first = " ".join(str(told).split()), told.costs.layers[1].options
    assert [(each.tiles, each.keeps) for each in first] == [(2, ()), (4, ()), (8, ())]
    assert first[0].tiled == ("input_layernorm", "post_attention_layernorm", "mlp")
    assert f"Tiles in {', '.join(told.blocks)}: {', '.join(first[0].tiled)}, in 2, 4, 8" in words
    assert "Whole there: self_attn, which mixes tokens by aten._scaled_dot_product" in words
    trades = frontier(told.costs)
    least = trades.points[0][0]
    assert least < 0.6 * whole
    for budget in (least, (least + whole) // 2, trades.points[-1][0]):
        trades.plan(budget=budget).save(tmp_path / "plan.json")
        plan = Plan.load(tmp_path / "plan.json")
        plan.replay(told.costs)
        found = verify(plan, model, batch)
        assert found.ok, str(found)
        assert found.gradients == ("equal to rounding" if plan.tiles else "equal")
        assert 0.99 * plan.peak_bytes <= found.peak_bytes <= plan.peak_bytes
    assert not plan.tiles  # with room for everything


def test_results_are_kept_around_a_module_in_tiles() -> None:
    model, batch = llama(n_layer=3, hidden_size=16, intermediate_size=56), rows(1, 64)
    costs = profile(model, batch, tiles=16, options=True, fake=True)
    options = [o for o in costs.layers[1].options if o.tiles and o.keeps]
    assert {(o.tiles, o.tiled) for o in options} == {(2, ("mlp",)), (4, ("mlp",))}
    least, most = options[0].name, options[-1].name
    segment = Checkpoint(2, 3, (Keep(2, most), Keep(3, least)))
    ways: list[list[Item]] = [
        [Keep(0), *(Keep(i, least) for i in (1, 2, 3)), Keep(4)],
        [Keep(0), Keep(1, most), segment, Keep(4)],
    ]
    for items in ways:
        plan = plan_of(costs, items)
        plan = replace(plan, **chosen(costs, plan.schedule.options()))
        found = verify(plan, model, batch)
        assert found.ok, str(found)
        assert found.gradients == "equal to rounding"
        assert found.peak_bytes == plan.peak_bytes


@pytest.mark.parametrize(
    ("dtype", "finer", "units"),
    [
        (torch.bfloat16, torch.float32, 2.0),
        (torch.float32, torch.float64, 8.0),
        (torch.float64, torch.float64, 2.0 * 2**29),  # as Llama's norms compute in float32
    ],
)
def test_tiles_are_as_near_to_the_truth_as_the_whole(
    dtype: torch.dtype, finer: torch.dtype, units: float
) -> None:
    """Held to a step in a finer type: by `apply`, with MLPs, norms and head in tiles."""
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 56, "vocab_size": WORDS}
    model, batch = llama(dtype, n_layer=2, **sizes), rows(1, 64)
    exact = llama(finer, n_layer=2, **sizes)
    exact.load_state_dict(model.state_dict())
    costs = profile(model, batch, tiles=16, fake=True)
    plan = plan_of(costs, [Keep(0), *(Keep(i, "tiles-4") for i in (1, 2, 3))])
    plan = replace(plan, **chosen(costs, plan.schedule.options()))
    truth, whole = gradients(exact, batch), gradients(model, batch)
    found = verify(plan, model, batch)
    assert found.ok, str(found)
    assert found.gradients == "equal to rounding"
    with apply(plan, model):
        mine = gradients(model, batch)
    for name, true in truth.items():
        errors = [float((each[name].to(finer) - true).norm()) for each in (whole, mine)]
        more = units * torch.finfo(dtype).eps * float(true.norm())
        assert errors[1] <= errors[0] + more, name


def gradients(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(**batch).loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def test_tiles_inside_blocks_are_put_and_taken_away() -> None:
    model, batch = llama(n_layer=3, hidden_size=16, intermediate_size=56), rows(1, 64)
    trades = frontier(profile(model, batch, tiles=16))
    plan = trades.plan(budget=trades.points[0][0])
    assert any(isinstance(item, Checkpoint) for item in plan.items)
    assert set(plan.tiled) == {*plan.layers[1:-1]}
    whole = model(**batch).logits
    with apply(plan, model) as handle, torch.no_grad():
        assert handle.report().ok
        assert torch.allclose(model(**batch).logits, whole, rtol=1e-5, atol=1e-6)
        del model.model.layers[0].mlp.forward
        assert handle.report().found["model.layers.0"] == "its forward was replaced since"
    assert torch.equal(model(**batch).logits, whole)
    first = plan.layers[1]
    for tiled, what in (((), "does not say which"), (("mlq",), "'model.layers.0.mlq' in tiles")):
        wrong = replace(plan, tiled={**plan.tiled, first: tiled})
        with pytest.raises(InvalidPlan, match=what):
            apply(wrong, model)


def test_what_a_head_in_tiles_changes_is_undone() -> None:
    model, batch, loss_fn = case("tagger")
    trades = frontier(profile(model, batch, loss_fn, tiles=16))
    expected = model.eval()(batch)
    model.train()
    with apply(trades.plan(budget=trades.points[0][0]), model):
        assert type(model(batch)) is not torch.Tensor
        assert torch.equal(model.eval()(batch), expected)
    assert type(model.train()(batch)) is torch.Tensor


def test_a_loss_that_reads_the_logits_elsewhere_is_whole_and_named() -> None:
    model, batch, _ = case("tagger")

    def sharp(logits: torch.Tensor) -> torch.Tensor:
        return tagged(logits) + logits.logsumexp(-1).mean()

    told = describe(model, batch, sharp, tiles=16)
    assert not told.costs.layers[-1].options
    assert "The head runs whole:" in str(told)
    assert "logsumexp" in str(told)


def test_tiles_are_not_thin_unless_asked() -> None:
    model, batch, loss_fn = case("tagger")
    assert not profile(model, batch, loss_fn, tiles=True).layers[-1].options
    with pytest.raises(InvalidCosts, match="least tokens of a tile, got 0"):
        profile(model, batch, loss_fn, tiles=0)


def test_one_call_takes_tiles_where_they_are_asked_for() -> None:
    model, batch, loss_fn = case("gpt2")
    below = frontier(profile(model, batch, loss_fn)).points[0][0]
    asked: dict[str, Any] = {"optimizer": None, "margin": 0, "quiet": True, "options": False}
    with pytest.raises(InfeasibleBudget):
        auto_checkpoint(model, batch, budget=below, **asked)
    with auto_checkpoint(model, batch, budget=below, tiles=16, **asked) as handle:
        assert handle.plan.tiles
