"""One of several GPUs that share a model: what its blocks keep, and what its layers hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
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
from tests.memory.parallel_blocks import CONFIGS, Case, measured

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


@dataclass(frozen=True)
class Published:
    """A model of Korthikanti et al., figures 1 and 7: its GPUs, GiB, and shares of the whole."""

    layers: int
    width: int
    heads: int
    batch: int
    stages: int
    chunks: int
    state: float
    everything: float
    selective: float
    shares: tuple[float, float, float, float]

    @property
    def shape(self) -> Shape:
        """A GPT of this size."""
        h, heads = self.width, self.heads
        sizes: dict[str, Any] = {"layers": self.layers, "width": h, "heads": heads}
        sizes |= {"kv_heads": heads, "head_width": h // heads, "mlp_width": 4 * h}
        sizes |= {"vocabulary": 51200, "positions": 2048, **dict.fromkeys(_BIASES, True)}
        sizes |= {"activation": "gelu", "norm": "layer", "gated": False, "tied": True}
        return Shape(name="gpt", family="gpt2", dropout=0.1, attention_dropout=0.1, **sizes)

    def kept(self, *, selective: bool = False, **fields: Any) -> float:
        """GiB of activations on the first stage, without norms' statistics, as in the paper."""
        block = block_activations(
            self.shape, self.batch, 2048, attention="eager", runtime="megatron", **EIGHT, **fields
        )
        scores = self.batch * self.heads // 8 * 2048**2
        made = "_softmax", "native_dropout"
        again = {(f"aten.{op}.default", n * scores) for op in made for n in (1, 2)}
        divided = 8 if fields.get("sequence_parallel") else 1
        statistics = 16 * self.batch * 2048 // divided
        kept = (each for each in block.tensors if not (selective and each in again))
        size = sum(size for _, size in kept) - statistics
        return size * self.layers * self.in_flight / GIB

    @property
    def in_flight(self) -> float:
        """Microbatches of a whole model's blocks that the first stage has in flight."""
        return 1 + (self.stages - 1) / (self.stages * self.chunks) if self.chunks > 1 else 1


_BIASES = ("qkv_bias", "output_bias", "mlp_bias", "norm_bias")
EIGHT: dict[str, Any] = {"tensor_parallel": 8}
MEGATRON = (
    Published(48, 6144, 64, 4, 1, 1, 45.56, 59.25, 9.56, (66.84, 49.42, 16.18, 7.64)),
    Published(96, 12288, 96, 1, 8, 3, 45.56, 66.84, 12.35, (62.04, 56.53, 18.49, 8.71)),
    Published(105, 20480, 128, 1, 35, 3, 31.64, 114.02, 23.08, (58.31, 62.04, 20.27, 9.42)),
    Published(128, 25600, 160, 1, 64, 1, 32.96, 131.25, 26.56, (58.31, 62.04, 20.27, 9.42)),
)


@pytest.mark.parametrize("one", MEGATRON, ids=["22b", "175b", "530b", "1t"])
def test_published_megatron(one: Published) -> None:
    shape = one.shape
    degrees = {**EIGHT, "pipeline_parallel": one.stages}
    state = training_state(shape.parameters, gradient_dtype="fp32", **degrees)
    assert state.total_bytes / GIB == pytest.approx(one.state, rel=0.016)
    everything = one.kept()
    both = one.kept(sequence_parallel=True, selective=True)
    assert round(everything, 2) == one.everything
    assert round(both, 2) == one.selective
    # A checkpoint is on every GPU.
    full = 2 * one.batch * 2048 * one.width * one.layers * one.in_flight / GIB
    shares = one.kept(sequence_parallel=True), one.kept(selective=True), both, full
    assert [100 * share / everything for share in shares] == pytest.approx(one.shares, abs=0.15)


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
    # As a chain alone they need what the costs on which they stand need; torch holds the logits.
    chain = costs_from_shape(SMALL, 1, 2048, loss="hf-outputs-kept", **SP)
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


@pytest.fixture(scope="module")
def four() -> Iterator[None]:
    """A group of four processes, of which this is one; what the others would send is not sent."""
    store: Any = import_module("torch.testing._internal.distributed.fake_pg").FakeStore()
    dist: Any = import_module("torch.distributed")
    dist.init_process_group("fake", store=store, rank=0, world_size=4)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("how", [{"tensor": 4}, {"tensor": 4, "scattered": False}, {"data": 2}])
@pytest.mark.usefixtures("four")
def test_torch_keeps_what_is_said(kind: str, how: dict[str, Any]) -> None:
    # benchmarks/parallel.py measures the same on gloo, with FSDP2 on top.
    case = Case(kind, **({"tensor": 2} | how))
    assert measured(case, 0) == case.said
