"""Persistent state against the figures that papers, tools and measurements give."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.common.errors import SchedulerError
from scheduler.memory.errors import InvalidRecipe
from scheduler.memory.shape.load import load_shape
from scheduler.memory.shape.shape import Shape
from scheduler.memory.state.state import State, training_state

P = 10**9


def per_parameter(**recipe: Any) -> float:
    return training_state(P, **recipe).total_bytes / P


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ({}, 16),
        ({"precision": "fp16-mixed"}, 16),
        ({"gradient_accumulation": True}, 18),
        ({"gradient_dtype": "fp32"}, 18),
        ({"gradient_dtype": "bf16", "gradient_accumulation": True}, 16),
        ({"precision": "fp32"}, 16),
        ({"precision": "autocast"}, 16),
        ({"precision": "bf16"}, 8),
        ({"optimizer": "sgd"}, 8),
        ({"optimizer": "sgd-momentum"}, 12),
        ({"optimizer": "lion"}, 12),
        ({"optimizer": "muon"}, 12),
        ({"optimizer": "muon", "adamw_parameters": P // 4}, 13),
        ({"optimizer": "lion", "precision": "bf16"}, 6),
        ({"optimizer": "adafactor"}, 8 + 4 / 2048),
        ({"optimizer": "adafactor", "tensors": {(P // 5, 4): 1, (P // 5,): 1}}, 9.6 + 16 / P),
        ({"optimizer": "adafactor-momentum"}, 12 + 4 / 2048),
        ({"optimizer": "adafactor-momentum", "precision": "bf16"}, 8 + 4 / 2048),
        ({"optimizer": "adafactor", "precision": "fp32"}, 8 + 4 / 2048),
        ({"optimizer": "adam-8bit"}, 10.03125),
        ({"optimizer": "adam-8bit", "precision": "bf16"}, 6.03125),
        ({"optimizer": "adam-8bit", "precision": "bf16", "adamw_parameters": P}, 12),
        ({"trainable_parameters": 0}, 2),
        ({"trainable_parameters": P // 2}, 9),
        ({"base": "bf16"}, 2),
        ({"base": "fp32"}, 4),
        ({"base": "nf4"}, 0.5625),
        ({"base": "nf4-double"}, 0.515869140625),
        ({"base": "nf4", "quantized_parameters": P // 2}, 0.28125 + 1),
        ({"lora_parameters": P // 100}, 2.16),
        ({"lora_parameters": P // 100, "lora_dtype": "fp32"}, 2.16),
        ({"lora_parameters": P // 100, "lora_dtype": "bf16"}, 2.08),
        ({"lora_parameters": P // 100, "base": "nf4"}, 0.7225),
        ({"lora_parameters": P // 100, "precision": "fp32"}, 4.16),
    ],
)
def test_bytes_per_parameter(recipe: dict[str, Any], expected: float) -> None:
    assert per_parameter(**recipe) == pytest.approx(expected, abs=1e-9)


def test_parts_and_table() -> None:
    state = training_state(7.5e9, zero=2, gpus=64)
    assert state == State(
        weights_bytes=15 * 10**9,
        gradients_bytes=234_375_000,
        master_bytes=468_750_000,
        moments_bytes=937_500_000,
        adapters_bytes=0,
        recipe="adamw, bf16-mixed, ZeRO-2 over 64 GPUs",
    )
    assert sum(size for _, size in state.rows()) == state.total_bytes == 16_640_625_000
    assert str(state).splitlines() == [
        "persistent state per GPU (adamw, bf16-mixed, ZeRO-2 over 64 GPUs)",
        "    weights   15.00 GB (13.97 GiB)",
        "  gradients   234.4 MB (223.5 MiB)",
        "     master   468.8 MB (447.0 MiB)",
        "    moments   937.5 MB (894.1 MiB)",
        "      total   16.64 GB (15.50 GiB)",
    ]


@pytest.mark.parametrize(("zero", "printed"), [(0, "120"), (1, "31.4"), (2, "16.6"), (3, "1.9")])
def test_zero_paper(zero: int, printed: str) -> None:
    total = training_state(7.5e9, zero=zero, gpus=64).total_bytes / 1e9
    assert f"{total:.{len(printed.partition('.')[2])}f}" == printed


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ({}, "adamw, bf16-mixed"),
        ({"gradient_accumulation": True}, "adamw, bf16-mixed, fp32 gradients"),
        ({"gradient_dtype": "bf16"}, "adamw, bf16-mixed, bf16 gradients"),
        (
            {"gradient_dtype": "fp32", "zero": 1, "gpus": 8},
            "adamw, bf16-mixed, fp32 gradients, ZeRO-1 over 8 GPUs",
        ),
    ],
)
def test_the_recipe_names_what_changes_the_sum(recipe: dict[str, Any], said: str) -> None:
    assert training_state(P, **recipe).recipe == said


def test_adapters_are_at_most_the_model() -> None:
    assert training_state(P, lora_parameters=P).adapters_bytes == 2 * P


def test_fsdp_is_stage_3() -> None:
    assert training_state(P, zero="fsdp", gpus=8) == training_state(P, zero=3, gpus=8)
    frozen = training_state(P, zero="fsdp", gpus=8, base="bf16")
    assert frozen.total_bytes == P // 4


def test_parallel_degrees() -> None:
    split = training_state(P, tensor_parallel=4, pipeline_parallel=2, sequence_parallel=True)
    assert split.total_bytes == 2 * P
    # Context parallelism keeps the weights whole, and its GPUs shard with the others.
    assert training_state(P, context_parallel=4).total_bytes == 16 * P
    assert training_state(P, context_parallel=4, zero=3).total_bytes == 4 * P
    assert training_state(P, gpus=16, tensor_parallel=4, zero=1).total_bytes == P + 3 * P // 4


def test_expert_parallel() -> None:
    shape = load_shape("mixtral-8x7b")
    dense = shape.parameters - shape.routed_parameters
    experts: dict[str, Any] = {"expert_parameters": shape.routed_parameters, "expert_parallel": 8}
    state = training_state(shape.parameters, **experts)
    assert state.total_bytes == 16 * (dense + shape.routed_parameters // 8)
    sharded = training_state(shape.parameters, zero=1, gpus=16, **experts)
    # Experts have two GPUs to shard over, the rest sixteen.
    assert sharded.master_bytes == 4 * (dense // 16 + shape.routed_parameters // 16)
    frozen = training_state(
        shape.parameters,
        base="nf4",
        quantized_parameters=shape.routed_parameters,
        **experts,
    )
    assert frozen.total_bytes == 2 * dense + shape.routed_parameters // 8 * 9 // 16


@given(
    parameters=st.integers(1, 10**12),
    zero=st.integers(0, 3),
    data=st.integers(1, 64),
    tensor=st.integers(1, 8),
    precision=st.sampled_from(["bf16-mixed", "fp32", "bf16"]),
    optimizer=st.sampled_from(["adamw", "sgd", "lion", "adam-8bit", "adafactor"]),
    expert_share=st.fractions(0, 1),
)
@settings(deadline=None, max_examples=200)
def test_gpus_hold_everything_once(
    parameters: int, zero: int, data: int, tensor: int, precision: str, optimizer: str, **rest: Any
) -> None:
    recipe: dict[str, Any] = {"precision": precision, "optimizer": optimizer}
    whole = training_state(parameters, **recipe)
    gpus = data * tensor
    experts = int(parameters * rest["expert_share"])
    recipe |= {"expert_parameters": experts}
    one = training_state(parameters, zero=zero, gpus=gpus, tensor_parallel=tensor, **recipe)
    sharded = {"gradients": 2, "master": 1, "moments": 1, "weights": 3, "adapters": 3}
    for (label, size), (_, alone) in zip(one.rows(), whole.rows(), strict=True):
        copies = tensor * (data if zero >= sharded[label] else 1)
        # At most one parameter too many in each of two groups, and a group of statistics.
        assert alone <= size * copies <= alone + copies * 25


def covered() -> dict[int, Callable[[], float]]:
    """Rows of memory_published.csv that are persistent state: the row's number, our figure."""
    llama_7b = load_shape("llama-7b")  # Llama 2 has the sizes of Llama here
    llama_13b = _llama(40, 5120, 40, 40, 13824)
    code_34b = _llama(48, 8192, 64, 8, 22016)
    llama_31_8b = load_shape("llama-3-8b").parameters
    t5_3b, t5_large, llama_1 = 2851e6, 737_668_000, 6805e6
    bert_base, bert_large = 108_310_272, 335_143_938
    gb, gib, mib = 1e9, 2**30, 2**20

    def zero3(parameters: float, gpus: int, largest: float) -> float:
        # DeepSpeed's estimate adds the largest layer, gathered, with its gradients.
        state = training_state(parameters, gradient_dtype="fp32", zero=3, gpus=gpus)
        return state.total_bytes + 4 * largest

    def saving(shape: Shape, quantized: int) -> float:
        sizes = [
            training_state(shape.parameters, base=base, quantized_parameters=quantized).total_bytes
            for base in ("nf4", "nf4-double")
        ]
        return (sizes[0] - sizes[1]) / gb

    def linear(shape: Shape) -> int:
        norms = (2 * shape.layers + 1) * shape.norm_parameters
        return shape.parameters - shape.embedding_parameters - norms

    def fsdp_8_less_128() -> float:
        sizes = [training_state(llama_31_8b, zero=3, gpus=n).total_bytes for n in (8, 128)]
        return (sizes[0] - sizes[1]) / gib

    def adafactor_saves() -> float:
        # The row's own figure is 8P, as if Adafactor kept nothing: its statistics are 3 MiB here.
        recipes: list[dict[str, Any]] = [
            {"optimizer": "adamw"},
            {"optimizer": "sgd"},
        ]
        adam, factored = (
            training_state(bert_large, precision="fp32", **recipe).total_bytes for recipe in recipes
        )
        return (adam - factored) / mib

    def weights(parameters: float, **recipe: Any) -> float:
        return training_state(parameters, **recipe).weights_bytes

    def lora_7b() -> float:
        # torchtune's recipe: rank 8 on q, v, o and the MLP; rotary tables in every block are extra.
        adapters = 32 * 8 * (3 * (4096 + 4096) + 3 * (4096 + 11008))
        rotary = 32 * 4096 * 64 * 2 * 4
        state = training_state(llama_7b.parameters, lora_parameters=adapters, precision="bf16")
        return (state.weights_bytes + state.adapters_bytes + rotary) / gb

    rows: dict[int, Callable[[], float]] = {
        n + 1: lambda n=n: training_state(7.5e9, zero=n, gpus=64).total_bytes / gb  # type: ignore[misc]
        for n in range(4)
    }
    return rows | {
        5: lambda: training_state(1.5e9).total_bytes / gb,
        8: lambda: weights(t5_3b) / gib,
        10: lambda: zero3(t5_3b, 8, 32e6) / gib,
        11: lambda: (weights(t5_3b, zero=3, gpus=8) + 4 * 32e6) / gib,
        12: lambda: zero3(t5_large, 4, 32.9e6) / mib,
        13: lambda: zero3(llama_1, 4, 131e6) / gib,
        14: lambda: weights(bert_base, precision="fp32") / mib,
        15: lambda: training_state(bert_base, precision="fp32").total_bytes / gib,
        17: lambda: weights(bert_large, precision="fp32") / mib,
        21: adafactor_saves,
        34: lambda: training_state(llama_7b.parameters, base="bf16").total_bytes / gb,
        35: lambda: training_state(llama_13b.parameters, base="bf16").total_bytes / gb,
        36: lambda: saving(llama_7b, linear(llama_7b)),
        37: lambda: saving(llama_13b, linear(llama_13b)),
        38: lambda: saving(code_34b, linear(code_34b)),
        39: lambda: saving(llama_13b, linear(llama_13b)),
        47: lora_7b,
        48: fsdp_8_less_128,
        49: fsdp_8_less_128,
        50: fsdp_8_less_128,
        56: lambda: training_state(7e9, precision="fp32").total_bytes / gb,
    }


