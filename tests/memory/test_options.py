"""Options from a shape against those that a fake-tensor profile finds in transformers' block."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from typing import Any

import pytest

from scheduler import CostGraph, UnsupportedModel, solve
from scheduler.cli.main import main
from scheduler.costs.layer import OptionCost
from scheduler.costs.options.inside import Inside
from scheduler.memory import fit
from scheduler.memory.costs import costs_from_shape
from scheduler.memory.fitting.peaks import kept_bytes
from scheduler.memory.fitting.training import Training
from scheduler.memory.gpus import load_gpu
from scheduler.memory.recipe import Lora, Recipe
from scheduler.memory.shape.load import load_shape
from scheduler.memory.simulate.options import look_inside
from scheduler.memory.simulate.setting import setting
from scheduler.pytorch.observe.clock import Roofline
from tests.memory.memory_cases import keep_all_peak
from tests.memory.models import batch_of
from tests.memory.test_costs import SCALAR
from tests.memory.test_measured import adapt
from tests.memory.test_profiled import ENCODER_DROPOUT, SEQUENCE, built, config_of

torch: Any = import_module("torch")  # untyped here: these tests build models by name
transformers: Any = import_module("transformers")
profiles: Any = import_module("scheduler.pytorch.profiling.profile")

PEAKS = ("forward_transient_bytes", "backward_transient_bytes", "backward_overlap_bytes")
BY_HAND = {"save-matmuls", "every-second-matmul", "save-attention"}
LAYERS = {"gpt2": "n_layer", "llama": "num_hidden_layers"}
GPT2_DROPOUT = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama-bf16": ("llama", {}, {}),
    "llama-fp32-eager": ("llama", {}, {"precision": "fp32", "attention": "eager"}),
    "llama-lora": ("llama", {}, {"train": "lora", "lora": Lora(4, ("down",), "fp32", 0.1)}),
    # Without a kernel for it the CPU runs the attention step by step.
    "gpt2-dropout": ("gpt2", GPT2_DROPOUT, {}),
    # The second run's highest moment is at a norm.
    "gpt2-frozen-narrow": ("gpt2", {"n_inner": 16}, {"train": "frozen"}),
    "qwen3-moe": ("qwen3_moe", {}, {}),
    "vit-dropout-eager": ("vit", ENCODER_DROPOUT, {"precision": "fp32", "attention": "eager"}),
    # The highest moment is between a product's backward and its cast.
    "mixtral-many": ("mixtral", {"num_experts_per_tok": 4, "intermediate_size": 32}, {}),
}


def both(name: str) -> tuple[CostGraph, CostGraph, Inside, Inside]:
    """The costs from the shape, those of a profile, and the operations inside a block of each."""
    family, sizes, how = CASES[name]
    how = {"precision": "bf16", "attention": "sdpa", "train": "full"} | how
    config = config_of(family, sizes | {LAYERS.get(family, LAYERS["llama"]): 2})
    config._attn_implementation = how["attention"]
    shape = load_shape(config.to_dict())
    sequence = shape.fixed_sequence or SEQUENCE
    ours = costs_from_shape(shape, 2, sequence, device="cpu", options=True, **how)
    model = built(config, how["precision"], "frozen" if how["train"] == "frozen" else "full")
    if "lora" in how:
        model.requires_grad_(False).enable_input_require_grads()
        with torch.device("meta"):
            for block in model.base_model.layers:
                adapt(block, shape, how["lora"])
    inputs = batch_of(model, 2, SEQUENCE, "meta")
    seen = profiles.see(model, inputs, options=True, roofline=Roofline.of("h100"))
    at = setting(shape, 2, sequence, Recipe(device="cpu", **how))
    return ours, seen.costs, look_inside(at, load_gpu("h100")), seen.each[0].ways.inside


def assert_same_options(mine: OptionCost, theirs: OptionCost) -> None:
    for field in ("name", "saved_bytes", "input_saved", "output_saved"):
        assert getattr(mine, field) == getattr(theirs, field), field
    assert [pair[:2] for pair in mine.keeps] == list(theirs.keeps)
    assert mine.recompute_time == pytest.approx(theirs.recompute_time, rel=1e-9)
    for field in PEAKS:
        assert abs(getattr(mine, field) - getattr(theirs, field)) <= SCALAR, field


@pytest.mark.parametrize("name", CASES)
def test_equal_to_a_profile(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.costs.options.pareto.MOST_OPTIONS", 3)  # each is run many times
    ours, theirs, paper, real = both(name)
    for mine, other in zip(ours.layers, theirs.layers, strict=True):
        assert len(mine.options) == len(other.options)
        for option, seen in zip(mine.options, other.options, strict=True):
            assert_same_options(option, seen)
    assert {option.name for option in ours.layers[1].options} >= BY_HAND
    calls = Counter(operation.name for operation in real.forward)
    kept = [each for option in ours.layers[1].options for each in option.keeps]
    assert [each[2:] for each in kept] == [(calls[name],) for name, *_ in kept]
    # Beside what options keep: every operation that is no view, its number, time and stop.
    runs = [(o.name, o.call) for o in real.forward if o.makes or o.changes]
    assert [(o.name, o.call) for o in paper.forward] == runs
    times = [o.time for o in real.forward if o.makes or o.changes]
    assert [o.time for o in paper.forward] == pytest.approx(times, rel=1e-9)
    before = sum(bool(o.makes or o.changes) for o in real.forward[: real.stop])
    assert paper.stop == before
    sizes = [sum(real.storage_bytes[s] for s in real.saved - real.given)]
    assert sizes == [sum(paper.storage_bytes[s] for s in paper.saved)]


def test_megatron_keeps_all_but_attention() -> None:
    shape = load_shape("llama-3-8b")
    block = costs_from_shape(shape, 1, 4096, attention="eager", options=True).layers[1]
    option = next(o for o in block.options if o.name == "megatron-selective")
    scores = shape.heads * 4096**2
    # Scores in fp32 and once more in bf16 are made again: one product and what is between.
    assert block.saved_bytes - option.saved_bytes > 5 * scores
    assert block.recompute_time is not None
    assert option.recompute_time < 0.75 * block.recompute_time


def test_figures_of_llama_3_8b() -> None:
    costs = costs_from_shape("llama-3-8b", 1, 8192, options=True)
    block = costs.layers[1]
    unit = 8192 * 4096
    assert block.saved_bytes / unit == pytest.approx(49, abs=0.1)
    matmuls = next(option for option in block.options if option.name == "save-matmuls")
    # q, k, v, attention's output, o_proj's, gate and up: the rest is memory-bound passes.
    assert matmuls.saved_bytes / unit == pytest.approx(21, abs=0.1)
    whole = block.forward_time + block.backward_time
    assert matmuls.recompute_time < 0.06 * whole
    assert block.recompute_time is not None
    assert block.recompute_time > 0.25 * whole
    plain = costs_from_shape("llama-3-8b", 1, 8192)
    budget = keep_all_peak(plain) - int(0.55 * kept_bytes(plain))
    with_options, without = (solve(each, budget=budget).overhead for each in (costs, plain))
    assert with_options < 0.08
    assert without > 0.15


def test_every_option_is_worth_having() -> None:
    for name, how in (("llama-3-70b", "full"), ("gpt2", "full"), ("mixtral-8x7b", "frozen")):
        block = costs_from_shape(name, 1, 1024, options=True, train=how).layers[1]
        assert block.recompute_time is not None
        found = [o for o in block.options if o.name.startswith("save-") and o.name not in BY_HAND]
        sizes, times = [o.saved_bytes for o in found], [o.recompute_time for o in found]
        assert sizes == sorted(sizes)
        assert times == sorted(times, reverse=True)
        assert max(sizes) <= block.saved_bytes
        assert max(times) < block.recompute_time
        assert all(option.keeps for option in block.options)


def test_the_same_twice() -> None:
    first, second = (costs_from_shape("qwen2.5-72b", 1, 512, options=True) for _ in range(2))
    assert first == second
    assert first.layers[1].options


def test_autocast_whose_casts_are_not_all_followed() -> None:
    # Activation functions run in fp32 there: formulas know of more that is kept than paper does.
    costs = costs_from_shape("gpt2", 1, 4, precision="autocast", train="frozen", options=True)
    assert costs.layers[1].options


def test_experts_that_are_not_followed() -> None:
    with pytest.raises(UnsupportedModel, match="no options for experts='batched'"):
        costs_from_shape("mixtral-8x7b", 1, 64, experts="batched", options=True)


def test_sharded_weights_are_beside_options_too() -> None:
    shape, gpu = load_shape("llama-3-8b"), load_gpu("h100")
    plain, sharded = (
        Training(shape, gpu, Recipe(zero=zero, gpus=8)).costs(1, 1024, options=True).layers[1]
        for zero in (0, 3)
    )
    added = sharded.forward_transient_bytes - plain.forward_transient_bytes
    more = sharded.backward_transient_bytes - plain.backward_transient_bytes
    assert added > 0
    assert more > 0
    for before, after in zip(plain.options, sharded.options, strict=True):
        assert before.forward_transient_bytes is not None
        assert before.backward_transient_bytes is not None
        assert after.forward_transient_bytes == before.forward_transient_bytes + added
        assert after.backward_transient_bytes == before.backward_transient_bytes + more


def test_fit_with_options_loses_less() -> None:
    arguments: dict[str, Any] = {"zero": 3, "gpus": 8, "sequence": 16384, "search": False}
    plain, better = (fit("llama-3-8b", options=how, **arguments) for how in (False, True))
    assert plain.plan is not None
    assert better.plan is not None
    assert better.smallest_budget_bytes == plain.smallest_budget_bytes
    assert better.plan.time < plain.plan.time
    assert "layers recomputed, whole or in part;" in " ".join(str(better).split())


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    model = ["--model", "llama-3-8b", "--sequence", "8192", "--budget", "40GB", "--state", "none"]
    assert main(["solve", *model, "--options"]) == 0
    assert "keep with option 'save-" in capsys.readouterr().out
    assert main(["solve", *model]) == 0
    assert "option" not in capsys.readouterr().out
    assert main(["solve", "--example", "gpt2-small", "--budget", "5GB", "--options"]) == 2
    assert "--options describes a model" in capsys.readouterr().err
