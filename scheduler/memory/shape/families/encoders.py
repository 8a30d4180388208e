"""Families whose attention looks both ways: of images and of texts, one function each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler.memory.shape.config import Config

_ONE_OF_CLASSES = "only a classifier of one class out of several is known"


def _encoder(config: Config, dropout: float) -> dict[str, Any]:
    """What all share; where a config says nothing transformers drops with `dropout`."""
    heads = config.size("num_attention_heads")
    return {
        "layers": config.size("num_hidden_layers"),
        "width": config.size("hidden_size"),
        "heads": heads,
        "kv_heads": heads,
        "head_width": config.per_head("hidden_size", "num_attention_heads"),
        "mlp_width": config.size("intermediate_size"),
        "activation": config.activation("hidden_act"),
        "gated": False,
        "norm": "layer",
        "norm_bias": True,
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
        "head_bias": True,
        "causal": False,
        "dropout": config.dropout("hidden_dropout_prob", dropout),
        "attention_dropout": config.dropout("attention_probs_dropout_prob", dropout),
    }


def _side(config: Config, field: str) -> tuple[int, int]:
    """Height and width, which a config gives as one number or as two."""
    value = config.get(field)
    if not isinstance(value, list | tuple):
        return (config.size(field),) * 2
    if len(value) != 2:
        config.refuse(field, value, "it must be a number, or two: height and width")
    height, width = (Config({field: each}, config.where).size(field) for each in value)
    return height, width


def _classes(config: Config) -> int:
    """How many a classifier tells apart; transformers keeps their names alone."""
    config.only("problem_type", "single_label_classification", _ONE_OF_CLASSES)
    names = config.get("id2label")
    count = len(names) if isinstance(names, Mapping) else config.size("num_labels", 2)
    if count < 2:
        config.refuse("id2label", names, _ONE_OF_CLASSES)
    return count


def _vit(config: Config) -> dict[str, Any]:
    (height, width), (patch, other) = _side(config, "image_size"), _side(config, "patch_size")
    if patch != other:
        config.refuse("patch_size", [patch, other], "only square patches are known")
    if patch > min(height, width):
        config.refuse("patch_size", patch, f"an image has {height} × {width} pixels")
    return _encoder(config, 0.0) | {
        "head": "classes",
        "vocabulary": _classes(config),
        "positions": (height // patch) * (width // patch) + 1,
        "pixels": height * width,
        "channels": config.size("num_channels"),
        "patch": patch,
        "qkv_bias": config.flag("qkv_bias", True),
    }


def _bert(config: Config) -> dict[str, Any]:
    config.only("is_decoder", False, "only encoders of this family are known; say false")
    config.only("position_embedding_type", "absolute", "only absolute positions are known")
    return _encoder(config, 0.1) | {
        "head": "masked",
        "vocabulary": config.size("vocab_size"),
        "positions": config.size("max_position_embeddings"),
        "types": config.size("type_vocab_size"),
        "tied": config.flag("tie_word_embeddings", True),
        "post_norm": True,
    }


def _roberta(config: Config) -> dict[str, Any]:
    fields = _bert(config)
    if fields["activation"] != "gelu":
        config.refuse("hidden_act", config.get("hidden_act"), "this family's head has 'gelu'")
    first = config.size("pad_token_id", 1, least=0) + 1
    if first >= fields["positions"]:
        config.refuse("pad_token_id", first - 1, "positions begin after it, and none is left")
    return fields | {"first_position": first}


def _t5(config: Config) -> dict[str, Any]:
    config.only("is_encoder_decoder", True, "only encoders with their decoders are known; say true")
    config.only("is_decoder", False, "only encoders with their decoders are known; say false")
    layers, heads = config.size("num_layers"), config.size("num_heads")
    below = config.size("num_decoder_layers", layers)
    if min(layers, below) < 2:
        config.refuse("num_layers", layers, "only stacks of at least 2 blocks are known")
    kind, *gated = reversed(str(config.get("feed_forward_proj", "relu")).split("-"))
    if kind == "gelu" and gated:
        kind = "gelu_new"
    dropout = config.dropout("dropout_rate", 0.1)
    # Before transformers 5 an untied head said that what it is given is not scaled.
    scaled = config.flag("scale_decoder_outputs", config.flag("tie_word_embeddings", True))
    return {
        "layers": layers + below,
        "width": config.size("d_model"),
        "heads": heads,
        "kv_heads": heads,
        "head_width": config.size("d_kv"),
        "mlp_width": config.size("d_ff"),
        "vocabulary": config.size("vocab_size"),
        "activation": Config({"feed_forward_proj": kind}, config.where).activation(
            "feed_forward_proj"
        ),
        "gated": bool(gated),
        "head": "seq2seq",
        "tied": True,
        "buckets": config.size("relative_attention_num_buckets", 32),
        "scaled": scaled,
        "dropout": dropout,
        "attention_dropout": dropout,
        "causal": [False] * layers + [True] * below,
    }


FAMILIES = {"vit": _vit, "bert": _bert, "roberta": _roberta, "t5": _t5}
"""Which model_type is read by what."""
