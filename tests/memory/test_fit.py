"""Does it fit: the arithmetic adds up, the searches are exact, bad input is one sentence."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from scheduler import InvalidBudget, SchedulerError, solve
from scheduler.common.text import format_bytes, format_smallest
from scheduler.memory import Fit, Lora, Recipe, Shape, fit, load_shape
from scheduler.memory.errors import InvalidRecipe
from scheduler.memory.fitting import peaks as peaks_module
from scheduler.memory.fitting.facts import default_margin
from scheduler.memory.fitting.peaks import moments, smallest_peak
from scheduler.memory.fitting.search import largest, trained_positions
from scheduler.memory.fitting.sqrt import (
    best_ratio_k,
    boundary_and_interior,
    explain,
    integer_saving,
)
from scheduler.memory.fitting.training import Training
from scheduler.memory.gpus import GPUS, load_gpu
from scheduler.memory.shape.load import shape_names
from scheduler.memory.state.optimizers import OPTIMIZERS
from scheduler.memory.state.sizes import PRECISIONS
from solvers.chain.uniform import best_integer_k, integer_peak, ratio_peak, ratio_rule, sqrt_saving
from solvers.schedule import Forward
from solvers.solution import Infeasible
from tests.memory.memory_cases import TINY_LLAMA, keep_all_peak

ROOT = Path(__file__).parents[2]
SMALL = Shape(
    name="small",
    family="llama",
    layers=6,
    width=256,
    heads=8,
    kv_heads=4,
    head_width=32,
    mlp_width=704,
    vocabulary=1000,
)
LENGTH = 1024
BAD: tuple[Any, ...] = (5, "8")
GPT2 = load_shape("gpt2")
RECIPES: dict[str, dict[str, Any]] = {
    "full": {},
    "zero-2": {"zero": 2, "gpus": 8},
    "zero-3": {"zero": 3, "gpus": 8},
    "lora": {"train": "lora", "lora": Lora(8)},
    "lora-fp32": {"train": "lora", "lora": Lora(8, ("q", "v", "lm_head"), "fp32", 0.1)},
    "frozen": {"train": "frozen"},
    "frozen-nf4": {"train": "frozen", "base": "nf4", "update": "foreach"},
    "qlora": {"train": "lora", "lora": Lora(8), "base": "nf4"},
    "foreach": {"update": "foreach"},
    "fp32": {"precision": "fp32"},
    "bf16": {"precision": "bf16"},
    "eager": {"attention": "eager"},
    "accumulate": {"gradient_accumulation": True},
    "accumulate-zero-2": {"gradient_accumulation": True, "zero": 2, "gpus": 8},
    "accumulate-bf16": {"gradient_accumulation": True, "gradient_dtype": "bf16"},
    "accumulate-lora": {"gradient_accumulation": True, "train": "lora", "lora": Lora(8)},
    "fp32-gradients": {"gradient_dtype": "fp32"},
    "fp32-gradients-zero-2": {"gradient_dtype": "fp32", "zero": 2, "gpus": 8},
    "bf16-gradients": {"precision": "fp32", "gradient_dtype": "bf16"},
    "lora-fp32-gradients": {"train": "lora", "lora": Lora(8), "gradient_dtype": "fp32"},
    "lion": {"optimizer": "lion"},
}


def tight(
    shape: Shape = SMALL,
    sequence: int = LENGTH,
    share: float = 0.5,
    search: bool = True,
    **recipe: Any,
) -> Fit:
    """A fit whose budget lies at `share` of the way from what must be there to keeping all."""
    roomy = fit(shape, sequence=sequence, margin=0, budget="1TB", search=False, **recipe)
    low = roomy.smallest_budget_bytes
    high = roomy.reserved_bytes + roomy.peak_bytes
    budget = f"{max(1, low + round(share * (high - low)))}B"
    return fit(shape, sequence=sequence, margin=0, budget=budget, search=search, **recipe)


# --- the arithmetic -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("share", [0, 0.5, 1, 1.5])
def test_the_figures_add_up(name: str, share: float) -> None:
    found = tight(share=share, search=False, **RECIPES[name])
    assert found.fits == (found.peak_bytes + found.reserved_bytes <= found.budget_bytes)
    assert found.fits == (share >= 1)
    assert found.available_bytes == found.budget_bytes - found.reserved_bytes
    assert [moment.name for moment in found.moments] == ["loss", "layer", "optimizer"]
    loss, layer, optimizer = (moment.bytes for moment in found.moments)
    assert max(loss, layer, optimizer) == found.peak_bytes == keep_all_peak(found.costs)
    assert found.kept_bytes <= loss
    assert optimizer >= found.gradients_bytes
    plan = found.plan
    assert plan is not None
    assert plan.status == "optimal"
    assert plan.reserved_bytes == found.reserved_bytes
    assert plan.peak_bytes + plan.reserved_bytes <= found.budget_bytes
    assert plan == solve(found.costs, budget=found.budget_bytes, reserved=found.reserved_bytes)
    assert (found.overhead == 0) == (keep_all_peak(found.costs) <= found.available_bytes)


@pytest.mark.parametrize("name", RECIPES)
def test_gradients_are_counted_once(name: str) -> None:
    found = tight(share=1, search=False, **RECIPES[name])
    made = sum(layer.gradient_bytes for layer in found.costs.layers)
    if RECIPES[name].get("gradient_accumulation"):
        assert made == found.gradients_bytes == 0
    else:
        # On several GPUs each layer's part is rounded up.
        assert 0 <= made - found.state.gradients_bytes < 4 * len(found.costs)
    always = found.state.total_bytes - found.gradients_bytes
    assert found.reserved_bytes == always + found.margin_bytes
    assert found.reserved_bytes + found.moments[-1].bytes >= found.state.total_bytes


@pytest.mark.parametrize("name", shape_names())
@pytest.mark.parametrize("precision", ["bf16-mixed", "fp32", "autocast"])
def test_costs_and_state_agree_on_gradients(name: str, precision: str) -> None:
    shape = load_shape(name)
    if precision == "autocast" and (shape.experts or shape.buckets):
        return
    attention = "eager" if shape.sinks else "sdpa"
    recipe = Recipe(precision=precision, attention=attention)
    training = Training(shape, load_gpu("h100"), recipe)
    sequence = shape.fixed_sequence or 16
    made = sum(layer.gradient_bytes for layer in training.costs(2, sequence).layers)
    assert made == training.state.gradients_bytes


def test_the_smallest_budget_is_the_smallest() -> None:
    found = tight(share=0)
    least = found.budget_bytes
    assert least == found.smallest_budget_bytes
    assert found.plan is not None
    below = fit(SMALL, sequence=LENGTH, margin=0, budget=least - 1)
    assert below.plan is None
    assert below.overhead is None
    assert not below.fits
    assert below.smallest_budget_bytes == least
    assert f"set by {below.set_by}" in " ".join(str(below).split())
    assert "does not fit" in repr(below)


def test_ctrl_c_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The solver takes it as the end of its time."""
    found = tight()
    ended = Infeasible(1, Forward(0, keep=True), plan_class=None, out_of_time=True)
    solver = SimpleNamespace(solve=Mock(side_effect=ended))
    monkeypatch.setattr(peaks_module, "METHODS", {"optimal": solver})
    with pytest.raises(KeyboardInterrupt):
        _ = found.smallest_budget_bytes


