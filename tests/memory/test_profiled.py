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
from scheduler.memory.shape.load import load_shape
from scheduler.pytorch import profile
from tests.memory import test_measured
from tests.memory.models import batch_of, kind_of
from tests.memory.test_costs import GPT2_SIZES, PEAKS, PLAIN, SCALAR, Door, peak_errors
from tests.memory.test_measured import Adapted, adapt, sizes_of

torch: Any = import_module("torch")  # untyped here: these tests build models by name
transformers: Any = import_module("transformers")

SEQUENCE = 32
SIZES = test_measured.SMALL | {"intermediate_size": 176, "num_hidden_layers": 4, "vocab_size": 320}
GPT2 = GPT2_SIZES | {"n_layer": 4}
T5 = {
    "d_model": 64,
    "d_kv": 32,
    "d_ff": 176,
    "num_heads": 2,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
    "use_cache": False,
}
OTHERS = dict.fromkeys(test_measured.SMALL.keys() - {"vocab_size"})
FAMILIES: dict[str, dict[str, Any]] = test_measured.FAMILIES | {
    "mixtral": {"num_local_experts": 8},
    "t5": OTHERS | T5,
}
MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe")
FEW = {
    "gemma3_text": [("bf16", "sdpa", 2, "full")],
    "glm4": [("bf16", "sdpa", 2, "full"), ("fp32", "eager", 1, "full")],
    "glm": [],  # GLM-4 with fewer norms
    "gpt_oss": [("bf16", "eager", 1, "full")],
    "llama4_text": [("bf16", "sdpa", 2, "full"), ("bf16", "eager", 2, "frozen")],
    "deepseek_v3": [("bf16", "sdpa", 2, "full"), ("bf16", "eager", 2, "frozen")],
    "roberta": [("bf16", "sdpa", 2, "full")],  # BERT with other positions
    "t5": [],  # see test_two_stacks
}
"""What is profiled of families of two blocks: those show each kind, and others the rest."""


def config_of(family: str, more: dict[str, Any]) -> Any:
    blocks = {"num_hidden_layers": 2} if family in FEW else {}
    sizes = GPT2 if family == "gpt2" else sizes_of(SIZES, FAMILIES.get(family, {}), blocks)
    return transformers.AutoConfig.for_model(family, **sizes | more)


def built(config: Any, precision: str, train: str) -> Any:
    """A model without storage; frozen with a door behind the embedding, through which gradients."""
    torch.set_default_dtype(torch.bfloat16 if precision == "bf16" else torch.float32)
    try:
        with torch.device("meta"):
            model = kind_of(config).from_config(config).train()
    finally:
        torch.set_default_dtype(torch.float32)
    if train == "full":
        return model
    embedding = model.requires_grad_(False).get_input_embeddings()
    vector = torch.zeros(1, dtype=model.dtype, device="meta")
    embedding.register_parameter("vector", torch.nn.Parameter(vector))
    opened: Any = Door.apply
    embedding.register_forward_hook(lambda module, given, made: opened(made, module.vector))
    return model


def profiled(model: Any, batch: int, padding: bool, sequence: int = SEQUENCE) -> CostGraph:
    inputs = batch_of(model, batch, sequence, "meta")
    if padding:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    model.config.use_cache = False  # whose own scalars only fake tensors are seen to take
    return profile(model, inputs)


