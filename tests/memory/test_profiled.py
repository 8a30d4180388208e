"""Costs from a shape against a fake-tensor profile, for every family, with sizes that tell.

Mixtures of experts are profiled on fake tensors too: the grouped product over sorted rows has sizes
that no routing changes. Fake tensors run it in bf16 alone.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

import pytest

from scheduler import CostGraph
from scheduler.memory.costs import costs_from_shape
from scheduler.memory.recipe import Lora
from scheduler.memory.shape.shape import load_shape
from scheduler.pytorch import profile
from tests.memory import test_measured
from tests.memory.test_costs import GPT2_SIZES, PEAKS, PLAIN, SCALAR, Door, peak_errors
from tests.memory.test_measured import Adapted, adapt

torch: Any = import_module("torch")  # untyped here: these tests build models by name
transformers: Any = import_module("transformers")

SEQUENCE = 32
SIZES = test_measured.SMALL | {"intermediate_size": 176, "vocab_size": 320, "num_hidden_layers": 4}
GPT2 = GPT2_SIZES | {"n_layer": 4}
FAMILIES = test_measured.FAMILIES | {"mixtral": {"num_local_experts": 8}}
MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe")


def config_of(family: str, more: dict[str, Any]) -> Any:
    sizes = GPT2 if family == "gpt2" else SIZES | FAMILIES.get(family, {})
    return transformers.AutoConfig.for_model(family, **sizes | more)


def built(config: Any, precision: str, train: str) -> Any:
    """A model without storage; frozen with a door behind the embedding, through which gradients."""
    torch.set_default_dtype(torch.bfloat16 if precision == "bf16" else torch.float32)
    try:
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config).train()
    finally:
        torch.set_default_dtype(torch.float32)
    if train == "full":
        return model
    embedding = model.requires_grad_(False).get_input_embeddings()
    vector = torch.zeros(1, dtype=embedding.weight.dtype, device="meta")
    embedding.register_parameter("vector", torch.nn.Parameter(vector))
    opened: Any = Door.apply
    embedding.register_forward_hook(lambda module, given, made: opened(made, module.vector))
    return model


def profiled(model: Any, batch: int, padding: bool, sequence: int = SEQUENCE) -> CostGraph:
    ids = torch.zeros(batch, sequence, dtype=torch.long, device="meta")
    inputs = {"input_ids": ids, "labels": ids.clone()}
    if padding:
        inputs["attention_mask"] = torch.ones_like(ids)
    model.config.use_cache = False  # whose own scalars only fake tensors are seen to take
    return profile(model, inputs)


@cache
def _both(case: tuple[Any, ...]) -> tuple[CostGraph, CostGraph]:
    family, precision, attention, batch, train, padding, sequence, more = case
    config = config_of(family, dict(more))
    config._attn_implementation = attention
    ours = costs_from_shape(
        config.to_dict(),
        batch,
        sequence,
        precision=precision,
        attention=attention,
        train=train,
        padding_mask=padding,
        device="cpu",
    )
    return ours, profiled(built(config, precision, train), batch, padding, sequence)


def both(
    family: str,
    precision: str = "bf16",
    attention: str = "sdpa",
    batch: int = 2,
    train: str = "full",
    padding: bool = False,
    sequence: int = SEQUENCE,
    **more: Any,
) -> tuple[CostGraph, CostGraph]:
    """The costs from the shape, and the profile."""
    how = (precision, attention, batch, train, padding, sequence)
    return _both((family, *how, tuple(more.items())))


def assert_same(ours: CostGraph, theirs: CostGraph, apart: int = SCALAR) -> None:
    """All that is kept equal; working memory too, but for the profiler's own scalar."""
    assert ours.input_bytes == theirs.input_bytes
    for mine, other in zip(ours.layers, theirs.layers, strict=True):
        assert mine.name == other.name
        for field in PLAIN:
            assert getattr(mine, field) == getattr(other, field), (mine.name, field)
        for field in PEAKS:
            found, expected = getattr(mine, field), getattr(other, field)
            if field == "forward_transient_bytes" and mine.name == "embedding":
                continue  # how a mask is made is not followed; nothing else is live then
            if found is None or expected is None:
                assert found is expected
                continue
            assert abs(found - expected) <= apart, (mine.name, field, found, expected)
    errors = peak_errors(ours, theirs)
    assert all(abs(error) < 1e-3 for error in errors.values()), errors


ALL = [
    (family, precision, attention, batch, train)
    for family in FAMILIES
    for precision, attention, batch, train in (
        ("bf16", "sdpa", 2, "full"),
        ("fp32", "eager", 1, "full"),
        ("bf16", "eager", 2, "frozen"),
    )
    if (family, attention) != ("gemma2", "sdpa")
    if family not in MIXTURES or precision == "bf16"
]
ALL += [(family, "bf16", "eager", 1, "full") for family in MIXTURES]
ALL += [(family, "bf16", "sdpa", 1, "frozen") for family in MIXTURES]


