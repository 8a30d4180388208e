"""What configs of several families say alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scheduler.memory.shape.config import Config

MOST_LAYERS = 2_000
"""Far beyond any model; the solver of chains has room for so many blocks."""


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


def windows(
    config: Config, window: int, is_local: Callable[[int], bool], local: str = "sliding_attention"
) -> dict[str, list[int]]:
    """The window of each block, in those that layer_types calls `local`; else, where `is_local`."""
    layers, known = blocks_of(config), ("full_attention", local)
    kinds = config.get("layer_types")
    if kinds is None:
        return {"window": [window * is_local(i) for i in layers]}
    found = kinds if isinstance(kinds, list) else []
    if len(found) != len(layers) or any(kind not in known for kind in found):
        names, count = " or ".join(map(repr, known)), len(layers)
        config.refuse("layer_types", kinds, f"it must say {names} for each of {count} layers")
    return {"window": [window * (kind == local) for kind in found]}


def blocks_of(config: Config) -> range:
    """The places of the blocks; of more than a shape may have, one more than that."""
    return range(min(config.size("num_hidden_layers"), MOST_LAYERS + 1))
