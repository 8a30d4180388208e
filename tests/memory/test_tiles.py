"""A head in tiles on paper: as a profile sees it, and as the model runs it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from scheduler import Plan, frontier
from scheduler.memory import costs_from_shape, fit
from scheduler.pytorch import profile, verify
from tests.memory.models import batch_of, kind_of
from tests.memory.test_profiled import config_of

torch: Any = import_module("torch")  # untyped here: these tests build models by name

BATCH, WORDS = 2, 2048
HEADS: dict[str, tuple[str, int]] = {
    "llama": ("fp32", 64),
    "gpt2": ("bf16", 64),
    "gemma2": ("bf16", 64),
    "bert": ("fp32", 64),
    "t5": ("bf16", 128),
}
"""Precision and sequence: where logits are kept in bf16, of more words than the model is wide."""


@pytest.mark.parametrize("family", HEADS)
def test_a_head_in_tiles_is_a_profile_s(family: str, tmp_path: Path) -> None:
    precision, sequence = HEADS[family]
    attention = "eager" if family == "gemma2" else "sdpa"
    config = config_of(family, {"vocab_size": WORDS, "use_cache": False})
    config._attn_implementation = attention
    torch.manual_seed(0)
    model = kind_of(config).from_config(config, attn_implementation=attention)
    model = model.to(torch.bfloat16 if precision == "bf16" else torch.float32)
    batch = batch_of(model, BATCH, sequence)
    how: dict[str, Any] = {"precision": precision, "attention": attention, "device": "cpu"}
    costs = costs_from_shape(config.to_dict(), BATCH, sequence, tiles=16, **how)
    seen = profile(model, batch, tiles=16, fake=True).layers[-1].options
    made = costs.layers[-1].options
    assert [option.tiles for option in made] == [option.tiles for option in seen] != []
    for one, other in zip(made, seen, strict=True):
        assert one.saved_bytes == other.saved_bytes
        assert one.input_saved == other.input_saved
        assert other.forward_transient_bytes is not None
        assert one.forward_transient_bytes is not None
        more = one.forward_transient_bytes - other.forward_transient_bytes
        assert 0 <= more <= 128 * BATCH * sequence // one.tiles + 4 * WORDS  # of single tokens
        backwards = [
            (option.backward_transient_bytes or 0) - (option.backward_overlap_bytes or 0)
            for option in (one, other)
        ]
        assert 0 <= backwards[0] - backwards[1] <= 8  # two scalars
    trades = frontier(costs)
    trades.plan(trades.points[0][0]).save(tmp_path / "plan.json")
    plan = Plan.load(tmp_path / "plan.json")
    assert plan.tiles
    found = verify(plan, model, batch)
    assert found.ok, str(found)
    assert 0.98 * plan.peak_bytes <= found.peak_bytes <= plan.peak_bytes


def test_what_tiles_make_of_a_large_run() -> None:
    """At 80 GB whole heads leave every method at the same time, since the head alone is 57 GiB."""
    run: dict[str, Any] = {"gpu": "h100", "batch": 4, "sequence": 8192, "zero": 3, "gpus": 8}
    whole, tiled = (
        fit("llama-3-8b", budget_gb=80, search=False, **run, tiles=tiles) for tiles in (False, True)
    )
    assert whole.plan is not None
    assert tiled.plan is not None
    assert tiled.plan.tiles
    assert tiled.plan.overhead < 0.9 * whole.plan.overhead
    remedies = fit("llama-3-8b", budget_gb=80, **run).remedies
    (named,) = [each for each in remedies if each.arguments[0].name == "tiles"]
    assert named.overhead == tiled.plan.overhead