@pytest.mark.parametrize(("family", "precision", "attention", "batch", "train"), ALL)
def test_a_family(family: str, precision: str, attention: str, batch: int, train: str) -> None:
    ours, theirs = both(family, precision, attention, batch, train)
    # Fake tensors sum the gradient of bf16 shares in fp32, 2 + 4 bytes a row beside the sum's own.
    fake = 6 * batch * SEQUENCE * 2 if "qwen" in family and family in MIXTURES else 0
    assert_same(ours, theirs, SCALAR + fake)


TELLING: dict[str, tuple[str, dict[str, Any]]] = {
    # Narrow MLPs put the peak into attention; one key-value head is read as all of them.
    "gpt2-gelu-eager-one": (
        "gpt2",
        {"activation_function": "gelu", "attention": "eager", "batch": 1, "sequence": 64},
    ),
    "gpt2-tanh-eager-one": (
        "gpt2",
        {
            "activation_function": "gelu_pytorch_tanh",
            "attention": "eager",
            "batch": 1,
            "sequence": 128,
            "n_inner": 32,
        },
    ),
    "gpt2-frozen": ("gpt2", {"activation_function": "gelu", "train": "frozen", "n_inner": 16}),
    "gpt2-few-tokens": ("gpt2", {"vocab_size": 40, "n_inner": 32}),
    "llama-mqa-eager": (
        "llama",
        {"num_key_value_heads": 1, "attention": "eager", "intermediate_size": 16},
    ),
    "llama-wide-heads": ("llama", {"head_dim": 64, "attention": "eager", "precision": "fp32"}),
    "qwen3-one": ("qwen3", {"batch": 1, "intermediate_size": 64}),
    "qwen3-eager-frozen": (
        "qwen3",
        {"head_dim": 64, "attention": "eager", "train": "frozen", "batch": 1},
    ),
    "gemma-tied-few-tokens": ("gemma", {"vocab_size": 40, "attention": "eager"}),
    "gemma2-narrow": (
        "gemma2",
        {"attention": "eager", "train": "frozen", "intermediate_size": 32, "head_dim": 8},
    ),
    "phi3-part-of-a-head": ("phi3", {"partial_rotary_factor": 0.75, "intermediate_size": 16}),
    "neox-in-turn": ("gpt_neox", {"use_parallel_residual": False, "intermediate_size": 16}),
    "neox-half-a-head": (
        "gpt_neox",
        {
            "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
            "attention": "eager",
            "train": "frozen",
            "intermediate_size": 32,
        },
    ),
    "mistral-window": ("mistral", {"sliding_window": 16}),
    "mistral-window-padding": ("mistral", {"sliding_window": 32, "padding": True}),
    "mistral-long-window": ("mistral", {"sliding_window": 33, "batch": 1}),
    "mixtral-window-eager": ("mixtral", {"sliding_window": 8, "attention": "eager"}),
    "mixtral-many": ("mixtral", {"num_experts_per_tok": 4, "intermediate_size": 32}),
    "qwen2-moe-divided": ("qwen2_moe", {"norm_topk_prob": True}),
    "qwen3-moe-as-is": ("qwen3_moe", {"norm_topk_prob": False}),
}


@pytest.mark.parametrize("name", TELLING)
def test_sizes_that_tell(name: str) -> None:
    family, how = TELLING[name]
    if "rope_parameters" in how:
        config = config_of(family, {k: how[k] for k in ("rope_parameters", "intermediate_size")})
        config._attn_implementation = how["attention"]
        options = {key: how[key] for key in ("attention", "train")}
        ours = costs_from_shape(config.to_dict(), 2, SEQUENCE, device="cpu", **options)
        theirs = profiled(built(config, "bf16", how["train"]), 2, False)
    else:
        ours, theirs = both(family, **how)
    assert_same(ours, theirs)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "lora",
    [
        Lora(4),
        Lora(8, ("q", "v"), "fp32"),
        Lora(4, ("q", "k", "v", "o", "gate", "up", "down", "lm_head"), "fp32", 0.1),
    ],
    ids=["all", "qv-fp32", "head-dropout-fp32"],
)
def test_adapters(lora: Lora, attention: str) -> None:
    config = config_of("llama", {})
    config._attn_implementation = attention
    shape = load_shape(config.to_dict())
    model = built(config, "bf16", "full").requires_grad_(False)
    model.enable_input_require_grads()
    with torch.device("meta"):
        for block in model.base_model.layers:
            adapt(block, shape, lora)
        if "lm_head" in lora.targets:
            model.lm_head = Adapted(model.lm_head, lora)
    ours = costs_from_shape(
        shape, 2, SEQUENCE, train="lora", lora=lora, attention=attention, device="cpu"
    )
    theirs = profiled(model, 2, False)
    first, *others = theirs.layers
    # What the embedding hands on is a leaf, whose gradient no optimizer takes.
    assert first.gradient_bytes == 2 * first.output_bytes
    overlap = ours.layers[0].backward_overlap_bytes
    first = replace(first, gradient_bytes=0, backward_overlap_bytes=overlap)
    assert_same(ours, replace(theirs, layers=(first, *others)))