@cache
def _both(case: tuple[Any, ...]) -> tuple[CostGraph, CostGraph]:
    family, precision, attention, batch, train, padding, sequence, more = case
    config = config_of(family, dict(more))
    config._attn_implementation = attention
    shape = load_shape(config.to_dict())
    ours = costs_from_shape(
        shape,
        batch,
        shape.fixed_sequence or sequence,
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


SAFE = {
    # A gradient of a frozen embedding, and the head's input where nothing takes its gradient.
    ("embedding", "backward_overlap_bytes"): -1,
    ("head", "forward_transient_bytes"): 1,
}
"""Where formulas may count more than is there: more of it, or less where that is overlap."""


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
            if (mine.name, field) in SAFE:
                assert (found - expected) * SAFE[mine.name, field] >= -apart
                continue
            assert abs(found - expected) <= apart, (mine.name, field, found, expected)
    errors = peak_errors(ours, theirs)
    assert all(abs(error) < 1e-3 for error in errors.values()), errors


EACH = [("bf16", "sdpa", 2, "full"), ("fp32", "eager", 1, "full"), ("bf16", "eager", 2, "frozen")]
ALL = [
    (family, precision, attention, batch, train)
    for family in FAMILIES
    for precision, attention, batch, train in FEW.get(family, EACH)
    if family not in test_measured.EAGER or attention == "eager"
    if family not in MIXTURES or precision == "bf16"
]
ALL += [(family, "bf16", "eager", 1, "full") for family in MIXTURES]
ALL += [(family, "bf16", "sdpa", 1, "frozen") for family in MIXTURES]


@pytest.mark.parametrize(("family", "precision", "attention", "batch", "train"), ALL)
def test_a_family(family: str, precision: str, attention: str, batch: int, train: str) -> None:
    ours, theirs = both(family, precision, attention, batch, train)
    # Fake tensors sum the gradient of bf16 shares in fp32, 2 + 4 bytes a row beside the sum's own.
    fake = 6 * batch * SEQUENCE * 2 if "qwen" in family and family in MIXTURES else 0
    # The profile takes the router's buffer, 4 bytes an expert, for something that it makes.
    fake += 4 * 8 if family == "deepseek_v3" else 0
    assert_same(ours, theirs, SCALAR + fake)


ENCODER_DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
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
    "gpt-oss-dropout-narrow": (
        "gpt_oss",
        {"attention": "eager", "attention_dropout": 0.1, "intermediate_size": 16},
    ),
    "qwen2-moe-some": (
        "qwen2_moe",
        {"decoder_sparse_step": 2, "use_sliding_window": True, "sliding_window": 8},
    ),
    "qwen3-moe-as-is": ("qwen3_moe", {"norm_topk_prob": False}),
    "neox-dropout": ("gpt_neox", {"hidden_dropout": 0.1, "attention_dropout": 0.1, "batch": 1}),
    "vit-dropout-eager": ("vit", ENCODER_DROPOUT | {"attention": "eager", "batch": 3}),
    "vit-dropout-frozen": (
        "vit",
        ENCODER_DROPOUT | {"train": "frozen", "qkv_bias": False, "num_channels": 1, "batch": 1},
    ),
    "vit-oblong-written-out": ("vit", {"hidden_act": "gelu_new", "image_size": 36}),
    "bert-dropout-padding": ("bert", ENCODER_DROPOUT | {"padding": True, "precision": "fp32"}),
    "bert-eager-padding-untied": (
        "bert",
        {"attention": "eager", "padding": True, "tie_word_embeddings": False, "batch": 1},
    ),
    "roberta-dropout-eager-frozen": (
        "roberta",
        ENCODER_DROPOUT | {"attention": "eager", "train": "frozen", "intermediate_size": 16},
    ),
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


STACKS: dict[str, dict[str, Any]] = {
    "padding": {"padding": True},
    "gated-eager-few-tokens": {
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "attention": "eager",
        "dropout_rate": 0.1,
        "batch": 1,
        "sequence": 16,
        "precision": "fp32",
    },
}


@pytest.mark.parametrize("name", STACKS)
def test_two_stacks(name: str) -> None:
    ours, theirs = both("t5", **STACKS[name])
    mine, first = ours.layers[0], theirs.layers[0]
    handed = [layer.beside_bytes for layer in theirs.layers]
    middle = [layer.name for layer in theirs.layers].index("before decoder.block.1")
    below, above = sum(handed[:middle]), sum(handed[middle:])
    # What is used up in the last backward stays in the profile's gradients, and is off its peak.
    found, expected = (
        2 * costs.input_bytes
        + layer.saved_bytes
        + layer.gradient_bytes
        + layer.backward_transient_bytes
        - layer.backward_overlap_bytes
        for costs, layer in ((ours, mine), (theirs, first))
    )
    assert -SCALAR <= found - expected <= below + SCALAR
    same = ("gradient_bytes", "backward_transient_bytes", "backward_overlap_bytes")
    first = replace(first, **{field: getattr(mine, field) for field in same})
    # What the blocks of a stack are handed counts as held by what made it, which is the safe side.
    mask = first.saved_bytes - mine.saved_bytes
    first = replace(first, saved_bytes=mine.saved_bytes)
    layers = [replace(layer, beside_bytes=0) for layer in (first, *theirs.layers[1:])]
    between = layers[middle]
    layers[middle] = replace(
        between,
        saved_bytes=between.saved_bytes + above,
        backward_overlap_bytes=between.backward_overlap_bytes + above,
    )
    held = theirs.input_bytes + below + mask
    assert_same(ours, replace(theirs, layers=tuple(layers), input_bytes=held))


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