def test_the_state_alone_may_be_too_much() -> None:
    found = fit("llama-3-70b", sequence=1024)
    assert found.available_bytes < 0
    assert found.plan is None
    assert found.limits is not None
    assert (found.limits.batch, found.limits.sequence_checkpointed) == (0, 0)
    assert "are missing" in str(found)
    assert "none" in str(found)


def test_zero_takes_less_from_stage_to_stage() -> None:
    totals = [fit(SMALL, zero=zero, gpus=8, search=False).state.total_bytes for zero in range(4)]
    assert totals == sorted(totals, reverse=True)
    assert len(set(totals)) == 4


def test_zero_3_gathers_the_weights_of_two_layers() -> None:
    whole = Training(SMALL, load_gpu("h100")).costs(1, LENGTH).layers[3]
    split = Training(SMALL, load_gpu("h100"), Recipe(zero=3, gpus=8)).costs(1, LENGTH).layers[3]
    two = 2 * 2 * SMALL.block_parameters
    assert split.forward_transient_bytes - whole.forward_transient_bytes == two
    reduced = whole.gradient_bytes - split.gradient_bytes
    assert split.gradient_bytes == whole.gradient_bytes // 8
    more = split.backward_transient_bytes - whole.backward_transient_bytes
    assert more == two + reduced


def test_lora_is_cheaper_than_full_training() -> None:
    full = fit("llama-3-8b", search=False)
    lora = fit("llama-3-8b", train="lora", lora=Lora(16), search=False)
    quantised = fit("llama-3-8b", train="lora", lora=Lora(16), base="nf4", search=False)
    sizes = [found.state.total_bytes for found in (full, lora, quantised)]
    assert sizes == sorted(sizes, reverse=True)
    assert lora.smallest_budget_bytes < full.smallest_budget_bytes
    # r · (inputs + outputs) of each: q and o 8192, k and v 5120, the three of the MLP 18432.
    adapters = 32 * 16 * (2 * 8192 + 2 * 5120 + 3 * 18432)
    assert lora.state.adapters_bytes == 2 * adapters
    assert lora.gradients_bytes == 2 * adapters


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_frozen_has_weights_and_nothing_else(optimizer: str, precision: str) -> None:
    found = fit(SMALL, train="frozen", optimizer=optimizer, precision=precision, search=False)
    weight = 4 if precision in ("fp32", "autocast") else 2
    assert found.state.total_bytes == found.state.weights_bytes == weight * SMALL.parameters
    assert found.gradients_bytes == found.training.temporaries_bytes() == 0
    assert found.moments[-1].bytes == found.costs.input_bytes
    assert found.plan is not None
    assert "no weight trained" in str(found)


def test_foreach_needs_a_copy_of_what_it_updates() -> None:
    fused, foreach = (fit(SMALL, update=name, search=False) for name in ("fused", "foreach"))
    assert (
        foreach.moments[-1].bytes - fused.moments[-1].bytes
        == foreach.state.master_bytes
        == 4 * SMALL.parameters
    )


def test_the_optimizers_step_may_set_the_smallest_budget() -> None:
    short: dict[str, Any] = {"sequence": 16, "update": "foreach", "margin": 0, "search": False}
    found = fit(SMALL, **short)
    least = found.smallest_budget_bytes
    assert found.set_by == "the optimizer's step"
    assert least == found.reserved_bytes + found.moments[-1].bytes
    assert found.peak_bytes == found.moments[-1].bytes == smallest_peak(found.costs)[0]
    for less in (0, 1):
        other = fit(SMALL, budget=least - less, **short)
        assert other.fits == (other.plan is not None) == (less == 0)
    # Costs of the step alone do not know of it.
    alone = found.training.costs(1, 16)
    assert smallest_peak(alone)[0] < smallest_peak(found.costs)[0]


