"""From the config.json of a transformers model to the fields of a shape, one function a family.

What a family has is read off the modules that transformers 5.24 builds for it; a test compares the
parameter counts. A field that transformers would fill in by a default of its own is asked for,
unless released configs leave it out: a default differs between families, and a wrong count is
worse than a question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scheduler.common.text import shown
from scheduler.memory.errors import InvalidShape, check_choice
from scheduler.memory.shape.config import Config, check_fields

_NESTED = ("text_config", "vision_config", "audio_config", "llm_config", "language_config")
_NOT_WHOLE = ("gpt2", "gpt_neox", "phi3")
"""Families whose rotary need not turn whole heads, or that have none."""
_ALIKE = "only models whose blocks are all alike are known"


def _common(config: Config, *, kv_heads: bool = True, head_dim: bool = False) -> dict[str, Any]:
    """What RMS-normed gated families share; the flags say which fields have to be there."""
    heads = config.size("num_attention_heads")
    width = None if head_dim or config.has("head_dim") else ("hidden_size", "num_attention_heads")
    return {
        "layers": config.size("num_hidden_layers"),
        "width": config.size("hidden_size"),
        "heads": heads,
        "kv_heads": config.size("num_key_value_heads", None if kv_heads else heads),
        "head_width": config.per_head(*width) if width else config.size("head_dim"),
        "vocabulary": config.size("vocab_size"),
        "tied": config.flag("tie_word_embeddings", False),
        "attention_dropout": config.dropout("attention_dropout"),
    }


def _dense(config: Config, activation: str = "hidden_act", **which: bool) -> dict[str, Any]:
    return _common(config, **which) | {
        "mlp_width": config.size("intermediate_size"),
        "activation": config.activation(activation),
    }


def _biased(config: Config) -> dict[str, bool]:
    """What `attention_bias` says of all linear layers around attention."""
    bias = config.flag("attention_bias", False)
    return {"qkv_bias": bias, "output_bias": bias}


def _turned(config: Config, head_width: int, default: float, *names: str) -> dict[str, int]:
    """Features of a head that turn, 0 for all; tables are of pairs, so of an even number."""
    turned = int(head_width * config.share(default, *names))
    return {"rotary_width": 0 if turned == head_width else turned + turned % 2}


def _check_whole_heads(config: Config) -> None:
    """Refuse a share in a family whose rotary turns whole heads."""
    share = config.share(1.0, "partial_rotary_factor")
    if share != 1:
        config.refuse("partial_rotary_factor", share, "this family's rotary turns whole heads")


def _window(config: Config, default: int = 0) -> dict[str, int]:
    """A sliding window in every block; null is none, and where a config says nothing `default`."""
    absent = "sliding_window" not in config.record
    return {"window": config.size("sliding_window", default if absent else 0, least=0)}


def _qwen_window(config: Config, *, alternating: bool = False) -> dict[str, int]:
    """Qwen's window: in the blocks from max_window_layers on, or in some of those before."""
    layers, first = config.size("num_hidden_layers"), config.size("max_window_layers", 28, least=0)
    on, window = config.flag("use_sliding_window", False), _window(config, 4096)["window"]
    kinds = config.get("layer_types")
    if kinds is not None:
        known = ("full_attention", "sliding_attention")
        found = kinds if isinstance(kinds, list) else []
        if len(found) != layers or any(kind not in known for kind in found):
            config.refuse("layer_types", kinds, f"it must name {known} for each of {layers} layers")
        if any(kind != found[0] for kind in found):
            config.refuse("layer_types", kinds, _ALIKE)
        return {"window": window if found[0] == known[1] else 0}
    if on and window and (alternating or 0 < first < layers):
        config.refuse("use_sliding_window", True, f"{_ALIKE}: it is on in some; say false")
    return {"window": window if on and not first else 0}


def _llama(config: Config) -> dict[str, Any]:
    biases = _biased(config) | {"mlp_bias": config.flag("mlp_bias", False)}
    return _dense(config, kv_heads=False) | biases


def _mistral(config: Config) -> dict[str, Any]:
    return _dense(config) | _window(config, 4096)


def _qwen2(config: Config) -> dict[str, Any]:
    config.only("attention_bias", True, "queries, keys and values of this family have one")
    return _dense(config) | _qwen_window(config) | {"qkv_bias": True}


