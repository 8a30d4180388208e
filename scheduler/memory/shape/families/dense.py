"""Families with one MLP in each block, one function each."""

from __future__ import annotations

from typing import Any

from scheduler.memory.shape.config import Config
from scheduler.memory.shape.families.parts import (
    biased,
    gated,
    one_window,
    turned_part,
    windows,
)


def _llama(config: Config) -> dict[str, Any]:
    biases = biased(config) | {"mlp_bias": config.flag("mlp_bias", False)}
    return gated(config, kv_heads=False) | biases


def _mistral(config: Config) -> dict[str, Any]:
    return gated(config) | one_window(config, 4096)


def _qwen_window(config: Config) -> dict[str, Any]:
    """Qwen's window: in the blocks from max_window_layers on."""
    first, window = (
        config.size("max_window_layers", 28, least=0),
        one_window(config, 4096)["window"],
    )
    on = config.flag("use_sliding_window", False)
    return windows(config, window, lambda i: on and i >= first)


def _qwen2(config: Config) -> dict[str, Any]:
    config.only("attention_bias", True, "queries, keys and values of this family have one")
    return gated(config) | _qwen_window(config) | {"qkv_bias": True}


def _qwen3(config: Config) -> dict[str, Any]:
    made = biased(config) | {"qk_norm": True}
    return gated(config, head_dim=True) | _qwen_window(config) | made


def _gemma(config: Config, activation: str = "hidden_act") -> dict[str, Any]:
    tied = {"tied": config.flag("tie_word_embeddings", True)}
    return gated(config, activation, head_dim=True) | biased(config) | tied


def _gemma2(config: Config) -> dict[str, Any]:
    for field in ("attn_logit_softcapping", "final_logit_softcapping"):
        # Where a config says nothing, transformers caps.
        if not config.get(field, 1.0):
            config.refuse(field, config.get(field), "only models that cap with a tanh are known")
    # The outputs of attention and MLP are normed too.
    window = windows(config, one_window(config, 4096)["window"], lambda i: i % 2 == 0)
    return _gemma(config, "hidden_activation") | window | {"norms": 4}


def _gemma3(config: Config) -> dict[str, Any]:
    for field in ("attn_logit_softcapping", "final_logit_softcapping"):
        config.only(field, None, "only models of this family that cap nothing are known")
    pattern = config.size("sliding_window_pattern", 6)
    config.get("_sliding_window_pattern")
    window = windows(config, one_window(config, 4096)["window"], lambda i: bool((i + 1) % pattern))
    made = {"norms": 4, "qk_norm": True}
    return _gemma(config, "hidden_activation") | window | made


def _glm(config: Config) -> dict[str, Any]:
    fields = gated(config, head_dim=True)
    turned = turned_part(config, fields["head_width"], 0.5, "partial_rotary_factor")
    return fields | turned | {"qkv_bias": config.flag("attention_bias", True)}


def _glm4(config: Config) -> dict[str, Any]:
    # The outputs of attention and MLP are normed too.
    return _glm(config) | {"norms": 4}


def _phi3(config: Config) -> dict[str, Any]:
    fields = gated(config, kv_heads=False) | one_window(config)
    turned = turned_part(config, fields["head_width"], 1.0, "partial_rotary_factor")
    # transformers keeps embd_pdrop but applies only resid_pdrop.
    return fields | turned | {"dropout": config.dropout("resid_pdrop")}


def _layer_normed(config: Config, width: str, heads: str, mlp_width: int) -> dict[str, Any]:
    count, head_width = config.size(heads), config.per_head(width, heads)
    config.only("num_key_value_heads", count, "in this family each head has its own keys")
    config.only("head_dim", head_width, f"in this family it is {width} over {heads}")
    return {
        "width": config.size(width),
        "heads": count,
        "kv_heads": count,
        "head_width": head_width,
        "mlp_width": mlp_width,
        "vocabulary": config.size("vocab_size"),
        "gated": False,
        "norm": "layer",
        "norm_bias": True,
        "mlp_bias": True,
    }


def _gpt2(config: Config) -> dict[str, Any]:
    # Where a config says nothing, transformers drops a tenth.
    residual, embedding, attention = (
        config.dropout(field, 0.1) for field in ("resid_pdrop", "embd_pdrop", "attn_pdrop")
    )
    if bool(residual) != bool(embedding):
        config.refuse("embd_pdrop", embedding, f"resid_pdrop is {residual}; drop at both or none")
    mlp_width = config.size("n_inner", 4 * config.size("n_embd"))
    return _layer_normed(config, "n_embd", "n_head", mlp_width) | {
        "layers": config.size("n_layer"),
        "positions": config.size("n_positions"),
        "activation": config.activation("activation_function"),
        "qkv_bias": True,
        "output_bias": True,
        "tied": config.flag("tie_word_embeddings", True),
        "dropout": residual,
        "attention_dropout": attention,
    }


def _gpt_neox(config: Config) -> dict[str, Any]:
    bias = config.flag("attention_bias", True)
    sizes = ("hidden_size", "num_attention_heads", config.size("intermediate_size"))
    fields = _layer_normed(config, *sizes)
    return (
        fields
        | turned_part(config, fields["head_width"], 0.25, "rotary_pct", "partial_rotary_factor")
        | {
            "layers": config.size("num_hidden_layers"),
            "activation": config.activation("hidden_act"),
            "qkv_bias": bias,
            "output_bias": bias,
            "tied": config.flag("tie_word_embeddings", False),
            "parallel": config.flag("use_parallel_residual", True),
            "dropout": config.dropout("hidden_dropout"),
            "attention_dropout": config.dropout("attention_dropout"),
        }
    )


FAMILIES = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "glm": _glm,
    "glm4": _glm4,
    "phi3": _phi3,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
}