# --- what would help ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "recipe"),
    [
        (0.5, {"batch": 4}),
        (-0.1, {"batch": 4, "zero": 1, "gpus": 4}),
        (-0.2, {"precision": "fp32", "optimizer": "lion", "options": True}),
        (0.3, {"train": "frozen", "batch": 6, "loss": "chunked"}),
    ],
)
def test_what_helps_is_what_fit_finds_with_it(share: float, recipe: dict[str, Any]) -> None:
    found = tight(share=share, **recipe)
    assert not found.fits
    assert (found.plan is None) == (share < 0)
    asked = {"sequence": LENGTH, "margin": 0, "budget": found.budget_bytes} | recipe
    ranks, lines = [], " ".join(str(found).split())
    for remedy in found.remedies:
        changes = {each.name: each.value for each in remedy.arguments}
        other = fit(SMALL, search=False, **(asked | changes))
        assert remedy.overhead == other.overhead
        assert remedy.smallest_budget_bytes == other.smallest_budget_bytes
        more = "gpus" in changes
        assert not more or ("(8 GPUs in place of 1): " in lines and remedy == found.remedies[-1])
        if not more:
            ranks.append((other.plan is None, other.overhead or 0, other.smallest_budget_bytes))
        less = format_bytes(found.smallest_budget_bytes - other.smallest_budget_bytes)
        if other.overhead is None:
            effect = f"needs {format_smallest(other.smallest_budget_bytes)}, {less} less"
            assert other.smallest_budget_bytes < found.smallest_budget_bytes
        else:
            effect = f"fits, {100 * other.overhead:.2f}% slower"
            effect = effect if other.overhead else "fits with nothing recomputed"
            assert found.overhead is None or other.overhead < found.overhead
        assert f"{', '.join(map(str, remedy.arguments))}" in lines
        assert f": {effect}" in lines
    assert [rank[:2] for rank in ranks] == sorted(rank[:2] for rank in ranks)
    needs = [needed for fails, _, needed in ranks if fails]
    assert needs == sorted(needs)
    # What is not named does not help.
    named = {each.name for remedy in found.remedies for each in remedy.arguments}
    kinds: tuple[dict[str, Any], ...] = (
        {"loss": "chunked"},
        {"options": True},
        {"optimizer": "adam-8bit"},
        {"zero": 3, "gpus": recipe.get("gpus", 8)},
        {"batch": 1},
        {"train": "lora", "lora": Lora(16)},
    )
    for change in kinds:
        if not (named | {"train", "optimizer"} & recipe.keys()) & change.keys():
            other = fit(SMALL, search=False, **(asked | change))
            if found.plan is None:
                assert other.plan is None
                assert other.smallest_budget_bytes >= found.smallest_budget_bytes
            else:
                assert other.plan is None or other.plan.overhead >= found.plan.overhead
    assert {"batch"} & named == ({"batch"} if "batch" in recipe else set())


def test_options_are_no_remedy_where_weights_are_sharded() -> None:
    """Nor are weights that are sharded one beside options: `fully_shard` refuses the two."""
    named = [a for r in tight(share=0.3, gpus=4, zero=3).remedies for a in r.arguments]
    assert named
    assert "options" not in {each.name for each in named}
    adapted = tight(share=-0.1, train="lora", lora=Lora(4)).remedies
    assert {"base": "nf4"} in [each.to_dict()["arguments"] for each in adapted]
    beside = [a for r in tight(share=0.3, gpus=4, options=True).remedies for a in r.arguments]
    assert [each.value for each in beside if each.name == "zero"] in ([], [1], [2])
    assert "options" in {a.name for r in tight(share=0.3, gpus=4).remedies for a in r.arguments}


def test_the_best_stage_and_the_largest_micro_batch_are_named() -> None:
    found = tight(batch=8, gpus=4)
    named = {each.name: each.value for remedy in found.remedies for each in remedy.arguments}
    asked: dict[str, Any] = {"sequence": LENGTH, "margin": 0, "budget": found.budget_bytes}
    asked |= {"gpus": 4, "search": False}
    assert fit(SMALL, batch=8, **asked).overhead
    stages = {zero: fit(SMALL, batch=8, zero=zero, **asked).overhead for zero in (1, 2, 3)}
    assert named["zero"] == min(stages, key=lambda zero: (stages[zero] or 0, zero))
    sizes = {
        n: fit(SMALL, batch=n, gradient_accumulation=True, **asked).overhead for n in (1, 2, 4)
    }
    assert named["batch"] == min(sizes, key=lambda size: (sizes[size] or 0, -size))


def test_nothing_is_suggested_where_everything_fits_or_nothing_is_searched() -> None:
    assert tight(share=1).remedies == ()
    found = fit(SMALL, batch=64, budget="1GB", margin=0, search=False)
    assert not found.fits
    assert found.remedies == ()
    assert "helps" not in str(found)
    assert found.to_dict()["remedies"] == []


# --- the margin and the budget ------------------------------------------------------------------


def test_the_margin_and_the_budget() -> None:
    found = fit(SMALL, search=False)
    usable = load_gpu("h100").usable_bytes
    assert found.budget_bytes == usable
    assert found.margin_bytes == default_margin(usable) == 2**30 + usable * 3 // 100
    assert default_margin(usable, 8) == default_margin(usable) + 2**30
    asked = fit(SMALL, margin="2GiB", budget="40GB", search=False)
    assert (asked.margin_bytes, asked.budget_bytes) == (2 * 2**30, 40 * 10**9)
    assert fit(SMALL, margin=0, search=False) == fit(SMALL, margin="0GB", search=False)
    assert asked == fit(SMALL, margin="2GiB", budget_gb=40, search=False)


