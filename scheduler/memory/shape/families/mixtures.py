"""Families with a mixture of experts, one function each."""

from __future__ import annotations

from typing import Any

from scheduler.memory.shape.config import Config
from scheduler.memory.shape.families.parts import (
    biased,
    blocks_of,
    common,
    one_window,
    windows,
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


def _some_dense(
    config: Config, sparse: list[bool], fields: dict[str, Any], width: str
) -> dict[str, list[int]]:
    """The sizes of experts in the blocks that have them; the others have an MLP of `width`."""
    found = {name: fields[name] for name in ("experts", "experts_per_token", "mlp_width")}
    by_block = {name: [size * one for one in sparse] for name, size in found.items()}
    if not all(sparse):
        dense = config.size(width)
        by_block["mlp_width"] = [size or dense for size in by_block["mlp_width"]]
    return by_block


def _mixtral(config: Config) -> dict[str, Any]:
    return (
        common(config)
        | _experts(config, "num_local_experts", "num_experts")
        | one_window(config)
        | {"mlp_width": config.size("intermediate_size")}
    )


def _qwen_moe(config: Config) -> dict[str, Any]:
    """Experts in every block, or in some: dense ones have an MLP of another width."""
    given = config.get("mlp_only_layers") or []
    if not isinstance(given, list):
        config.refuse("mlp_only_layers", given, "it must be a list of blocks")
    alone = given if isinstance(given, list) else []
    step = config.size("decoder_sparse_step", 1)
    fields = _experts(config, "num_experts", "num_local_experts")
    return (
        common(config)
        | fields
        | _some_dense(
            config,
            [i not in alone and (i + 1) % step == 0 for i in blocks_of(config)],
            fields | {"mlp_width": config.size("moe_intermediate_size")},
            "intermediate_size",
        )
        | {"shares_divided": config.flag("norm_topk_prob", False)}
    )


def _qwen2_moe(config: Config) -> dict[str, Any]:
    first, window = (
        config.size("max_window_layers", 28, least=0),
        one_window(config, 4096)["window"],
    )
    on = config.flag("use_sliding_window", False)
    fields = _qwen_moe(config)
    shared = config.size("shared_expert_intermediate_size")
    return (
        fields
        | windows(config, window, lambda i: on and i % 2 == 0 and i < first)
        | {
            "shared_expert_width": [shared * bool(n) for n in fields["experts"]],
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
