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
    config.get(width)  # of dense blocks, which there may be none of
    if not all(sparse):
        dense = config.size(width)
        by_block["mlp_width"] = [size or dense for size in by_block["mlp_width"]]
    return by_block


def _places(config: Config, field: str, default: list[int]) -> list[object]:
    """The blocks that a field lists; `default` where it is absent or null."""
    given = config.get(field)
    if given is not None and not isinstance(given, list):
        config.refuse(field, given, "it must be a list of blocks")
    return given if isinstance(given, list) else [*default]


def _mixtral(config: Config) -> dict[str, Any]:
    return (
        common(config)
        | _experts(config, "num_local_experts", "num_experts")
        | one_window(config)
        | {"mlp_width": config.size("intermediate_size")}
    )


def _qwen_moe(config: Config) -> dict[str, Any]:
    """Experts in every block, or in some: dense ones have an MLP of another width."""
    alone = _places(config, "mlp_only_layers", [])
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


def _gpt_oss(config: Config) -> dict[str, Any]:
    bias = config.flag("attention_bias", True)
    return (
        common(config)
        | _experts(config, "num_local_experts", "num_experts")
        | windows(config, one_window(config, 128)["window"], lambda i: i % 2 == 0)
        | {
            "mlp_width": config.size("intermediate_size"),
            "qkv_bias": bias,
            "output_bias": bias,
            "mlp_bias": True,
            "router_bias": True,
            "sinks": True,
        }
    )


def _llama4(config: Config) -> dict[str, Any]:
    blocks = blocks_of(config)
    turned = _flags(config, "no_rope_layers", config.size("no_rope_layer_interval", 4))
    step = config.size("interleave_moe_layer_step", 1)
    sparse = _places(config, "moe_layers", list(blocks[step - 1 :: step]))
    chunk = config.size(
        "attention_chunk_size", 0 if "attention_chunk_size" in config.record else 8192, least=0
    )
    tuned = bool(config.get("attn_temperature_tuning", True))
    fields = _experts(config, "num_local_experts", "num_experts")
    width = config.size("intermediate_size")
    sizes = _some_dense(
        config,
        [i in sparse for i in blocks],
        fields | {"mlp_width": width},
        "intermediate_size_mlp",
    )
    normed = config.flag("use_qk_norm", True)
    return (
        common(config, head_dim=True)
        | biased(config)
        | fields
        | sizes
        | windows(config, chunk, lambda i: turned[i], "chunked_attention")
        | {
            "shared_expert_width": [width * bool(n) for n in sizes["experts"]],
            "shared_expert_gate": False,
            "no_rotary": [not one for one in turned],
            "qk_l2_norm": [normed and one for one in turned],
            "scaled_queries": [tuned and not one for one in turned],
        }
    )


def _flags(config: Config, field: str, interval: int) -> list[bool]:
    """Which blocks turn queries and keys: all but every so many-th, or as a list says."""
    blocks, given = blocks_of(config), config.get(field)
    if not given:
        return [(i + 1) % interval != 0 for i in blocks]
    found = given if isinstance(given, list) else []
    if len(found) < len(blocks) or any(one not in (0, 1) for one in found):
        config.refuse(field, given, f"it must say 0 or 1 for each of {len(blocks)} layers")
    return [bool(one) for one in found[: len(blocks)]]


def _deepseek_v3(config: Config) -> dict[str, Any]:
    config.only("attention_bias", False, "only models of this family without biases are known")
    config.only("rope_interleave", True, "only heads that turn neighbours are known; say true")
    config.only("moe_layer_freq", 1, "transformers has experts in every block after the first ones")
    turned, straight = config.size("qk_rope_head_dim"), config.size("qk_nope_head_dim")
    heads, dense = (
        config.size("num_attention_heads"),
        config.size("first_k_dense_replace", 3, least=0),
    )
    config.only("num_key_value_heads", heads, "in this family each head has its own keys")
    fields = _experts(config, "n_routed_experts", "num_local_experts", "num_experts")
    width = config.size("moe_intermediate_size")
    sizes = _some_dense(
        config,
        [i >= dense for i in blocks_of(config)],
        fields | {"mlp_width": width},
        "intermediate_size",
    )
    shared = width * config.size("n_shared_experts")
    return (
        {
            "layers": config.size("num_hidden_layers"),
            "width": config.size("hidden_size"),
            "heads": heads,
            "kv_heads": heads,
            "head_width": turned + straight,
            "rotary_width": turned,
            "value_width": config.size("v_head_dim"),
            "query_rank": config.size("q_lora_rank") if config.has("q_lora_rank") else 0,
            "kv_rank": config.size("kv_lora_rank"),
            "vocabulary": config.size("vocab_size"),
            "tied": config.flag("tie_word_embeddings", False),
            "attention_dropout": config.dropout("attention_dropout"),
            "shares_divided": config.flag("norm_topk_prob", True),
            "shared_expert_width": [shared * bool(n) for n in sizes["experts"]],
            "shared_expert_gate": False,
            "expert_groups": config.size("n_group"),
            "groups_per_token": config.size("topk_group"),
        }
        | fields
        | sizes
    )


FAMILIES = {
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v3": _deepseek_v3,
    "gpt_oss": _gpt_oss,
    "llama4_text": _llama4,
}