# --- gradients in a dtype of their own ----------------------------------------------------------


def everything(found: Fit) -> list[int]:
    """The three moments with all that is always there."""
    return [found.reserved_bytes + moment.bytes for moment in found.moments]


@pytest.mark.parametrize(("dtype", "size"), [(None, 4), ("fp32", 4), ("bf16", 2)])
def test_accumulated_gradients_are_in_every_moment(dtype: str | None, size: int) -> None:
    recipe: dict[str, Any] = {"sequence": LENGTH, "search": False}
    plain = fit(SMALL, **recipe)
    summed = fit(SMALL, gradient_accumulation=True, gradient_dtype=dtype, **recipe)
    gradients = size * SMALL.parameters
    assert summed.state.gradients_bytes == gradients
    assert summed.state.total_bytes == (14 + size) * SMALL.parameters
    loss, layer, optimizer = (
        more - less for more, less in zip(everything(summed), everything(plain), strict=True)
    )
    # Up to the loss nothing but the head's new gradients were there: they pass now, and all
    # summed ones are there. In the block's backward the head's have passed.
    assert [moment.set_by for moment in summed.moments[:2]] == [
        "the backward of 'head'",
        "the backward of 'model.layers.5'",
    ]
    assert loss == gradients
    assert layer == gradients - plain.costs.layers[-1].gradient_bytes
    assert optimizer == gradients - 2 * SMALL.parameters
    assert summed.smallest_budget_bytes > plain.smallest_budget_bytes


