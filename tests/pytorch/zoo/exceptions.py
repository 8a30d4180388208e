"""Models whose configuration cannot be made tiny by the names of its fields alone."""

from __future__ import annotations

from typing import Any

_SERIES = {"prediction_length": 8, "context_length": 16}
_RESNET: dict[str, Any] = {
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,
    "backbone_config": {
        "model_type": "resnet",
        "hidden_sizes": [16, 32, 32, 32],
        "depths": [1, 1, 2, 2],
        "embedding_size": 16,
        "layer_type": "basic",
        "out_features": ["stage2", "stage3", "stage4"],
    },
}
_LAST = {**_RESNET, "backbone_config": {**_RESNET["backbone_config"], "out_features": ["stage4"]}}

CONFIGS: dict[str, dict[str, Any]] = {
    "esm": {"vocab_size": 64, "pad_token_id": 1, "mask_token_id": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "mamba2": {"num_heads": 8},
    **dict.fromkeys(("detr", "conditional_detr", "dab-detr", "table-transformer"), _LAST),
    "deformable_detr": _RESNET,
    **dict.fromkeys(("autoformer", "informer", "time_series_transformer"), _SERIES),
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "bamba": {"attn_layer_indices": [1, 3]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "moonshine": {"pad_token_id": 0},
    "xmod": {"default_language": "en_XX"},
    "lilt": {"hidden_size": 48, "num_attention_heads": 4},
    "reformer": {"is_decoder": True, "axial_pos_embds": False, "max_position_embeddings": 128},
    "swin2sr": {"num_heads": [2, 2, 2, 2], "depths": [2, 2, 2, 2]},
    "wav2vec2-bert": {"vocab_size": 64, "feature_projection_input_dim": 16},
    "inkling_mm_model": {"vision_config.patch_size": 2},  # widths grow with its square
    "vibevoice_acoustic_tokenizer": {"num_filters": 4},  # doubled at each of six scales
    "bridgetower": {"text_config.num_attention_heads": 4, "vision_config.num_attention_heads": 4},
}
"""Fields of a type's configuration, nested ones as ``vision_config.hidden_size``."""
