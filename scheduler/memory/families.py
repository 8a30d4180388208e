"""From the config.json of a transformers model to the fields of a shape, one function a family.

What a family has is read off the modules that transformers 5.24 builds for it; a test compares the
parameter counts. A field that transformers would fill in by a default of its own is asked for,
unless released configs leave it out: a default differs between families, and a wrong count is
worse than a question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scheduler.memory.checks import check_choice, check_count, check_flag
from scheduler.memory.errors import InvalidShape
from scheduler.text import shown

__all__ = ["FAMILIES", "shape_fields"]

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_new": "gelu_new",
}
_NESTED = ("text_config", "vision_config", "audio_config", "llm_config", "language_config")


class _Config:
    """A config, each field asked for by name and checked."""

    def __init__(self, record: Mapping[str, object], where: str) -> None:
        self.record = record
        self.where = where

    def has(self, field: str) -> bool:
        return self.record.get(field) is not None

    def size(self, field: str, default: int | None = None, least: int = 1) -> int:
        """A size; `default` serves where the field is absent or null."""
        if not self.has(field):
            if default is not None:
                return default
            raise InvalidShape(
                f"{self.where} has no {field!r}, which the model_type "
                f"{shown(self.record.get('model_type'))} needs; add it"
            )
        return check_count(f"{field} of {self.where}", self.record[field], InvalidShape, least)

    def flag(self, field: str, default: bool) -> bool:
        if not self.has(field):
            return default
        return check_flag(f"{field} of {self.where}", self.record[field], InvalidShape)

    def activation(self, field: str) -> str:
        if not self.has(field):
            self.size(field)
        what = f"{field} of {self.where}"
        return _ACTIVATIONS[check_choice(what, self.record[field], _ACTIVATIONS, InvalidShape)]

    def per_head(self, width: str, heads: str) -> int:
        """The width of a head where nothing says it: the heads share the model's width."""
        if self.size(width) % self.size(heads):
            raise InvalidShape(
                f"{width} of {self.where}, {self.size(width)}, is not a multiple of its "
                f"{self.size(heads)} heads ({heads}); make it one"
            )
        return self.size(width) // self.size(heads)

    def refuse(self, field: str, value: object, why: str) -> None:
        raise InvalidShape(f"{field} of {self.where} is {shown(value)}: {why}")


def _common(config: _Config, *, kv_heads: bool = True, head_dim: bool = False) -> dict[str, Any]:
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
        "attention_dropout": config.record.get("attention_dropout") or 0.0,
    }


def _dense(config: _Config, **which: bool) -> dict[str, Any]:
    return _common(config, **which) | {
        "mlp_width": config.size("intermediate_size"),
        "activation": config.activation("hidden_act"),
    }


def _llama(config: _Config) -> dict[str, Any]:
    bias = config.flag("attention_bias", False)
    return _dense(config, kv_heads=False) | {
        "qkv_bias": bias,
        "output_bias": bias,
        "mlp_bias": config.flag("mlp_bias", False),
    }


def _mistral(config: _Config) -> dict[str, Any]:
    return _dense(config)


def _qwen2(config: _Config) -> dict[str, Any]:
    return _dense(config) | {"qkv_bias": True}


def _qwen3(config: _Config) -> dict[str, Any]:
    bias = config.flag("attention_bias", False)
    return _dense(config, head_dim=True) | {"qkv_bias": bias, "output_bias": bias, "qk_norm": True}


def _gemma(config: _Config, activation: str = "hidden_act") -> dict[str, Any]:
    bias = config.flag("attention_bias", False)
    return _common(config, head_dim=True) | {
        "mlp_width": config.size("intermediate_size"),
        "activation": config.activation(activation),
        "qkv_bias": bias,
        "output_bias": bias,
        "tied": config.flag("tie_word_embeddings", True),
    }


def _gemma2(config: _Config) -> dict[str, Any]:
    # The outputs of attention and MLP are normed too.
    return _gemma(config, "hidden_activation") | {"norms": 4}


def _phi3(config: _Config) -> dict[str, Any]:
    # transformers keeps embd_pdrop but applies only resid_pdrop.
    return _dense(config, kv_heads=False) | {"dropout": config.record.get("resid_pdrop") or 0.0}


def _layer_normed(config: _Config, heads: str, mlp_width: int) -> dict[str, Any]:
    return {
        "heads": config.size(heads),
        "kv_heads": config.size(heads),
        "mlp_width": mlp_width,
        "vocabulary": config.size("vocab_size"),
        "gated": False,
        "norm": "layer",
        "norm_bias": True,
        "mlp_bias": True,
    }