def _qwen3(config: Config) -> dict[str, Any]:
    made = _biased(config) | {"qk_norm": True}
    return _dense(config, head_dim=True) | _qwen_window(config) | made


def _gemma(config: Config, activation: str = "hidden_act") -> dict[str, Any]:
    tied = {"tied": config.flag("tie_word_embeddings", True)}
    return _dense(config, activation, head_dim=True) | _biased(config) | tied


def _gemma2(config: Config) -> dict[str, Any]:
    for field in ("attn_logit_softcapping", "final_logit_softcapping"):
        # Where a config says nothing, transformers caps.
        if not config.get(field, 1.0):
            config.refuse(field, config.get(field), "only models that cap with a tanh are known")
    # The outputs of attention and MLP are normed too.
    return _gemma(config, "hidden_activation") | {"norms": 4}


def _phi3(config: Config) -> dict[str, Any]:
    fields = _dense(config, kv_heads=False) | _window(config)
    turned = _turned(config, fields["head_width"], 1.0, "partial_rotary_factor")
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
        | _turned(config, fields["head_width"], 0.25, "rotary_pct", "partial_rotary_factor")
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


def _experts(config: Config, *fields: str) -> dict[str, Any]:
    # Configs name the number of experts in two ways, also within a family.
    found = [field for field in fields if config.has(field)] or [fields[0]]
    experts = config.size(found[0])
    for field in found:
        config.only(field, experts, f"{found[0]} is {experts}; remove one of them")
    return {
        "experts": experts,
        "experts_per_token": config.size("num_experts_per_tok"),
        "activation": config.activation("hidden_act"),
    }


def _mixtral(config: Config) -> dict[str, Any]:
    return (
        _common(config)
        | _experts(config, "num_local_experts", "num_experts")
        | _window(config)
        | {"mlp_width": config.size("intermediate_size")}
    )


def _qwen_moe(config: Config) -> dict[str, Any]:
    dense, step = config.get("mlp_only_layers"), config.size("decoder_sparse_step", 1)
    if dense:
        config.refuse("mlp_only_layers", dense, _ALIKE)
    if step != 1:
        config.refuse("decoder_sparse_step", step, "only experts in every block are known")
    return (
        _common(config)
        | _experts(config, "num_experts", "num_local_experts")
        | {
            "mlp_width": config.size("moe_intermediate_size"),
            "shares_divided": config.flag("norm_topk_prob", False),
        }
    )


def _qwen2_moe(config: Config) -> dict[str, Any]:
    return (
        _qwen_moe(config)
        | _qwen_window(config, alternating=True)
        | {
            "shared_expert_width": config.size("shared_expert_intermediate_size"),
            "qkv_bias": config.flag("qkv_bias", True),
        }
    )


def _qwen3_moe(config: Config) -> dict[str, Any]:
    made = _biased(config) | {"qk_norm": True}
    # The window is in every block, whatever max_window_layers says.
    config.get("max_window_layers")
    window = _window(config, 4096)
    if not config.flag("use_sliding_window", False):
        window = {}
    return _qwen_moe(config) | window | made


FAMILIES: dict[str, Callable[[Config], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "phi3": _phi3,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
}
"""Which model_type is read by what."""


def shape_fields(record: object, name: str, where: str) -> dict[str, Any]:
    """The fields of a shape called `name`, from a config; `where` is how errors call it.

    A released config has dozens of fields about tokens, generation and versions. Those that no
    size depends on are listed (`config`) and ignored; any other that the family does not read is
    refused, since it may change the memory unseen.
    """
    if not isinstance(record, Mapping):
        raise InvalidShape(
            f"{where} must be one JSON object with a model_type, got {shown(record)}"
        )
    if "model_type" not in record:
        raise InvalidShape(f"{where} has no 'model_type'; choose one of {', '.join(FAMILIES)}")
    nested = next((field for field in _NESTED if isinstance(record.get(field), Mapping)), None)
    if nested is not None:
        raise InvalidShape(
            f"{where} is of a model with parts ({nested!r}), model_type "
            f"{shown(record['model_type'])}; pass the config of its text decoder alone"
        )
    family = check_choice(f"model_type of {where}", record["model_type"], FAMILIES, InvalidShape)
    config = Config(record, where)
    if family not in _NOT_WHOLE:
        _check_whole_heads(config)
    fields = FAMILIES[family](config)
    check_fields(config, family)
    return fields | {"name": name, "family": family}
