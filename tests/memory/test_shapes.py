"""Shapes against the models that transformers builds from the same configs."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.common.errors import SchedulerError
from scheduler.memory.errors import InvalidShape
from scheduler.memory.shape.families.table import FAMILIES
from scheduler.memory.shape.load import load_shape, shape_names
from scheduler.memory.shape.shape import Shape
from tests.memory.models import kind_of

KNOWN = {
    "bert-base-uncased": 109_514_298,
    "deepseek-v3": 671_026_404_352,
    "gemma-3-1b": 999_885_952,
    "glm-4-9b-0414": 9_400_279_040,
    "gpt2": 124_439_808,
    "gpt-oss-20b": 20_914_757_184,
    "llama-3-70b": 70_553_706_496,
    "llama-3-8b": 8_030_261_248,
    "llama-7b": 6_738_415_616,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-72b": 72_706_203_648,
    "roberta-base": 124_697_433,
    "t5-small": 60_506_624,
    "vit-base-patch16-224": 86_567_656,
}
BIASED: tuple[str, ...] = (
    "llama",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm",
    "glm4",
    "qwen3_moe",
    "gpt_oss",
)
BIASED += ("llama4_text",)
OWN_HEADS = ("qwen3", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "gpt_oss", "llama4_text")
LLAMA = Shape("tiny", "llama", 2, 64, 4, 2, 16, 96, 128)


def config_of(name: str) -> dict[str, Any]:
    file = resources.files("scheduler") / "memory" / "shape" / "configs" / f"{name}.json"
    record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return record


def build(config: dict[str, Any]) -> torch.nn.Module:
    """The model of a config, without storage."""
    built = transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):
        model: torch.nn.Module = kind_of(built).from_config(built)
    return model


def size(model: torch.nn.Module, *parts: str) -> int:
    """Parameters whose name has one of `parts` in it; all where none is given."""
    named = list(model.named_parameters())
    return sum(p.numel() for name, p in named if not parts or any(part in name for part in parts))


def test_names() -> None:
    assert shape_names() == sorted(KNOWN)


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_shipped(name: str) -> None:
    shape = load_shape(name)
    assert shape.name == name
    assert shape.parameters == KNOWN[name] == size(build(config_of(name)))


@st.composite
def configs(draw: st.DrawFn, family: str) -> dict[str, Any]:
    """A small config of a family, every field that matters drawn."""
    kv_heads = draw(st.integers(1, 3))
    heads = kv_heads * draw(st.integers(1, 3))
    width = heads * 2 * draw(st.integers(1, 6))
    size, flag = st.integers(1, 40), st.booleans()
    common = {
        "model_type": family,
        "vocab_size": draw(st.integers(3, 50)),
        "tie_word_embeddings": draw(flag),
    }
    if family == "gpt2":
        return common | {
            "n_embd": width,
            "n_layer": draw(st.integers(1, 3)),
            "n_head": heads,
            "n_inner": draw(st.none() | size),
            "n_positions": draw(size),
            "activation_function": "gelu_new",
        }
    if family == "t5":
        return common | {
            "d_model": width,
            "d_kv": draw(size),
            "d_ff": draw(size),
            "num_layers": draw(st.integers(2, 3)),
            "num_decoder_layers": draw(st.none() | st.integers(2, 3)),
            "num_heads": heads,
            "relative_attention_num_buckets": 2 * draw(size),
            "feed_forward_proj": draw(st.sampled_from(["relu", "gated-gelu", "gated-silu"])),
        }
    if family in ("vit", "bert", "roberta"):
        return draw(encoders(family, width, heads))
    record = common | {
        "hidden_size": width,
        "intermediate_size": draw(size),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "num_attention_heads": heads,
        "hidden_act": "gelu",
        "pad_token_id": None,
    }
    if family == "gpt_neox":
        return record | {"attention_bias": draw(flag), "use_parallel_residual": draw(flag)}
    record["num_key_value_heads"] = kv_heads
    if family == "deepseek_v3":
        return record | draw(latents(heads))
    if family in BIASED:
        record["attention_bias"] = draw(flag)
    if family in OWN_HEADS or (family != "phi3" and draw(flag)):
        record["head_dim"] = 2 * draw(st.integers(1, 9))
    if family == "llama":
        record["mlp_bias"] = draw(flag)
    if family in ("gemma2", "gemma3_text"):
        record["hidden_activation"] = "gelu_pytorch_tanh"
    if family in ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "llama4_text"):
        experts = draw(st.integers(1, 5))
        field = "num_experts" if "qwen" in family else "num_local_experts"
        record |= {field: experts, "num_experts_per_tok": draw(st.integers(1, experts))}
    if family in ("qwen2_moe", "qwen3_moe"):
        record["moe_intermediate_size"] = draw(size)
        record |= {"decoder_sparse_step": draw(st.integers(1, 2))}
        record |= {"mlp_only_layers": draw(st.lists(st.integers(0, 2), max_size=2))}
    if family == "llama4_text":
        record |= {"intermediate_size_mlp": draw(size), "use_qk_norm": draw(flag)}
        every = st.integers(1, 3)
        record |= {"interleave_moe_layer_step": draw(every), "no_rope_layer_interval": draw(every)}
    if family == "qwen2_moe":
        record |= {"shared_expert_intermediate_size": draw(size), "qkv_bias": draw(flag)}
    return record


@st.composite
def latents(draw: st.DrawFn, heads: int) -> dict[str, Any]:
    size, experts = st.integers(1, 40), draw(st.integers(1, 5))
    return {
        "num_key_value_heads": heads,
        "q_lora_rank": draw(st.none() | size),
        "kv_lora_rank": draw(size),
        "qk_rope_head_dim": 2 * draw(st.integers(1, 9)),
        "qk_nope_head_dim": draw(size),
        "v_head_dim": draw(size),
        "first_k_dense_replace": draw(st.integers(0, 3)),
        "n_routed_experts": experts,
        "n_shared_experts": draw(st.integers(1, 2)),
        "num_experts_per_tok": draw(st.integers(1, experts)),
        "moe_intermediate_size": draw(size),
        "n_group": 1,
        "topk_group": 1,
    }


@st.composite
def encoders(draw: st.DrawFn, family: str, width: int, heads: int) -> dict[str, Any]:
    size, flag = st.integers(1, 40), st.booleans()
    record = {
        "model_type": family,
        "hidden_size": width,
        "intermediate_size": draw(size),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "num_attention_heads": heads,
        "hidden_act": "gelu",
    }
    if family != "vit":
        return record | {
            "vocab_size": draw(st.integers(3, 50)),
            "max_position_embeddings": 2 + draw(size),
            "type_vocab_size": draw(st.integers(1, 3)),
            "tie_word_embeddings": draw(flag),
        }
    patch = draw(st.integers(1, 9))
    sides = st.integers(patch, 40)
    return record | {
        "patch_size": draw(st.sampled_from([patch, [patch, patch]])),
        "image_size": draw(sides | st.lists(sides, min_size=2, max_size=2)),
        "num_channels": draw(st.integers(1, 4)),
        "qkv_bias": draw(flag),
        "num_labels": draw(st.integers(2, 9)),
    }


@pytest.mark.parametrize("family", sorted(FAMILIES))
@given(data=st.data())
@settings(deadline=None, max_examples=25)
def test_counts_equal_the_built_model(family: str, data: st.DataObject) -> None:
    config = data.draw(configs(family))
    shape, model = load_shape(config), build(config)
    assert shape.parameters == size(model)
    if family == "t5":
        return
    tables = ("embed_tokens", "wte", "wpe", "embed_in", ".embeddings.")
    assert shape.embedding_parameters == size(model, *tables)
    routed = (".mlp.experts.", ".feed_forward.experts.")
    idle = 0.0
    for i, block in enumerate(shape.blocks):
        at = f"layers.{i}."
        assert block.block_parameters == size(model, at, f".h.{i}.", f".layer.{i}.")
        attention = [f"{at}self_attn", f"{at}attention.", f".h.{i}.attn"]
        attention += [f".layer.{i}.attention.self", f".layer.{i}.attention.output.dense"]
        assert block.attention_parameters == size(model, *attention)
        mlp = [f"{at}mlp", f"{at}feed_forward", f".h.{i}.mlp"]
        mlp += [f".layer.{i}.intermediate", f".layer.{i}.output.dense"]
        assert block.mlp_parameters == size(model, *mlp)
        if block.experts:
            unchosen = 1 - block.experts_per_token / block.experts
            idle += unchosen * size(model, *(f"layers.{i}{name}" for name in routed))
    assert shape.routed_parameters == size(model, *routed)
    assert shape.active_parameters == shape.parameters - round(idle)
    # What transformers writes to config.json is read back, fields it renames included.
    assert load_shape(json.loads(model.config.to_json_string())) == shape  # type: ignore[union-attr, operator]


def test_factored_statistics() -> None:
    """As many numbers as the Adafactor of transformers keeps."""
    config = dict.fromkeys(("hidden_size", "num_attention_heads", "num_key_value_heads"), 8)
    record = {"model_type": "qwen2", "hidden_act": "silu", "vocab_size": 20} | config
    record |= {"num_hidden_layers": 2, "intermediate_size": 12, "pad_token_id": None}
    assert load_shape(record).factored_statistics == factored(build(record))


@pytest.mark.parametrize("name", ["vit-base-patch16-224", "bert-base-uncased", "t5-small"])
def test_factored_statistics_of_encoders(name: str) -> None:
    assert load_shape(name).factored_statistics == factored(build(config_of(name)))


def factored(model: torch.nn.Module) -> int:
    """Sums of rows and of columns, those of the last two dimensions; vectors as they are."""
    shapes = [p.shape for p in model.parameters()]
    rows = sum(s[:-1].numel() for s in shapes)
    return rows + sum(s[:-2].numel() * s[-1] if len(s) > 1 else s[0] - 1 for s in shapes)


def test_mixtral_active_parameters() -> None:
    # The figure of Mistral's paper (arXiv:2401.04088): 13B of 47B.
    assert round(load_shape("mixtral-8x7b").active_parameters / 1e9) == 13


def test_sources(tmp_path: Path) -> None:
    shape = load_shape("llama-3-8b")
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_of("llama-3-8b")), encoding="utf-8")
    other = tmp_path / "other.json"
    other.write_text(json.dumps(config_of("llama-3-8b")), encoding="utf-8")
    assert load_shape(shape) is shape
    assert load_shape("Llama-3-8B") == shape
    assert load_shape(config_of("llama-3-8b")) == replace(shape, name="llama")
    for source in (folder, str(folder), folder / "config.json", str(folder / "config.json")):
        assert load_shape(source) == replace(shape, name="my-model")
    assert load_shape(str(other)) == replace(shape, name="other")


def test_defaults_of_released_configs() -> None:
    # The first Llama's config has no number of key-value heads, Llama 3's a null head_dim.
    config = config_of("llama-7b")
    del config["num_key_value_heads"], config["tie_word_embeddings"]
    assert load_shape(config | {"head_dim": None}) == replace(load_shape("llama-7b"), name="llama")


def test_numpy_sizes_become_plain() -> None:
    shape = replace(LLAMA, layers=np.int64(2), width=64.0)  # type: ignore[arg-type]
    assert (type(shape.layers), type(shape.width)) == (int, int)
    assert shape == LLAMA


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"layers": 0}, "layers of shape 'tiny' must be a whole number >= 1, got 0"),
        ({"width": -64}, "width of shape 'tiny' must be a whole number >= 1, got -64"),
        ({"vocabulary": 1.5}, "vocabulary of shape 'tiny' must be a whole number >= 1, got 1.5"),
        ({"positions": -1}, "positions of shape 'tiny' must be a whole number >= 0, got -1"),
        ({"heads": True}, "heads of shape 'tiny' must be a whole number >= 1, got True"),
        (
            {"kv_heads": 3},
            "kv_heads of shape 'tiny' must divide its 4 heads, got 3; choose 1, 2, 4",
        ),
        (
            {"activation": "gleu"},
            "activation of shape 'tiny' must be one of 'silu', 'gelu', 'gelu_new', 'relu', got "
            "'gleu'; did you mean 'gelu'?",
        ),
        ({"norm": "batch"}, "norm of shape 'tiny' must be one of 'rms', 'layer', got 'batch'"),
        ({"norms": 3}, "norms of shape 'tiny' must be 2 or 4, got 3"),
        ({"gated": 1}, "gated of shape 'tiny' must be True or False, got 1"),
        ({"dropout": 1.0}, "dropout of shape 'tiny' must be at least 0 and below 1, got 1.0"),
        ({"name": 3}, "a shape's name must be text, got 3"),
        ({"layers": 2_001}, "layers of shape 'tiny' must be at most 2,000, got 2001; no"),
        ({"experts_per_token": 2}, "experts_per_token of shape 'tiny' is 2 but it has no experts"),
        (
            {"experts": 4, "experts_per_token": 5},
            "experts_per_token of shape 'tiny' must be from 1 to its 4 experts, got 5",
        ),
    ],
)
def test_bad_shape(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidShape) as info:
        replace(LLAMA, **change)
    assert sentence in str(info.value)
    assert isinstance(info.value, SchedulerError)
    assert isinstance(info.value, ValueError)


TINY = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_act": "silu",
}


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("lama-7b", "there is no shape 'lama-7b'; did you mean 'llama-7b'? (the shapes are bert"),
        ("nowhere/config.json", "there is no config 'nowhere/config.json'; check the path"),
        (7, "a shape is loaded from a name, a path or a config, got 7"),
        ({"vocab_size": 3}, "the config has no 'model_type'; choose one of llama, mistral, qwen2"),
        (TINY | {"model_type": "qwen4"}, "got 'qwen4'; did you mean 'qwen"),
        (TINY | {"model_type": "bart"}, "model_type of the config must be one of 'llama', "),
        (
            {"model_type": "llava", "text_config": TINY, "vision_config": {}},
            "the config is of a model with parts ('text_config'), model_type 'llava'; pass the "
            "config of its text decoder alone",
        ),
        (
            {key: value for key, value in TINY.items() if key != "hidden_size"},
            "the config has no 'hidden_size', which the model_type 'llama' needs; add it",
        ),
        (TINY | {"model_type": "mistral"}, "the config has no 'num_key_value_heads', which"),
        (TINY | {"num_hidden_layers": 0}, "num_hidden_layers of the config must be a whole number"),
        (
            TINY | {"num_attention_heads": 5},
            "hidden_size of the config, 64, is not a multiple of its 5 heads",
        ),
        (TINY | {"num_key_value_heads": 3}, "kv_heads of shape 'llama' must divide its 4 heads"),
        (TINY | {"hidden_act": "mish"}, "hidden_act of the config must be one of 'silu', 'swish'"),
        (TINY | {"attention_bias": 1}, "attention_bias of the config must be True or False, got 1"),
        (
            config_of("gpt2") | {"embd_pdrop": 0.0},
            "embd_pdrop of the config is 0.0: resid_pdrop is 0.1; drop at both or none",
        ),
        (
            config_of("gpt2") | {"add_cross_attention": True},
            "add_cross_attention of the config is True: only decoders without an encoder are known",
        ),
        (
            TINY | {"quantization_config": {"bits": 4}},
            "quantization_config of the config is {'bits': 4}: quantised weights are not read",
        ),
        (
            TINY | {"num_local_experts": 8},
            "num_local_experts of the config is 8: the model_type 'llama' has no experts",
        ),
        (TINY | {"num_experts": 4}, "num_experts of the config is 4: the model_type 'llama' has"),
        (
            TINY | {"model_type": "qwen2_moe", "mlp_only_layers": 1},
            "mlp_only_layers of the config is 1: it must be a list of blocks",
        ),
    ],
)
def test_bad_config(source: Any, sentence: str) -> None:
    with pytest.raises(InvalidShape) as info:
        load_shape(source)
    assert sentence in str(info.value)
    assert "\n" not in str(info.value)


def test_what_no_size_depends_on_is_ignored() -> None:
    more = {"bos_token_id": 1, "num_experts": 0, "quantization_config": None}
    assert load_shape(TINY | more) == load_shape(TINY)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "line 1, column 1: this is not valid JSON: the file is empty"),
        ("[1]", "must be one JSON object with a model_type, got [1]"),
        ('{"model_type": "llama", "model_type": "qwen2"}', "the key 'model_type' appears twice"),
    ],
)
def test_bad_file(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidShape) as info:
        load_shape(path)
    assert sentence in str(info.value)
    assert "config.json" in str(info.value)


def test_blocks_that_differ() -> None:
    shape = replace(LLAMA, layers=3, by_block={"window": [8, 8, 0], "mlp_width": [96, 96, 96]})
    assert shape.by_block == (("window", (8, 8, 0)),)
    assert [block.window for block in shape.blocks] == [8, 8, 0]
    assert list(shape.kinds.values()) == [2, 1]
    assert (shape.window, shape.mlp_width) == (0, 96)
    # Fields that are the same everywhere are fields like any other.
    assert replace(LLAMA, by_block={"window": (8, 8)}) == replace(LLAMA, window=8)
    wider = replace(LLAMA, by_block={"mlp_width": (96, 192)})
    more = 3 * 64 * 96
    assert wider.parameters == LLAMA.parameters + more
    assert wider.blocks[1].block_parameters == LLAMA.block_parameters + more


@pytest.mark.parametrize(
    ("by_block", "sentence"),
    [
        ({"window": [8]}, "by_block of shape 'tiny' has 1 values of window; give one for each of"),
        ({"vocabulary": [1, 2]}, "a field of by_block of shape 'tiny' must be one of"),
        ({"window": 8}, "window in by_block of shape 'tiny' must be a list of one value for each"),
        ({"window": [8, -1]}, "window of shape 'tiny' must be a whole number >= 0, got -1"),
        ({"experts": [0, 4]}, "experts_per_token of shape 'tiny' must be from 1 to its 4 experts"),
        (5, "by_block of shape 'tiny' must be a mapping of fields, got 5"),
    ],
)
def test_blocks_that_cannot_be(by_block: Any, sentence: str) -> None:
    with pytest.raises(InvalidShape) as info:
        replace(LLAMA, by_block=by_block)
    assert sentence in str(info.value)