@pytest.mark.parametrize(("precision", "made", "kept"), [("bf16-mixed", 2, 4), ("fp32", 4, 2)])
def test_gradients_that_are_cast_pass_beside_what_is_kept(
    precision: str, made: int, kept: int
) -> None:
    dtype = {4: "fp32", 2: "bf16"}[kept]
    whole, cast, split = (
        Training(SMALL, load_gpu("h100"), Recipe(precision=precision, **more)).costs(1, LENGTH)
        for more in ({}, {"gradient_dtype": dtype}, {"gradient_dtype": dtype, "zero": 2, "gpus": 7})
    )
    for before, after, part in zip(whole.layers, cast.layers, split.layers, strict=True):
        count = before.gradient_bytes // made
        assert after.gradient_bytes == kept * count
        assert part.gradient_bytes == kept * -(-count // 7)
        for layer in (after, part):
            more = layer.backward_transient_bytes - before.backward_transient_bytes
            assert more == made * count


def test_a_gradient_dtype_that_is_the_weights_own_changes_nothing() -> None:
    for recipe in ({"zero": 2, "gpus": 7}, {}, RECIPES["lora"], RECIPES["lora-fp32"]):
        own = Training(SMALL, load_gpu("h100"), Recipe(**recipe))
        same = replace(own.recipe, gradient_dtype=own.recipe.gradients)
        said = Training(SMALL, load_gpu("h100"), same)
        assert said.costs(1, LENGTH) == own.costs(1, LENGTH)
        assert said.state.total_bytes == own.state.total_bytes


@pytest.mark.parametrize(
    ("recipe", "dtype"),
    [
        ({}, "bf16"),
        ({"precision": "fp16-mixed"}, "fp16"),
        ({"precision": "bf16"}, "bf16"),
        ({"precision": "autocast"}, "fp32"),
        ({"gradient_accumulation": True}, "fp32"),
        ({"gradient_accumulation": True, "gradient_dtype": "bf16"}, "bf16"),
        ({"gradient_dtype": "fp32"}, "fp32"),
        (RECIPES["lora"], "bf16"),
        (RECIPES["lora-fp32"], "fp32"),
        (RECIPES["frozen"], None),
    ],
)
def test_the_dtype_of_gradients(recipe: dict[str, Any], dtype: str | None) -> None:
    found = fit(SMALL, search=False, **recipe)
    assert found.training.recipe.gradients == found.to_dict()["gradient_dtype"] == dtype
    trained = found.state.gradients_bytes
    assert bool(trained) == (dtype is not None)
    if dtype is not None and "lora" not in recipe:
        assert trained == {"fp32": 4}.get(dtype, 2) * SMALL.parameters


def test_gradients_are_said() -> None:
    text = " ".join(str(fit(SMALL, gradient_accumulation=True, search=False)).split())
    assert "fp32 gradients" in text
    assert "gradients accumulate" in text
    assert "left" in text
    assert "for activations step" in text


# --- positions ----------------------------------------------------------------------------------


def test_longer_than_the_model_was_made_for() -> None:
    found = fit("llama-3-8b", zero=3, gpus=8)
    assert found.trained_positions == 8192
    assert found.limits is not None
    assert found.limits.sequence_checkpointed > 8192
    (note,) = found.notes
    assert note.startswith("the longest sequences are by memory alone: llama-3-8b was configured")
    assert "at batch 1; made for 8,192 positions" in str(found)
    assert found.to_dict()["notes"] == [note]
    assert found.to_dict()["trained_positions"] == 8192
    asked = fit("llama-3-8b", zero=3, gpus=8, sequence=9000, search=False)
    (note,) = asked.notes
    assert "the sequence of 9,000 is beyond the 8,192 positions that llama-3-8b was" in note
    assert "beyond its 8,192 positions" in " ".join(str(asked).split())
    assert len(fit("llama-3-8b", zero=3, gpus=8, sequence=9000).notes) == 2


def test_the_buckets_of_ddp_are_said_not_to_be_counted() -> None:
    found = fit("llama-3-8b", gpus=8, sequence=8192, search=False)
    (note,) = found.notes
    assert "a second copy of the gradients unless" in note
    assert found.to_dict()["notes"] == [note]
    text = " ".join(str(found).split())
    assert f"note {note}" in text
    assert "bf16-mixed, data parallel over 8 GPUs, full training" in text
    for other in ({"gpus": 1}, {"gpus": 8, "zero": 1}, {"gpus": 8, "train": "frozen"}):
        found = fit("llama-3-8b", sequence=8192, search=False, **other)
        assert found.notes == ()
        assert "note" not in str(found)


def test_shorter_needs_no_note() -> None:
    found = fit("llama-3-8b", zero=3, gpus=8, sequence=8192, search=False)
    assert found.notes == ()
    assert "positions" not in str(found)
    assert fit("llama-3-70b", sequence=1024).notes == ()


def test_learned_positions_are_the_end() -> None:
    found = fit(GPT2)
    (note,) = found.notes
    assert note.startswith("gpt2 has learned 1,024 positions: no sequence can be longer")
    assert "1,024 (all)  at batch 1; no more positions are learned" in str(found)
    tight = fit(GPT2, budget="5GiB", margin=0, batch=8)
    assert tight.limits is not None
    assert tight.limits.sequence_checkpointed < 1024
    assert tight.notes == ()


def test_where_positions_are_read(tmp_path: Path) -> None:
    config = TINY_LLAMA | {"max_position_embeddings": 512}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    shape = load_shape(path)
    for source in (config, path, str(path), str(tmp_path)):
        assert trained_positions(source, load_shape(source)) == 512
    assert fit(path, search=False).trained_positions == 512
    # A shape does not hold it, and nor does a pipe that has been read.
    assert trained_positions(shape, shape) is None
    assert trained_positions(tmp_path / "gone.json", shape) is None
    for odd in (None, "512", 0, True):
        assert trained_positions(config | {"max_position_embeddings": odd}, shape) is None
    for name in shape_names():
        shape = load_shape(name)
        # Images make the tokens, and distances beyond some are one.
        known = not (shape.fixed_sequence or shape.buckets)
        assert (trained_positions(name, shape) is not None) == known
        assert (trained_positions(shape, shape) is not None) == known
    changed = replace(load_shape("llama-3-8b"), layers=2)
    assert trained_positions(changed, changed) is None
    assert trained_positions(replace(GPT2, positions=77), replace(GPT2, positions=77)) == 77
    assert fit(SMALL, search=False).to_dict()["trained_positions"] is None


# --- the searches -------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 2, 7, 100, 10**6])
@pytest.mark.parametrize("guess", [1, 3, 64, 10**7])
def test_largest(most: int, guess: int) -> None:
    for answer in {0, 1, 2, most // 2, most - 1, most}:
        calls: list[int] = []

        def fits(n: int, answer: int = answer, calls: list[int] = calls) -> bool:
            calls.append(n)
            return n <= answer

        assert largest(fits, most, guess) == min(answer, most)
        assert len(calls) <= 42
        assert guess < most or answer < most or len(calls) == 1
        assert all(1 <= n <= most for n in calls)


@pytest.mark.parametrize("name", ["full", "zero-3", "lora", "foreach", "eager"])
def test_the_largest_fits_and_one_more_does_not(name: str) -> None:
    recipe = RECIPES[name]
    found = tight(share=0.5, batch=3, **recipe)
    limits = found.limits
    assert limits is not None
    assert limits.batch <= limits.batch_checkpointed
    assert limits.sequence <= limits.sequence_checkpointed

    def at(batch: int, sequence: int) -> tuple[bool, bool]:
        other = fit(
            SMALL,
            batch=batch,
            sequence=sequence,
            margin=0,
            budget=found.budget_bytes,
            search=False,
            **recipe,
        )
        return other.fits, other.plan is not None

    for more in (0, 1):
        assert at(limits.batch_checkpointed + more, LENGTH)[1] == (more == 0)
        assert at(3, limits.sequence_checkpointed + more)[1] == (more == 0)
        if limits.batch + more:
            assert at(limits.batch + more, LENGTH)[0] == (more == 0)
        if limits.sequence + more:
            assert at(3, limits.sequence + more)[0] == (more == 0)


def test_more_needs_more() -> None:
    training = Training(SMALL, load_gpu("h100"))
    for sizes in ([(b, 64) for b in range(1, 6)], [(1, s) for s in range(60, 66)]):
        costs = [training.costs(*size) for size in sizes]
        for peaks in (
            [keep_all_peak(c) for c in costs],
            [smallest_peak(c)[0] for c in costs],
            [moments(c)[-1].bytes for c in costs],
        ):
            assert peaks == sorted(peaks)


def test_sizes_that_are_too_large_to_count_do_not_fit() -> None:
    found = fit(SMALL, batch=2**20, sequence=2**19, budget=2**62 - 1, margin=0)
    limits = found.limits
    assert limits is not None
    assert limits.batch >= 2**20
    assert 2**19 <= limits.sequence < 2**24


def test_learned_positions_end_the_search() -> None:
    limits = fit(GPT2).limits
    assert limits is not None
    assert limits.sequence == limits.sequence_checkpointed == limits.most_sequence == 1024
    assert "1,024 (all)" in str(fit(GPT2))


# --- what is printed ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("share", [-0.5, 0.5, 1])
def test_one_screen(name: str, share: float) -> None:
    found = tight(share=share, **RECIPES[name])
    lines = str(found).splitlines()
    assert len(lines) <= (24 if found.fits else 32)
    assert max(map(len, lines)) <= 100
    assert "\n" not in repr(found)
    assert repr(found).startswith("<Fit: small, batch 1 × 1024 on h100, ")


def test_the_columns_add_up() -> None:
    text = " ".join(str(found := tight()).split())
    base = f"with {format_bytes(found.reserved_bytes)}: state without gradients, margin"
    assert f"activations + gradients everything {base} up to loss" in text
    for moment in found.moments:
        both = (moment.bytes, moment.bytes + found.reserved_bytes)
        assert f"{' '.join(map(format_bytes, both))} {moment.set_by}" in text
    assert found.plan is not None
    needs = f"{format_bytes(found.plan.peak_bytes)} of the {format_bytes(found.available_bytes)}"
    assert f"the step needs {needs} left" in text
    smallest = format_smallest(found.smallest_budget_bytes)
    assert f"the smallest feasible budget, state and margin included, is {smallest}" in text


def test_figures_stand_under_each_others_ends() -> None:
    found = fit(GPT2, batch=10**6, search=False)
    rows = str(found).splitlines()[-4:]
    ends = {row.index("iB  the ") for row in rows[1:]}
    assert len(ends) == 1


def test_json_has_the_same_keys_whatever_is_found() -> None:
    keys = [
        list(fit(GPT2, **recipe).to_dict())
        for recipe in (
            {},
            {"budget": "1B"},
            {"search": False, "train": "frozen"},
            {"train": "lora", "lora": Lora(4), "gradient_accumulation": True},
        )
    ]
    assert all(found == keys[0] for found in keys)
    assert {"gradient_dtype", "gradient_accumulation", "trained_positions", "notes"} <= {*keys[0]}


def test_the_longest_recipe_is_one_screen() -> None:
    recipe: dict[str, Any] = {
        "precision": "bf16",
        "optimizer": "adafactor-momentum",
        "zero": 3,
        "gpus": 1024,
        "lora": Lora(16, dtype="fp32", dropout=0.05),
        "base": "nf4-double",
        "loss": "hf-outputs-kept",
        "gradient_dtype": "bf16",
        "gradient_accumulation": True,
    }
    lines = str(tight(train="lora", share=0.4, **recipe)).splitlines()
    assert len(lines) <= 32
    assert max(map(len, lines)) <= 100


def test_a_forward_may_be_the_highest_up_to_the_loss() -> None:
    found = fit("mixtral-8x7b", train="frozen", loss="chunked", search=False)
    assert found.moments[0].set_by == "the forward of 'model.layers.31'"
    row = next(
        line for line in str(found).splitlines() if "the forward of 'model.layers.31'" in line
    )
    assert row.startswith("up to loss ")


def test_adapters_are_named() -> None:
    lora = Lora(16)
    found = fit("mixtral-8x7b", train="lora", lora=lora, search=False)
    assert "LoRA r=16 on q, k, v, o (none on experts) in bf16" in " ".join(str(found).split())
    assert len(str(found).splitlines()) <= 24
    lora = Lora(16, ("lm_head", "down", "q_proj"))
    found = fit("llama-3-8b", train="lora", lora=lora, search=False)
    assert "LoRA r=16 on q, down, lm_head in bf16" in str(found)


@pytest.mark.parametrize("share", [-0.5, 0.5, 1])
def test_to_dict_is_json_and_the_object(share: float) -> None:
    found = tight(share=share)
    record = json.loads(json.dumps(found.to_dict()))
    for name in (
        "batch",
        "sequence",
        "budget_bytes",
        "margin_bytes",
        "gradients_bytes",
        "reserved_bytes",
        "available_bytes",
        "kept_bytes",
        "peak_bytes",
        "fits",
        "smallest_budget_bytes",
        "set_by",
        "overhead",
    ):
        assert record[name] == getattr(found, name), name
    assert record["state"]["total"] == found.state.total_bytes
    assert [moment["bytes"] for moment in record["moments"]] == [m.bytes for m in found.moments]
    assert (record["plan"] is None) == (found.plan is None)
    assert record["limits"]["batch"] == getattr(found.limits, "batch", None)


def test_a_fit_is_frozen_and_pickles() -> None:
    found = tight()
    with pytest.raises(AttributeError):
        found.batch = 2  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(found)) == found


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gpu": "h1000"}, "gpu must be one of 'a100-40', "),
        ({"gpu": "h1000"}, "or give the memory that it has as budget; did you"),
        ({"batch": 0}, "batch must be a whole number >= 1, got 0"),
        ({"sequence": -1}, "sequence must be a whole number >= 1, got -1"),
        ({"sequence": 1.5}, "sequence must be a whole number >= 1, got 1.5"),
        ({"precision": "int8"}, "precision must be one of 'bf16-mixed', "),
        ({"optimizer": "adamv"}, "did you mean"),
        ({"zero": 4}, "zero must be 0, 1, 2, 3 or 'fsdp', got 4"),
        ({"gpus": 0}, "gpus must be a whole number >= 1, got 0"),
        ({"train": "some"}, "train must be one of 'full', 'frozen', 'lora', got 'some'"),
        ({"train": "lora"}, "train='lora' and lora=Lora(...) go together"),
        ({"lora": Lora(8)}, "train='lora' and lora=Lora(...) go together"),
        ({"train": "lora", "lora": Lora(8, ("x",))}, "a LoRA target of small must be one of 'q', "),
        ({"train": "lora", "lora": Lora(0)}, "the rank of lora must be a whole number >= 1, got 0"),
        ({"train": "lora", "lora": {"r": 1}}, "lora must be Lora(rank=..., targets=...), got {'r'"),
        ({"train": "lora", "lora": "r=16"}, "lora must be Lora(rank=..., targets=...), got 'r=16'"),
        ({"lora": {"r": 1}}, "lora must be Lora(rank=..., targets=...), got {'r': 1}"),
        (
            {"train": "lora", "lora": Lora(8, BAD[0])},
            "as in Lora(rank=16, targets=('q', 'v')), got 5",
        ),
        ({"train": "lora", "lora": Lora(BAD[1])}, "the rank of lora must be a whole number >= 1"),
        ({"base": "nf4"}, "base='nf4' stores weights that do not train"),
        ({"base": "nf5"}, "base must be one of 'fp32', "),
        ({"attention": "flash"}, "attention must be one of 'sdpa', 'eager', got 'flash'"),
        ({"loss": "mse"}, "loss must be one of"),
        ({"update": "loop"}, "update must be one of 'fused', 'foreach', got 'loop'"),
        ({"gradient_accumulation": 2}, "gradient_accumulation must be True or False, got 2"),
        ({"gradient_dtype": "fp8"}, "gradient_dtype must be one of 'fp32', 'bf16', 'fp16', got"),
        (
            {"train": "frozen", "gradient_dtype": "fp32"},
            "train='frozen' makes no gradients; leave out gradient_dtype",
        ),
        (
            {"train": "frozen", "gradient_accumulation": True},
            "train='frozen' makes no gradients; leave out gradient_accumulation",
        ),
        ({"precision": "fp16"}, "say 'fp16-mixed'"),
        ({"search": "no"}, "search must be True or False, got 'no'"),
        ({"search": 1}, "search must be True or False, got 1"),
        (
            {"train": "lora", "lora": Lora(10**6)},
            "adapters of rank 1000000 have 28,032,000,000 parameters, more than the 4,939,008",
        ),
        ({"batch": 10**15}, "batch 1000000000000000 × sequence 4096 is too large to count: bytes"),
        ({"sequence": 10**12}, "2**62; give a smaller batch or sequence"),
        ({"efficiency": 1e-300}, "give a smaller batch or sequence, or a larger efficiency"),
        (
            {"pipeline_parallel": 2},
            "pipeline_parallel=2 cuts a model into stages, each with a plan",
        ),
        ({"btach": 2}, "fit takes no 'btach'; did you mean 'batch'?"),
        ({"xyz": 2}, "fit takes no 'xyz'; help(fit) lists what it takes"),
        ({"efficiency": 2}, "must be above 0 and at most 1, got 2"),
        ({"margin": "2G"}, "the margin '2G' has two readings"),
        ({"margin": 2}, "the margin 2 is 2 bytes, next to nothing of the 320.4 MiB that keeping"),
        ({"budget": 40}, "budget 40 is 40 bytes, next to nothing of the 320.4 MiB that keeping"),
        ({"budget": 10**18}, "budget=1000000000000000000 is more than a million times the 320.4"),
        ({"budget": 1, "budget_gb": 1}, "both budget_gb=1 and budget=1 are given; pass one"),
        ({"margin": -1}, "the margin must be zero or more, got -1"),
        ({"budget": 0}, "the budget must be at least one byte, got 0"),
    ],
)
def test_bad_input_is_one_sentence(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SchedulerError) as raised:
        fit(SMALL, **arguments)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_positions_that_were_not_learned() -> None:
    with pytest.raises(SchedulerError, match="at most the 1024 positions that gpt2 has learned"):
        fit(GPT2, sequence=1025)
    with pytest.raises(InvalidRecipe, match="at most the 1024 positions"):
        fit(GPT2, sequence=1025.0)  # type: ignore[arg-type]
    with pytest.raises(InvalidBudget):
        fit(GPT2, budget="40G")


