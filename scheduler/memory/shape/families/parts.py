"""What configs of several families say alike."""

from __future__ import annotations

from typing import Any

from scheduler.memory.shape.config import Config

ALIKE = "only models whose blocks are all alike are known"


def common(config: Config, *, kv_heads: bool = True, head_dim: bool = False) -> dict[str, Any]:
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


def gated(config: Config, activation: str = "hidden_act", **which: bool) -> dict[str, Any]:
    """What those share whose blocks have one gated MLP."""
    return common(config, **which) | {
        "mlp_width": config.size("intermediate_size"),
        "activation": config.activation(activation),
    }


def biased(config: Config) -> dict[str, bool]:
    """What `attention_bias` says of all linear layers around attention."""
    bias = config.flag("attention_bias", False)
    return {"qkv_bias": bias, "output_bias": bias}


def turned_part(config: Config, head_width: int, default: float, *names: str) -> dict[str, int]:
    """Features of a head that turn, 0 for all; tables are of pairs, so of an even number."""
    turned = int(head_width * config.share(default, *names))
    return {"rotary_width": 0 if turned == head_width else turned + turned % 2}


def check_whole_heads(config: Config) -> None:
    """Refuse a share in a family whose rotary turns whole heads."""
    share = config.share(1.0, "partial_rotary_factor")
    if share != 1:
        config.refuse("partial_rotary_factor", share, "this family's rotary turns whole heads")


def one_window(config: Config, default: int = 0) -> dict[str, int]:
    """A sliding window in every block; null is none, and where a config says nothing `default`."""
    absent = "sliding_window" not in config.record
    return {"window": config.size("sliding_window", default if absent else 0, least=0)}


def qwen_window(config: Config, *, alternating: bool = False) -> dict[str, int]:
    """Qwen's window: in the blocks from max_window_layers on, or in some of those before."""
    layers, first = config.size("num_hidden_layers"), config.size("max_window_layers", 28, least=0)
    on, window = config.flag("use_sliding_window", False), one_window(config, 4096)["window"]
    kinds = config.get("layer_types")
    if kinds is not None:
        known = ("full_attention", "sliding_attention")
        found = kinds if isinstance(kinds, list) else []
        if len(found) != layers or any(kind not in known for kind in found):
            config.refuse("layer_types", kinds, f"it must name {known} for each of {layers} layers")
        if any(kind != found[0] for kind in found):
            config.refuse("layer_types", kinds, ALIKE)
        return {"window": window if found[0] == known[1] else 0}
    if on and window and (alternating or 0 < first < layers):
        config.refuse("use_sliding_window", True, f"{ALIKE}: it is on in some; say false")
    return {"window": window if on and not first else 0}
