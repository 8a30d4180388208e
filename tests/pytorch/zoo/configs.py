"""Tiny configurations of the models of `transformers`, by the names of their fields.

A field's new value follows from its name and from its old value alone, so that fields that agree
(a projection's input and the size that it projects from) still do.
"""

from __future__ import annotations

import math
import re
from dataclasses import fields, is_dataclass
from typing import Any

from transformers import PreTrainedConfig

WIDTH, INNER, HEADS, HEAD_DIM, LAYERS, VOCABULARY = 32, 64, 4, 8, 4, 128
POSITIONS, IMAGE, PATCH, WINDOW = 128, 64, 8, 16

_LARGEST = [  # the first pattern that a name matches says what a larger integer becomes
    (r"type_vocab|chunk_size_feed|num_labels|nextn|num_channels|^in_channels$|stride|kernel", None),
    (r"groups$", 4),
    (r"mamba_n(um)?_heads", 8),
    (r"key_value_heads|kv_heads|num_kv|^kv_n_heads|multi_query_group", 2),
    (r"heads|n_head$|head_num|attention_head", HEADS),
    (r"experts_per_tok|top_k$|topk$|moe_k$|num_selected", 2),
    (r"num_expert_group|n_group$|topk_group|mamba_n_groups", 1),
    (r"experts|n_routed", 4),
    (r"vocab|num_embeddings|codebook_size|codevectors_per_group", VOCABULARY),
    (r"image_size|img_size|^resolution|crop_size|input_resolution|base_image", IMAGE),
    (r"patch_size", PATCH),
    (r"^window_size", 4),
    (
        r"sliding_window|window_size|local_attention|attention_window|chunk_size|chunk_length",
        WINDOW,
    ),
    (r"position|max_seq|context_length|block_size|max_length|n_ctx|rel_extent", POSITIONS),
    (r"head_dim|head_size|dim_head|d_kv|d_head|rotary_dim|kv_channels|key_dim$", HEAD_DIM),
    (r"lora_rank|_rank$", 16),
    (r"inter(mediate)?_|intermediate|ffn|d_ff|mlp_dim|d_inner|feed_?forward|linear_units", INNER),
    (r"layers|n_layer$|depth$|num_blocks|num_stages$|resampler_depth", LAYERS),
    (r"num_mel_bins|n_mels|mel_dim", 16),
    (r"num_queries|num_query|num_denoising|num_latents|n_latents|num_patches|num_negatives", 8),
    (r"(size|dims?|channels|d_model|n_embd|width|units|features|hidden|embed|filters)$", WIDTH),
    (r"hidden|embed|projection", WIDTH),
    (r"frames", 4),
]
_LISTS = r"size|dim|channel|width|heads|filter"


class _Shrunk:
    """One configuration with all that is nested in it."""

    def __init__(self) -> None:
        self.tokens: dict[int, int] = {}  # ids that have a meaning: from the end of the vocabulary

    def config(self, config: PreTrainedConfig, given: dict[str, Any]) -> PreTrainedConfig:
        """The same kind of configuration, smaller; `given` overrides, nested ones as ``a.b``."""
        old = {key: value for key, value in vars(config).items() if not key.startswith("_")}
        layers = next((v for k, v in old.items() if _is_layers(k) and isinstance(v, int)), 0)
        known = {each.name for each in fields(config)} if is_dataclass(config) else set(old)
        new: dict[str, Any] = {}
        for key, value in old.items():
            inside = {k[len(key) + 1 :]: v for k, v in given.items() if k.startswith(f"{key}.")}
            shrunk = (
                self.config(value, inside)
                if isinstance(value, PreTrainedConfig)
                else self.value(key, value, layers)
            )
            if key in known and (shrunk is not value):
                new[key] = shrunk
        if "num_key_value_heads" in old and old["num_key_value_heads"] in (None, _heads_of(old)):
            new["num_key_value_heads"] = new.get("num_attention_heads", _heads_of(old))
        if "head_dim" in known and old["head_dim"] is None:
            new["head_dim"] = HEAD_DIM
        new |= {key: value for key, value in given.items() if "." not in key}
        return type(config)(**new)

    def value(self, key: str, value: Any, layers: int) -> Any:
        """What a field becomes."""
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, int):
            if re.search(r"token_id|token_index|_token$", key):
                return self.token(value)
            return shrink(key, value)
        if isinstance(value, list | tuple) and value:
            if key == "mrope_section":
                return [2, 1, 1]
            if re.search(r"token_id", key):
                return type(value)(self.token(v) for v in value)
            return type(value)(_listed(key, list(value), layers))
        if isinstance(value, dict) and key in ("size", "image_size"):
            return {k: min(v, IMAGE) if isinstance(v, int) else v for k, v in value.items()}
        if isinstance(value, dict) and key in ("rope_parameters", "rope_scaling"):
            return {
                k: self.value(k, v, layers) if k == "mrope_section" else v for k, v in value.items()
            }
        return value

    def token(self, value: int) -> int:
        """A token that has a meaning, within the vocabulary."""
        if value < 16:
            return value
        return self.tokens.setdefault(value, VOCABULARY - 2 - len(self.tokens))


def shrink(key: str, value: int) -> int:
    """What an integer of this name becomes."""
    for pattern, largest in _LARGEST:
        if re.search(pattern, key):
            if pattern == r"groups$" and value > WIDTH:
                return WIDTH  # of a depthwise convolution
            return value if largest is None else min(value, largest)
    return value


def tiny(config: PreTrainedConfig, given: dict[str, Any] | None = None) -> PreTrainedConfig:
    """A configuration of a model of a few layers with small sizes."""
    return _Shrunk().config(config, given or {})


def _heads_of(fields_: dict[str, Any]) -> Any:
    return fields_.get("num_attention_heads", fields_.get("n_head"))


def _is_layers(key: str) -> bool:
    return key in ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers")


def _listed(key: str, value: list[Any], layers: int) -> list[Any]:
    if re.search(r"depth|num_blocks|block_sizes|layer_repeats", key):
        return [min(v, 2) if isinstance(v, int) else v for v in value]
    if layers > LAYERS and len(value) == layers:  # one a layer: of every kind, in their order
        if all(isinstance(v, int) and v == i for i, v in enumerate(value)):
            return value[:LAYERS]
        kinds = [v for i, v in enumerate(value) if v not in value[:i]][:LAYERS]
        return (value[: LAYERS - len(kinds) + 1] + kinds[1:])[:LAYERS]
    if not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
        return value
    if re.search(r"layers|index|indices|idx|_ids$", key) and layers > LAYERS:
        return sorted({min(v, LAYERS - 1 - i) for i, v in enumerate(reversed(value)) if i < LAYERS})
    if re.search(r"image_size|img_size", key):
        return [min(v, IMAGE) for v in value]
    if re.search(r"patch_size", key):
        return [min(v, PATCH) for v in value]
    if re.search(_LISTS, key) and not re.search(r"kernel|stride|window|patch", key):
        least = 1 if "heads" in key else 16
        # Channels of pictures stay.
        large = value if "heads" in key else [v for v in value if v > 4] or value
        factor = max(min(large) / least, 1)
        return [
            max(least, math.ceil(v / factor / least) * least) if v in large else v for v in value
        ]
    return value