# --- the √L rule --------------------------------------------------------------------------------


def test_figures_of_the_rule() -> None:
    assert f"{sqrt_saving(32):.2f} {sqrt_saving(80):.2f}" == "2.83 4.47"
    assert f"{integer_saving(32):.2f} {integer_saving(80):.2f}" == "2.67 4.44"
    assert best_integer_k(32) == [4, 5, 6, 7, 8]
    assert integer_peak(80, 9) == 18
    for layers in range(1, 200):
        assert integer_saving(layers) <= sqrt_saving(layers) or layers < 4


def test_best_ratio_k() -> None:
    for layers in (1, 2, 7, 32, 80):
        for interior in (1, 3, 17, 23, 100):
            k = best_ratio_k(layers, 1, interior)
            least = min(ratio_peak(layers, n, 1, interior) for n in range(1, layers + 1))
            assert ratio_peak(layers, k, 1, interior) == least
        assert best_ratio_k(layers, 1, 1) == best_integer_k(layers)[0]
    # A block's inside is about as large as 17 to 25 boundaries: then no two share a segment.
    assert ratio_rule(32, 1, 24.5) == pytest.approx(1.14, abs=0.01)
    assert best_ratio_k(32, 1, 24.5) == 1


def test_boundary_and_interior() -> None:
    shape = load_shape("llama-3-8b")
    c, a = boundary_and_interior(shape, 1, 8192)
    assert c == 2 * 8192 * 4096
    # In bf16 a Llama block saves a cast of its input, not the input.
    assert a == 8192 * (16 * 4096 + 4 * 4096 + 4 * 1024 + 8 * 14336 + 4 * 32 + 8)


