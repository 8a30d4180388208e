"""The activation formulas against torch, measured anew on blocks with random sizes.

What a block keeps is read off with saved_tensors_hooks: every tensor that autograd saves, by the
storage behind it, each once, without parameters and without what the caller passes to all blocks
(rotary tables, the eager mask). Transformers 5.24 and torch 2.13 keep exactly what the rows of
memory_measured.csv say, so one set of formulas serves both; should a later version keep something
else, the file's rows stay the reference for torch 2.13 and these tests say what changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any
from weakref import WeakSet

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.memory.activations import Activations, block_activations, head_activations
from scheduler.memory.recipe import Lora
from scheduler.memory.shape.families.table import shape_fields
from scheduler.memory.shape.shape import Shape
from scheduler.memory.simulate.setting import KV_DOWN, lora_targets
from tests.memory.memory_cases import gpt2, llama, mixtral
from tests.memory.models import batch_of, blocks_of, kind_of
from tests.memory.tape import embedding_activations

torch: Any = import_module("torch")  # untyped here: these tests build models by name
transformers: Any = import_module("transformers")

SIZE = {"bf16": "bfloat16", "fp32": "float32", "autocast": "float32"}
few = settings(max_examples=25, deadline=None, derandomize=True)
precisions = st.sampled_from(["bf16", "fp32"])
attentions = st.sampled_from(["sdpa", "eager"])
dropouts = st.sampled_from([0.0, 0.1])
some = st.sets(st.sampled_from(["q", "v", "o", "up", "down"]), min_size=1)
targets = st.just("all") | some.map(tuple)


class Packed:
    """A tensor that a node of a graph has saved."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


def kept_by(block: Any, x: Any, outside: Iterable[Any], autocast: bool = False) -> tuple[Any, ...]:
    """Bytes that a block keeps, and whether its input and its output are among them."""
    foreign = [t.untyped_storage() for t in (*block.parameters(), *outside)]
    foreign_ids = {id(storage) for storage in foreign}
    packed: WeakSet[Packed] = WeakSet()  # what belongs to no result's graph goes at once

    def pack(tensor: Any) -> Packed:
        made = Packed(tensor)
        packed.add(made)
        return made

    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda made: made.tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        y = block(x)
    storages = [made.tensor.untyped_storage() for made in packed]
    found = {id(storage): storage for storage in storages if id(storage) not in foreign_ids}
    total = sum(storage.nbytes() for storage in found.values())
    ends = (id(x.untyped_storage()) in found, id(y.untyped_storage()) in found)
    return total, *ends, x.untyped_storage().nbytes(), y.untyped_storage().nbytes()


def said(kept: Activations) -> tuple[Any, ...]:
    """The same of a formula."""
    ends = (kept.input_saved, kept.output_saved)
    return kept.total_bytes, *ends, kept.input_bytes, kept.output_bytes


class Adapted(torch.nn.Module):  # type: ignore[misc]
    """A frozen linear layer with a low-rank adapter, in the order of PEFT's operations."""

    def __init__(self, base: Any, lora: Lora) -> None:
        super().__init__()
        dtype = getattr(torch, SIZE[lora.dtype])
        self.base = base
        self.down = torch.nn.Linear(base.in_features, lora.rank, bias=False, dtype=dtype)
        self.up = torch.nn.Linear(lora.rank, base.out_features, bias=False, dtype=dtype)
        self.dropout = torch.nn.Dropout(lora.dropout) if lora.dropout else torch.nn.Identity()

    def forward(self, x: Any) -> Any:
        result = self.base(x)
        before = result.dtype
        x = x.to(self.down.weight.dtype)
        result = result + self.up(self.down(self.dropout(x))) * 2.0
        return result.to(before)


def adapt(block: Any, shape: Shape, lora: Lora) -> None:
    """Freeze a block and put adapters beside the linear layers that are targets."""
    block.requires_grad_(False)
    for name in lora_targets(shape, lora) - {"lm_head"}:
        attribute = name if name == KV_DOWN else f"{name}_proj"
        attention = hasattr(block.self_attn, attribute)
        part = block.self_attn if attention else block.mlp
        setattr(part, attribute, Adapted(getattr(part, attribute), lora))