def _llama(layers: int, width: int, heads: int, kv_heads: int, mlp_width: int) -> Shape:
    return Shape("", "llama", layers, width, heads, kv_heads, width // heads, mlp_width, 32000)


def published() -> dict[int, dict[str, str]]:
    path = Path(__file__).parents[1] / "data" / "memory_published.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return {int(row["n"]): row for row in csv.DictReader(file)}


@pytest.mark.parametrize("number", covered())
def test_published(number: int) -> None:
    row = published()[number]
    error = covered()[number]() / float(row["published"]) - 1
    # The row's own error, which is listed in hundredths of a percent.
    assert abs(error) <= abs(float(row["rel_err"].rstrip("%"))) / 100 + 6e-5


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        ({"parameters": 0}, "parameters must be a whole number >= 1, got 0"),
        ({"parameters": -7e9}, "parameters must be a whole number >= 1, got -7000000000.0"),
        ({"parameters": 1.5}, "parameters must be a whole number >= 1, got 1.5"),
        ({"parameters": "7B"}, "parameters must be a whole number >= 1, got '7B'"),
        ({"parameters": 2.0**70}, "parameters must be below 2"),
        ({"optimizer": "adamm"}, "optimizer must be one of 'adam', 'adamw', 'sgd', "),
        ({"optimizer": "adamm"}, "got 'adamm'; did you mean 'adam'?"),
        ({"precision": "fp8"}, "precision must be one of 'bf16-mixed', .*, got 'fp8'"),
        ({"gradient_dtype": "fp64"}, "gradient_dtype must be one of 'fp32', 'bf16', 'fp16', got"),
        ({"gradient_accumulation": 4}, "gradient_accumulation must be True or False, got 4"),
        ({"base": "int4"}, "base must be one of 'fp32', 'bf16', .* got 'int4'"),
        ({"base": "nf4", "trainable_parameters": P}, "stores weights that do not train"),
        ({"zero": 4}, "zero must be 0, 1, 2, 3 or 'fsdp', got 4"),
        ({"zero": True}, "zero must be 0, 1, 2, 3 or 'fsdp', got True"),
        ({"zero": "3"}, "zero must be 0, 1, 2, 3 or 'fsdp', got '3'"),
        ({"gpus": 0}, "gpus must be a whole number >= 1, got 0"),
        (
            {"gpus": 6, "context_parallel": 4},
            "gpus must be a multiple of tensor_parallel·pipeline_parallel·context_parallel = "
            "1·1·4, got 6",
        ),
        ({"gpus": 4, "expert_parallel": 8}, "expert_parallel = 1·1·8, got 4"),
        ({"tensor_parallel": 0}, "tensor_parallel must be a whole number >= 1, got 0"),
        ({"sequence_parallel": 4}, "sequence_parallel must be True or False, got 4"),
        ({"sequence_parallel": True}, "divides tokens over the GPUs of tensor_parallel, which is"),
        ({"load_factor": 0.5}, "load_factor must be a number of at least 1, got 0.5"),
        ({"trainable_parameters": 2 * P}, "trainable_parameters must be at most the 1000000000"),
        ({"expert_parameters": 2 * P}, "expert_parameters must be at most the 1000000000"),
        ({"expert_parallel": 8}, "expert_parallel=8 divides experts; say how many of the param"),
        ({"expert_parallel": 2, "expert_parameters": 0}, "by expert_parameters .of a shape: its"),
        ({"precision": "fp16"}, "precision='fp16' names what costs_from_shape computes in"),
        ({"precision": "fp16"}, "say 'fp16-mixed'"),
        ({"precision": ["bf16"]}, "precision must be one of 'bf16-mixed', .*, got .'bf16'."),
        ({"lora_parameters": P + 1}, "lora_parameters must be at most the 1000000000 parameters"),
        ({"lora_parameters": -1}, "lora_parameters must be a whole number >= 0, got -1"),
        ({"lora_dtype": "bf16"}, "lora_dtype='bf16' needs adapters; give lora_parameters"),
        ({"lora_parameters": P // 100, "lora_dtype": ""}, "lora_dtype must be"),
        ({"quantized_parameters": 5}, "quantized_parameters goes with base='nf4' or"),
        ({"base": "nf4", "quantized_parameters": 2 * P}, "quantized_parameters must be at most"),
        (
            {"adamw_parameters": 5},
            "adamw_parameters=5 are what an optimizer such as 'muon' leaves to AdamW; 'adamw' lea",
        ),
        (
            {"tensors": {(5,): 1}},
            "tensors have 5 elements together, but the optimizer takes 1,000,0",
        ),
        (
            {"tensors": [(P,)]},
            "tensors must say how many tensors have which dimensions: {.4096, 40",
        ),
        ({"tensors": {(P, 0): 1}}, "every number in tensors must be a whole number >= 1, got 0"),
        ({"optimizer": "adafactor", "lora_parameters": 5}, "on adapters needs tensors, the shapes"),
        ({"optimizer": "galore", "lora_parameters": 5}, "on adapters needs tensors, the shapes"),
        ({"optimizer": 5}, "optimizer must be a name such as 'adamw', got 5"),
        ({"optimizer": "paged_adamw_8bits"}, "got 'paged_adamw_8bits'; did you mean 'paged-adam"),
        ({"optimizer": "galore,gap=5"}, "optimizer 'galore' takes rank= alone, got 'gap=5'; of"),
        (
            {"optimizer": "lion,rank=5"},
            "optimizer 'lion' takes nothing beside its name, got 'rank=",
        ),
        (
            {"optimizer": "soap,max_precond_dim=0"},
            "max_precond_dim of the optimizer 'soap' must be",
        ),
    ],
)
def test_bad_recipe(recipe: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidRecipe, match=sentence.replace("·", ".").replace("**", ".")) as info:
        training_state(**({"parameters": P} | recipe))
    assert isinstance(info.value, SchedulerError)
    assert isinstance(info.value, ValueError)
    assert "\n" not in str(info.value)


def test_parameters_that_stay_in_fp32() -> None:
    plain = training_state(1000, optimizer="adamw", precision="bf16-mixed")
    some = training_state(1000, optimizer="adamw", precision="bf16-mixed", fp32_parameters=100)
    assert some.weights_bytes - plain.weights_bytes == 200
    assert some.gradients_bytes - plain.gradients_bytes == 200
    assert some.moments_bytes == plain.moments_bytes
    halves = training_state(1000, precision="bf16", fp32_parameters=100)
    assert halves.total_bytes == 8 * 900 + 16 * 100
    frozen = training_state(1000, train="frozen", fp32_parameters=100)
    assert frozen.total_bytes == 2 * 900 + 4 * 100
