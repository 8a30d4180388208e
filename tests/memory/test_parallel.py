"""One of several GPUs that share a model: what its blocks keep, and what its layers hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler import solve
from scheduler.common.errors import SchedulerError
from scheduler.memory import (
    Recipe,
    Shape,
    costs_from_shape,
    fit,
    load_shape,
    pipeline_costs,
    training_state,
)
from scheduler.memory.activations import block_activations, head_activations
from scheduler.memory.fitting.training import Training
from scheduler.memory.gpus import load_gpu
from scheduler.pipeline import solve_pipeline

LLAMA = load_shape("llama-3-70b")
SMALL = replace(load_shape("llama-3-8b"), layers=3)
SP: dict[str, Any] = {"tensor_parallel": 8, "sequence_parallel": True}
GIB = 2**30


def kept(tokens: int = 8192, **fields: Any) -> float:
    """What a block of Llama-3-70B keeps, in bytes a token."""
    return block_activations(LLAMA, 1, tokens, **fields).total_bytes / tokens


def test_closed_forms_of_a_block() -> None:
    # design: T(16d + 8 + (4dq + 4dk + 8f + 4H)/t), and what of it tokens divide.
    d, inner = LLAMA.width, 4 * 8192 + 4 * 1024 + 8 * 28672 + 4 * 64
    assert kept() == 16 * d + 8 + inner
    assert kept(tensor_parallel=8) == 16 * d + 8 + inner / 8
    assert kept(**SP, runtime="megatron") == (16 * d + 8 + inner) / 8
    assert kept(**SP) == (12 * d + 8 + inner) / 8 + 4 * d
    assert kept(**SP) / d == pytest.approx(9.57, abs=0.005)
    assert kept(**SP, runtime="megatron") / d == pytest.approx(6.07, abs=0.005)
    # More GPUs than heads of keys: each has one.
    keys = 4 * (1024 / 8 - 1024 / 16)
    assert kept(tensor_parallel=16) == 16 * d + 8 + inner / 16 + keys
    assert block_activations(LLAMA, 1, 8192, context_parallel=4).total_bytes == 2048 * kept()


def test_words_are_divided_in_the_head() -> None:
    whole, part = (head_activations(LLAMA, 1, 64, tensor_parallel=t).kept for t in (1, 8))
    logits = 4 * 64 * LLAMA.vocabulary
    assert whole.total_bytes - part.total_bytes == logits - logits // 8


def test_experts() -> None:
    # Each GPU brings its own tokens: of a block's weights some are elsewhere, of its rows none.
    shape = load_shape("mixtral-8x7b")
    one, many = (block_activations(shape, 1, 512, expert_parallel=e).total_bytes for e in (1, 8))
    assert one - many == 4 * 7  # where each expert's rows end
    loaded = block_activations(shape, 1, 512, expert_parallel=8, load_factor=1.5).total_bytes
    rows = 2 * 512
    assert loaded - many == rows // 2 * 2 * (shape.width + 4 * shape.mlp_width)
    gradients = [
        costs_from_shape(replace(shape, layers=1), 1, 64, expert_parallel=e).layers[1]
        for e in (1, 8)
    ]
    elsewhere = 7 * shape.expert_parameters * 2
    assert gradients[0].gradient_bytes - gradients[1].gradient_bytes == elsewhere


MEGATRON = {
    "22b": (48, 6144, 64, 4, 8, 1, 45.56),
    "175b": (96, 12288, 96, 1, 8, 8, 45.56),
    "530b": (105, 20480, 128, 1, 8, 35, 31.64),
    "1t": (128, 25600, 160, 1, 8, 64, 32.96),
}
"""Korthikanti et al., figure 1: layers, h, heads, microbatch, t, p, and GiB of state."""


@pytest.mark.parametrize("name", MEGATRON)
def test_published_state(name: str) -> None:
    layers, h, heads, _, t, p, published = MEGATRON[name]
    shape = Shape(name, "gpt2", layers, h, heads, heads, h // heads, 4 * h, 51200, 2048, tied=True)
    shape = replace(
        shape, gated=False, activation="gelu", norm="layer", qkv_bias=True, output_bias=True
    )
    shape = replace(shape, mlp_bias=True, norm_bias=True)
    state = training_state(
        shape.parameters, gradient_dtype="fp32", tensor_parallel=t, pipeline_parallel=p
    )
    assert state.total_bytes / GIB == pytest.approx(published, rel=0.016)


def test_gathered_tensors_are_an_option() -> None:
    # What torch keeps whole an option may let go of, for the time of a gather.
    costs = costs_from_shape(SMALL, 1, 2048, **SP, options=True)
    block = costs.layers[1]
    gathered = 2 * 2048 * SMALL.width
    near = [o for o in block.options if block.saved_bytes - o.saved_bytes == 2 * gathered]
    again = block_activations(SMALL, 1, 2048, **SP, runtime="megatron").saved_bytes
    assert again < block.saved_bytes - gathered
    names = {name for o in block.options for name, *_ in o.keeps}
    assert any("all_gather" in name for name in names), names
    assert near or any(o.saved_bytes < again for o in block.options)
    # Slower links make the same plan dearer.
    slow = costs_from_shape(
        SMALL, 1, 2048, **SP, gpu="memory=80GB,flops=989e12,bandwidth=3.35e12,link=1e9"
    )
    assert slow.layers[1].forward_time > block.forward_time
    assert slow.layers[1].saved_bytes == block.saved_bytes


@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b", "mixtral-8x7b", "gemma-3-1b"])
@pytest.mark.parametrize("optimizer", ["adamw", "adam-8bit", "muon"])
def test_layers_hold_the_state(name: str, optimizer: str) -> None:
    shape = load_shape(name)
    training = Training(shape, load_gpu("h100"), Recipe(optimizer=optimizer))
    assert sum(training.layer_states()) == training.state.total_bytes
    divided = Recipe(tensor_parallel=4, pipeline_parallel=2, gpus=16, zero=1)
    many = Training(shape, load_gpu("h100"), divided)
    states, table = many.layer_states(), many.own.vocabulary * many.own.width
    # Tied, the table is on both ends; each layer's part is rounded up on each GPU.
    twice = training_state(table, zero=1, gpus=2).total_bytes if shape.tied else 0
    assert abs(sum(states) - twice - 2 * many.state.total_bytes) < 100 * len(states)


def test_a_pipeline_of_a_shape() -> None:
    fields: dict[str, Any] = {**SP, "pipeline_parallel": 2, "zero": 1, "gpus": 32}
    costs = pipeline_costs(SMALL, 1, 2048, **fields)
    plan = solve_pipeline(costs, budget="80GB", stages=2, microbatches=4)
    assert sum(stage.state_bytes for stage in plan.stages) == sum(
        layer.state_bytes for layer in costs.layers
    )
    assert costs.input_bytes == 8 * 2048
    # As a chain alone they need what the costs on which they stand need.
    chain = costs_from_shape(SMALL, 1, 2048, **SP)
    ours, theirs = (solve(each, budget="80GB").peak_bytes for each in (costs, chain))
    assert ours <= theirs


@pytest.mark.parametrize(
    ("shape", "fields", "sentence"),
    [
        ("llama-3-8b", {"tensor_parallel": 3}, "tensor_parallel=3 must divide the 32 heads"),
        ("llama-3-70b", {**SP, "sequence": 100}, "sequence must be a multiple of 8, so that seq"),
        ("llama-3-70b", {"context_parallel": 3}, "multiple of 6, so that context_parallel can"),
        ("mixtral-8x7b", {"expert_parallel": 3}, "expert_parallel=3 must divide the 8 experts"),
        ("gpt2", {"expert_parallel": 2}, "expert_parallel=2 divides experts, and gpt2 has none"),
        ("gpt2", {"pipeline_parallel": 15}, "is more stages than gpt2 has layers: 12 blocks"),
        (
            "bert-base-uncased",
            {"tensor_parallel": 2},
            "formulas for decoders alone, and bert-base-",
        ),
        ("gpt2", {"tensor_parallel": 2, "precision": "autocast"}, "full training without autoc"),
        ("gemma-3-1b", {"context_parallel": 2}, "context_parallel=2 has a formula for causal"),
        ("mixtral-8x7b", {"expert_parallel": 2, "experts": "eager"}, "experts='grouped' alone"),
    ],
)
def test_what_does_not_divide(shape: str, fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SchedulerError) as caught:
        costs_from_shape(shape, 1, **({"sequence": 1024} | fields))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_fit_is_of_one_gpu() -> None:
    found = fit(LLAMA, **SP, zero=1, gpus=64, sequence=8192, search=False)
    assert "tensor and sequence parallel 8" in str(found)
    assert found.costs.layers[1].saved_bytes < kept() * 8192 / 5
