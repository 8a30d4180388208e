"""Families with a mixture of experts, one function each."""

from __future__ import annotations

from typing import Any

from scheduler.memory.shape.config import Config
from scheduler.memory.shape.families.parts import ALIKE, biased, common, one_window, qwen_window


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
        common(config)
        | _experts(config, "num_local_experts", "num_experts")
        | one_window(config)
        | {"mlp_width": config.size("intermediate_size")}
    )


def _qwen_moe(config: Config) -> dict[str, Any]:
    dense, step = config.get("mlp_only_layers"), config.size("decoder_sparse_step", 1)
    if dense:
        config.refuse("mlp_only_layers", dense, ALIKE)
    if step != 1:
        config.refuse("decoder_sparse_step", step, "only experts in every block are known")
    return (
        common(config)
        | _experts(config, "num_experts", "num_local_experts")
        | {
            "mlp_width": config.size("moe_intermediate_size"),
            "shares_divided": config.flag("norm_topk_prob", False),
        }
    )


def _qwen2_moe(config: Config) -> dict[str, Any]:
    return (
        _qwen_moe(config)
        | qwen_window(config, alternating=True)
        | {
            "shared_expert_width": config.size("shared_expert_intermediate_size"),
            "qkv_bias": config.flag("qkv_bias", True),
        }
    )


def _qwen3_moe(config: Config) -> dict[str, Any]:
    made = biased(config) | {"qk_norm": True}
    # The window is in every block, whatever max_window_layers says.
    config.get("max_window_layers")
    window = one_window(config, 4096)
    if not config.flag("use_sliding_window", False):
        window = {}
    return _qwen_moe(config) | window | made


FAMILIES = {
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
}