def model_of(config: Any, precision: str, attention: str) -> Any:
    """A model in training mode, its weights in the precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, SIZE[precision]))
    try:
        made = kind_of(config).from_config(config, attn_implementation=attention)
    finally:
        torch.set_default_dtype(before)
    return made.train()


def measured(
    model: Any,
    batch: int,
    sequence: int,
    autocast: bool = False,
    padded: bool = False,
    place: int = -1,
) -> tuple[Any, ...]:
    """What a block of a model keeps, called with what the model calls it with; else the last."""
    block = blocks_of(model)[place]
    calls = []

    def see(module: Any, args: Any, kwargs: Any) -> None:
        calls.append((args, kwargs))

    hook = block.register_forward_pre_hook(see, with_kwargs=True)
    inputs = batch_of(model, batch, sequence)
    if "input_ids" in inputs:
        mask = torch.ones(batch, sequence, dtype=torch.int64)
        mask[0, : int(padded)] = 0
        inputs |= {"attention_mask": mask, "use_cache": False}
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        model(**inputs)
    hook.remove()
    ((x, *rest), kwargs) = calls[-1]
    leaves = torch.utils._pytree.tree_leaves((rest, kwargs))
    outside = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    x = x.detach().requires_grad_() * 1  # not a leaf, as in a model
    return kept_by(Bound(block, rest, kwargs), x, outside, autocast)


class Bound(torch.nn.Module):  # type: ignore[misc]
    """A block with all its arguments but the first."""

    def __init__(self, block: Any, rest: Any, kwargs: Any) -> None:
        super().__init__()
        self.block, self.rest, self.kwargs = block, rest, kwargs

    def forward(self, x: Any) -> Any:
        y = self.block(x, *self.rest, **self.kwargs)
        return y[0] if isinstance(y, tuple) else y


def llama_config(shape: Shape) -> Any:
    return transformers.LlamaConfig(
        hidden_size=shape.width,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_width,
        intermediate_size=shape.mlp_width,
        attention_dropout=shape.attention_dropout,
        num_hidden_layers=1,
        vocab_size=11,
        bos_token_id=1,
        eos_token_id=2,
    )


@st.composite
def llamas(draw: st.DrawFn) -> tuple[Shape, int, int]:
    """A Llama, a batch, a sequence."""
    heads, shared = draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 3]))
    shape = llama(
        heads * shared * draw(st.integers(1, 8)),
        heads * shared,
        heads,
        draw(st.integers(1, 60)),
        head_width=2 * draw(st.sampled_from([1, 2, 5, 8, 129])),
        attention_dropout=draw(dropouts),
    )
    return shape, draw(st.integers(1, 3)), draw(st.integers(2, 20))


@few
@given(llamas(), precisions, attentions, st.sampled_from(["full", "frozen"]), st.booleans())
def test_llama(
    drawn: tuple[Shape, int, int], precision: str, attention: str, train: str, padded: bool
) -> None:
    shape, batch, sequence = drawn
    model = model_of(llama_config(shape), precision, attention)
    model.requires_grad_(train == "full")
    padded = padded and attention == "sdpa"
    kept = block_activations(
        shape,
        batch,
        sequence,
        precision=precision,
        attention=attention,
        train=train,
        padding_mask=padded,
        device="cpu",
    )
    assert measured(model, batch, sequence, padded=padded) == said(kept)


@few
@given(llamas(), st.sampled_from(["full", "frozen"]))
def test_llama_autocast(drawn: tuple[Shape, int, int], train: str) -> None:
    shape, batch, sequence = drawn
    if shape.attention_dropout:
        return
    model = model_of(llama_config(shape), "autocast", "sdpa")
    model.requires_grad_(train == "full")
    kept = block_activations(
        shape, batch, sequence, precision="autocast", train=train, device="cpu"
    )
    assert measured(model, batch, sequence, autocast=True) == said(kept)


@few
@given(
    llamas(),
    precisions,
    attentions,
    st.builds(
        Lora,
        st.integers(1, 9),
        targets,
        precisions,
        dropouts,
    ),
)
def test_lora(drawn: tuple[Shape, int, int], precision: str, attention: str, lora: Lora) -> None:
    shape, batch, sequence = drawn
    model = model_of(llama_config(shape), precision, attention)
    adapt(model.base_model.layers[0], shape, lora)
    kept = block_activations(
        shape,
        batch,
        sequence,
        precision=precision,
        attention=attention,
        train="lora",
        lora=lora,
        device="cpu",
    )
    assert measured(model, batch, sequence) == said(kept)


@few
@given(
    st.integers(1, 4),
    st.integers(1, 12),
    st.sampled_from(["gelu_new", "gelu", "gelu_pytorch_tanh", "relu"]),
    st.sampled_from(["bf16", "fp32", "autocast"]),
    attentions,
    dropouts,
    dropouts,
    st.sampled_from(["full", "frozen"]),
    st.tuples(st.integers(1, 3), st.integers(2, 20)),
)
def test_gpt2(
    heads: int,
    head_width: int,
    activation: str,
    precision: str,
    attention: str,
    dropout: float,
    attention_dropout: float,
    train: str,
    sizes: tuple[int, int],
) -> None:
    if precision == "autocast" and (attention == "eager" or attention_dropout):
        return
    width = heads * head_width
    config = transformers.GPT2Config(
        n_embd=width,
        n_head=heads,
        n_layer=1,
        vocab_size=11,
        activation_function=activation,
        resid_pdrop=dropout,
        attn_pdrop=attention_dropout,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = model_of(config, precision, attention)
    model.requires_grad_(train == "full")
    plain = activation.replace("gelu_pytorch_tanh", "gelu")
    shape = gpt2(width, heads, plain, dropout, attention_dropout=attention_dropout)
    kept = block_activations(
        shape, *sizes, precision=precision, attention=attention, train=train, device="cpu"
    )
    assert measured(model, *sizes, autocast=precision == "autocast") == said(kept)


@few
@given(
    st.sampled_from(["grouped", "batched", "eager"]),
    st.integers(1, 8).flatmap(lambda e: st.tuples(st.just(e), st.integers(1, e))),
    st.integers(1, 3),
    st.integers(1, 4),
    precisions,
    st.sampled_from(["full", "frozen"]),
    st.tuples(st.integers(1, 3), st.integers(2, 20)),
)
def test_mixture(
    how: str,
    experts: tuple[int, int],
    width: int,
    mlp: int,
    precision: str,
    train: str,
    sizes: tuple[int, int],
) -> None:
    width, mlp = 8 * width, 8 * mlp  # torch's grouped product needs rows of whole 16 bytes
    config = transformers.MixtralConfig(
        hidden_size=width,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=width // 4,
        intermediate_size=mlp,
        num_local_experts=experts[0],
        num_experts_per_tok=experts[1],
        num_hidden_layers=1,
        vocab_size=11,
        bos_token_id=1,
        eos_token_id=2,
        experts_implementation=how if how == "eager" else f"{how}_mm",
    )
    model = model_of(config, precision, "sdpa")
    model.requires_grad_(train == "full")
    shape = mixtral(width, mlp, *experts, 4, 2)
    kept = block_activations(
        shape, *sizes, precision=precision, train=train, experts=how, device="cpu"
    )
    assert measured(model, *sizes) == said(kept)


SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 128,
    "num_hidden_layers": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
CHOSEN = {"num_local_experts": 8, "num_experts_per_tok": 2}
ENCODER = {
    "num_key_value_heads": None,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
IMAGES = {
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 10,
    "vocab_size": None,
    "max_position_embeddings": None,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "mistral": {},
    "qwen2": {},
    "qwen3": {"head_dim": 24},
    "gemma": {"head_dim": 32},
    "gemma2": {"head_dim": 32},
    "phi3": {},
    "gpt_neox": {"num_key_value_heads": 4},
    "qwen2_moe": EXPERTS | {"shared_expert_intermediate_size": 48},
    "qwen3_moe": EXPERTS | {"norm_topk_prob": True, "head_dim": 16},
    "gemma3_text": {"head_dim": 32, "sliding_window": 8, "sliding_window_pattern": 2},
    "glm": {"head_dim": 16},
    "glm4": {"head_dim": 16},
    "gpt_oss": CHOSEN | {"head_dim": 16, "sliding_window": 8},
    "llama4_text": CHOSEN
    | {
        "head_dim": 16,
        "intermediate_size_mlp": 160,
        "attention_chunk_size": 8,
        "interleave_moe_layer_step": 2,
        "no_rope_layer_interval": 2,
    },
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 20,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 12,
        "first_k_dense_replace": 1,
        "n_routed_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
    "vit": ENCODER | IMAGES,
    "bert": ENCODER,
    "roberta": ENCODER | {"pad_token_id": 1},
}
"""What each has that `SMALL` has not; None: it has no such field."""


def sizes_of(*parts: dict[str, Any]) -> dict[str, Any]:
    """The fields of a tiny config, the later parts' in place of the earlier ones'."""
    joined = {name: value for part in parts for name, value in part.items()}
    return {name: value for name, value in joined.items() if value is not None}


EAGER = ("gemma2", "gpt_oss")
"""Families that transformers runs eager: scores are capped, or heads have sinks."""
RUNS = [(f, a) for f in FAMILIES for a in ("sdpa", "eager") if f not in EAGER or a == "eager"]


@pytest.mark.parametrize(("family", "attention"), RUNS)
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_families(family: str, precision: str, attention: str) -> None:
    config = transformers.AutoConfig.for_model(family, **sizes_of(SMALL, FAMILIES[family]))
    shape = Shape(**shape_fields(config.to_dict(), family, family))
    model = model_of(config, precision, attention)
    for train in ("full", "frozen"):
        for sizes in ((2, 16), (1, 9)):
            model.requires_grad_(train == "full")
            how: dict[str, Any] = {
                "precision": precision,
                "attention": attention,
                "train": train,
            }
            tokens = shape.fixed_sequence or sizes[1]
            for kind in shape.kinds:
                kept = block_activations(kind, sizes[0], tokens, device="cpu", **how)
                found = measured(model, *sizes, place=shape.blocks.index(kind))
                assert found == said(kept), (train, sizes, kind)


@pytest.mark.parametrize("family", ["gemma3_text", "glm4", "phi3", "qwen3"])
def test_families_under_autocast(family: str) -> None:
    config = transformers.AutoConfig.for_model(family, **sizes_of(SMALL, FAMILIES[family]))
    shape = Shape(**shape_fields(config.to_dict(), family, family))
    model = model_of(config, "autocast", "sdpa")
    for kind in shape.kinds:
        kept = block_activations(kind, 2, 16, precision="autocast", device="cpu")
        found = measured(model, 2, 16, autocast=True, place=shape.blocks.index(kind))
        assert found == said(kept), kind


@pytest.mark.parametrize("family", ["glm4", "deepseek_v3", "gpt_oss"])
def test_adapters_of_families(family: str) -> None:
    config = transformers.AutoConfig.for_model(family, **sizes_of(SMALL, FAMILIES[family]))
    shape = Shape(**shape_fields(config.to_dict(), family, family))
    attention, lora = "eager" if family in EAGER else "sdpa", Lora(4, "all", "fp32", 0.1)
    model = model_of(config, "bf16", attention)
    adapt(blocks_of(model)[-1], shape, lora)
    how: dict[str, Any] = {"train": "lora", "lora": lora, "attention": attention}
    kept = block_activations(shape.blocks[-1], 2, 16, device="cpu", **how)
    assert measured(model, 2, 16) == said(kept)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_ends_against_the_profiler(family: str, precision: str) -> None:
    from scheduler.pytorch.profiling.profile import profile

    if family == "llama":
        shape = llama(64, 4, 2, 96, vocabulary=300)
        config = llama_config(shape)
    else:
        shape = gpt2(64, 4, "gelu_new", 0.1, attention_dropout=0.0, vocabulary=300)
        config = transformers.GPT2Config(
            n_embd=64, n_head=4, attn_pdrop=0, bos_token_id=1, eos_token_id=2
        )
    config.vocab_size, config.num_hidden_layers = 300, 2
    model = model_of(config, precision, "sdpa")
    ids = torch.randint(0, 300, (2, 24))
    embedding, *blocks, head = profile(model, {"input_ids": ids, "labels": ids}).layers
    options: dict[str, Any] = {"precision": precision, "device": "cpu"}
    block = block_activations(shape, 2, 24, **options)
    for seen in blocks:
        assert (seen.saved_bytes, seen.input_saved, seen.output_saved, seen.output_bytes) == (
            block.saved_bytes,
            block.input_saved,
            block.output_saved,
            block.output_bytes,
        )
    ours = head_activations(shape, 2, 24, **options).kept
    assert (head.saved_bytes, head.input_saved) == (ours.saved_bytes, ours.input_saved)
    start = embedding_activations(shape, 2, 24, **options)
    # The profiler counts tables and position ids with the input: they outlive every layer.
    made = dict(start.tensors).get("embedding dropout mask", 0)
    made += 24 * 8 * (family == "gpt2")  # but for the ids that the model makes and keeps
    assert (embedding.saved_bytes, embedding.output_bytes) == (made, start.output_bytes)