def _gpt2(config: _Config) -> dict[str, Any]:
    if config.flag("add_cross_attention", False):
        config.refuse("add_cross_attention", True, "only decoders without an encoder are known")
    # Where a config says nothing, transformers drops a tenth.
    residual, embedding, attention = (
        config.record.get(field, 0.1) or 0.0
        for field in ("resid_pdrop", "embd_pdrop", "attn_pdrop")
    )
    if bool(residual) != bool(embedding):
        config.refuse("embd_pdrop", embedding, f"resid_pdrop is {residual}; drop at both or none")
    width = config.size("n_embd")
    return _layer_normed(config, "n_head", config.size("n_inner", 4 * width)) | {
        "layers": config.size("n_layer"),
        "width": width,
        "head_width": config.per_head("n_embd", "n_head"),
        "positions": config.size("n_positions"),
        "activation": config.activation("activation_function"),
        "qkv_bias": True,
        "output_bias": True,
        "tied": config.flag("tie_word_embeddings", True),
        "dropout": residual,
        "attention_dropout": attention,
    }


def _gpt_neox(config: _Config) -> dict[str, Any]:
    bias = config.flag("attention_bias", True)
    heads = "num_attention_heads"
    return _layer_normed(config, heads, config.size("intermediate_size")) | {
        "layers": config.size("num_hidden_layers"),
        "width": config.size("hidden_size"),
        "head_width": config.per_head("hidden_size", heads),
        "activation": config.activation("hidden_act"),
        "qkv_bias": bias,
        "output_bias": bias,
        "tied": config.flag("tie_word_embeddings", False),
        "parallel": config.flag("use_parallel_residual", True),
        "dropout": config.record.get("hidden_dropout") or 0.0,
        "attention_dropout": config.record.get("attention_dropout") or 0.0,
    }


def _experts(config: _Config, *fields: str) -> dict[str, Any]:
    # Configs name the number of experts in two ways, also within a family.
    field = next((field for field in fields if config.has(field)), fields[0])
    return {
        "experts": config.size(field),
        "experts_per_token": config.size("num_experts_per_tok"),
        "activation": config.activation("hidden_act"),
    }


def _mixtral(config: _Config) -> dict[str, Any]:
    return (
        _common(config)
        | _experts(config, "num_local_experts", "num_experts")
        | {"mlp_width": config.size("intermediate_size")}
    )


def _qwen_moe(config: _Config) -> dict[str, Any]:
    dense, step = config.record.get("mlp_only_layers"), config.size("decoder_sparse_step", 1)
    if dense:
        config.refuse("mlp_only_layers", dense, "only models whose blocks are all alike are known")
    if step != 1:
        config.refuse("decoder_sparse_step", step, "only experts in every block are known")
    return (
        _common(config)
        | _experts(config, "num_experts", "num_local_experts")
        | {"mlp_width": config.size("moe_intermediate_size")}
    )


def _qwen2_moe(config: _Config) -> dict[str, Any]:
    return _qwen_moe(config) | {
        "shared_expert_width": config.size("shared_expert_intermediate_size"),
        "qkv_bias": config.flag("qkv_bias", True),
    }


def _qwen3_moe(config: _Config) -> dict[str, Any]:
    bias = config.flag("attention_bias", False)
    return _qwen_moe(config) | {"qkv_bias": bias, "output_bias": bias, "qk_norm": True}


_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")

FAMILIES: dict[str, Callable[[_Config], dict[str, Any]]] = {
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

    Fields that no formula reads are ignored, whatever they are: a released config has dozens about
    tokens, generation and versions. Refused are those that would change the sizes unseen.

    Raises
    ------
    InvalidShape
        A needed field is missing, or the model_type is not one of `FAMILIES`; or the weights are
        quantised, or a dense family has experts.
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
    config = _Config(record, where)
    if config.has("quantization_config"):
        config.refuse(
            "quantization_config",
            record["quantization_config"],
            "quantised weights are not read from a config; remove it, and say how frozen weights "
            "are stored by base='nf4'",
        )
    fields = FAMILIES[family](config)
    odd = next((field for field in _EXPERTS if record.get(field)), None)
    if odd is not None and not fields.get("experts"):
        config.refuse(
            odd,
            record[odd],
            f"the model_type {family!r} has no experts; correct the model_type, or remove it",
        )
    return fields | {"name": name, "family": family}