def test_explain() -> None:
    found = fit("llama-3-8b", sequence=8192, zero=3, gpus=8, search=False)
    text = explain(found.shape, 1, 8192, costs=found.costs)
    for part in ("2.83×", "4.47×", "2.67×", "4.44×", "a/c = 24.5", "= 1.14", "segments of 6"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 100
    # There the head sets the peak whatever the blocks do, over few words it does not.
    assert "the head sets both peaks" in text
    small = fit(SMALL, sequence=LENGTH, search=False)
    assert "the head sets both" not in explain(SMALL, 1, LENGTH, costs=small.costs)
    short = replace(SMALL, layers=1)
    assert "k = 1" in explain(short, 1, 16)


def test_the_rule_takes_a_recipes_precision() -> None:
    for recipe, compute in (("bf16-mixed", "bf16"), ("fp16-mixed", "fp16"), ("fp32", "fp32")):
        found = boundary_and_interior(SMALL, 1, 64, precision=recipe)
        assert found == boundary_and_interior(SMALL, 1, 64, precision=compute)
    assert explain(SMALL, 1, 64, precision="bf16-mixed") == explain(SMALL, 1, 64)
    with pytest.raises(InvalidRecipe, match="precision must be one of"):
        boundary_and_interior(SMALL, 1, 64, precision="int8")


# --- the house ----------------------------------------------------------------------------------


def test_importing_is_light() -> None:
    code = (
        "import sys; import scheduler.memory; "
        "print(sorted({'numpy', 'numba', 'torch', 'scipy'} & set(sys.modules)), "
        "callable(scheduler.memory.fit))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[] True"


def test_data_sheets() -> None:
    # Dense bf16 TFLOP/s, GB/s, GB: see `GPUS` for where they are from.
    sheets = {
        "a100-40": (312, 1555, 40),
        "a100-80": (312, 2039, 80),
        "h100": (989.4, 3350, 80),
        "h200": (989.4, 4800, 141),
        "l40s": (362.05, 864, 48),
        "rtx4090": (165.2, 1008, 24),
        "b200": (2250, 7700, 180),
        "a10": (125, 600, 24),
        "a10g": (70, 600, 24),
        "a40": (149.7, 696, 48),
        "rtx-a6000": (309.7 / 2, 768, 48),
        "rtx3090": (142 / 2, 936, 24),
        "l4": (242 / 2, 300, 24),
        "l40": (362.1 / 2, 864, 48),
        "rtx-6000-ada": (728.5 / 2, 960, 48),
        "rtx4080": (194.9 / 2, 716.8, 16),
        "h100-pcie": (1513 / 2, 2000, 80),
        "h100-nvl": (1671 / 2, 3900, 94),
        "h200-nvl": (1671 / 2, 4800, 141),
        # Of a rack with sparsity: 360 PFLOPS, 576 TB/s and 13.4 TB over 72; of a node 36 over 8.
        "gb200": (360e3 / 72 / 2, 576e3 / 72, 186),
        "b300": (36e3 / 8 / 2, 8000, 288),
        "rtx-pro-6000": (1007.6 / 2, 1792, 96),
        "rtx5070ti": (175.8 / 2, 896, 16),
        "rtx5080": (225.1 / 2, 960, 16),
        "rtx5090": (419 / 2, 1792, 32),
        # FLOP/s a clock of a compute unit, units, GHz; two dies in an MI250.
        "a30": (330 / 2, 933, 24),
        "rtx-a4000": (1.024 * 48 * 1.56, 448, 16),
        "rtx-a5000": (1.024 * 64 * 1.695, 768, 24),
        "rtx3060": (0.512 * 28 * 1.777, 360, 12),
        "rtx3080": (0.512 * 68 * 1.71, 760, 10),
        "rtx3090ti": (0.512 * 84 * 1.86, 1008, 24),
        "rtx4060ti-16": (0.512 * 34 * 2.535, 288, 16),
        "rtx4070": (0.512 * 46 * 2.475, 504.2, 12),
        "rtx4070ti": (0.512 * 60 * 2.61, 504.2, 12),
        "rtx4070ti-super": (0.512 * 66 * 2.61, 672.3, 16),
        "rtx4080-super": (0.512 * 80 * 2.55, 736.3, 16),
        "rtx5060ti-16": (0.512 * 36 * 2.572, 448, 16),
        "rtx5070": (0.512 * 48 * 2.512, 672, 12),
        "mi210": (1.024 * 104 * 1.7, 1638.4, 64),
        "mi250": (1.024 * 208 * 1.7 / 2, 3276.8 / 2, 64),
        "mi250x": (1.024 * 220 * 1.7 / 2, 3276.8 / 2, 64),
        "mi300x": (2.048 * 304 * 2.1, 5300, 192),
        "mi325x": (2.048 * 304 * 2.1, 6000, 256),
        "mi350x": (4.096 * 256 * 2.2, 8000, 288),
        "mi355x": (4.096 * 256 * 2.4, 8000, 288),
        "gaudi2": (432, 2460, 96),
        "gaudi3": (1835, 3670, 128),
    }
    assert sheets.keys() == GPUS.keys()
    for name, (flops, bandwidth, sold) in sheets.items():
        gpu = load_gpu(name)
        assert gpu.flops_per_second == pytest.approx(flops * 1e12, rel=2e-3)
        assert gpu.bytes_per_second == pytest.approx(bandwidth * 1e9, rel=1e-3)
        assert gpu.sold_bytes == sold * 10**9
