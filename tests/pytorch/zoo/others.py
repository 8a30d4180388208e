"""Models of `diffusers`, made tiny by hand, and of `timm`, its smallest of each family."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from tests.pytorch.zoo.batches import ROWS, noise
from tests.pytorch.zoo.models import Entry, Made, mean_square, seed

_TIMM = (
    *("resnet18", "resnext26ts", "seresnet18", "resnetv2_50", "regnetx_002", "regnety_002"),
    *(
        "densenet121",
        "mobilenetv2_035",
        "mobilenetv3_small_050",
        "efficientnet_lite0",
        "mnasnet_small",
    ),
    *("ghostnet_050", "convnext_atto", "convnextv2_atto", "vgg11_bn", "dla34", "hrnet_w18_small"),
    *("vit_tiny_patch16_224", "deit_tiny_patch16_224", "beit_base_patch16_224", "cait_xxs24_224"),
    *(
        "xcit_nano_12_p16_224",
        "mixer_s32_224",
        "gmlp_ti16_224",
        "resmlp_12_224",
        "convmixer_768_32",
    ),
    *("swin_tiny_patch4_window7_224", "pvt_v2_b0", "poolformer_s12", "levit_128s", "coat_tiny"),
    *("edgenext_xx_small", "repvgg_a0", "inception_v3", "maxvit_rmlp_pico_rw_256"),
)
_SMALL = {  # of families whose smallest is large: fewer blocks, thinner
    "beit_base_patch16_224": {"embed_dim": 48, "num_heads": 4, "depth": 4},
    "mixer_s32_224": {"num_blocks": 4, "embed_dim": 64},
    "convmixer_768_32": {"dim": 64, "depth": 4},
    "swin_tiny_patch4_window7_224": {"embed_dim": 24, "img_size": 224},
}


def timm_entries() -> list[Entry]:
    """The smallest of each family, on pictures as large as each needs."""
    return [Entry(f"timm/{name}", "timm", (_timm(name),)) for name in _TIMM if find_spec("timm")]


def _timm(name: str) -> Callable[[], Iterator[Made]]:
    def make() -> Iterator[Made]:
        import timm

        seed()
        model = timm.create_model(name, num_classes=10, **_SMALL.get(name, {})).train()
        fixed = getattr(model, "patch_embed", None) is not None or "224" in name or "256" in name
        size = model.default_cfg["input_size"][-1] if fixed else 96
        yield Made(model, noise(ROWS, 3, size, size), mean_square)

    return make


_BLOCKS: dict[str, Any] = {
    "block_out_channels": (32, 64),
    "layers_per_block": 2,
    "norm_num_groups": 8,
}
_HEADS: dict[str, Any] = {"num_attention_heads": 4, "attention_head_dim": 8}
_STEP = torch.tensor([1, 7])


def _latent(channels: int = 4, size: int = 16) -> dict[str, torch.Tensor]:
    return {"sample": noise(ROWS, channels, size, size), "timestep": _STEP}


def _states(channels: int = 4, size: int = 16, width: int = 32) -> dict[str, torch.Tensor]:
    text = noise(ROWS, 8, width)
    picture = noise(ROWS, channels, size, size)
    return {"hidden_states": picture, "encoder_hidden_states": text, "timestep": _STEP}


_DIFFUSERS: dict[str, tuple[dict[str, Any], Callable[[], dict[str, torch.Tensor]]]] = {
    "UNet2DModel": (
        {
            **_BLOCKS,
            "sample_size": 16,
            "attention_head_dim": 8,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        },
        lambda: _latent(3),
    ),
    "UNet2DConditionModel": (
        {
            **_BLOCKS,
            "cross_attention_dim": 32,
            "attention_head_dim": 8,
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        },
        lambda: {**_latent(), "encoder_hidden_states": noise(ROWS, 8, 32)},
    ),
    "UNet1DModel": (
        {
            "block_out_channels": (16, 32),
            "in_channels": 14,
            "out_channels": 14,
            "down_block_types": ("DownResnetBlock1D", "DownResnetBlock1D"),
            "up_block_types": ("UpResnetBlock1D",),
            "mid_block_type": "MidResTemporalBlock1D",
            "out_block_type": "OutConv1DBlock",
            "use_timestep_embedding": True,
            "act_fn": "swish",
            "flip_sin_to_cos": False,
            "freq_shift": 1.0,
        },
        lambda: {"sample": noise(ROWS, 14, 16), "timestep": _STEP},
    ),
    "UNet3DConditionModel": (
        {
            **_BLOCKS,
            "cross_attention_dim": 32,
            "attention_head_dim": 8,
            "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
            "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
        },
        lambda: {
            "sample": noise(ROWS, 4, 3, 16, 16),
            "timestep": _STEP,
            "encoder_hidden_states": noise(ROWS, 8, 32),
        },
    ),
    "AutoencoderKL": (
        {
            **_BLOCKS,
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
        },
        lambda: {"sample": noise(ROWS, 3, 32, 32)},
    ),
    "VQModel": (
        {
            **_BLOCKS,
            "num_vq_embeddings": 32,
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
        },
        lambda: {"sample": noise(ROWS, 3, 32, 32)},
    ),
    "ControlNetModel": (
        {
            **_BLOCKS,
            "cross_attention_dim": 32,
            "attention_head_dim": 8,
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "conditioning_embedding_out_channels": (8, 16),
        },
        lambda: {
            **_latent(),
            "encoder_hidden_states": noise(ROWS, 8, 32),
            "controlnet_cond": noise(ROWS, 3, 32, 32),
        },
    ),
    "DiTTransformer2DModel": (
        {**_HEADS, "num_layers": 4, "sample_size": 16, "out_channels": 8, "norm_num_groups": 8},
        lambda: {
            "hidden_states": noise(ROWS, 4, 16, 16),
            "timestep": _STEP,
            "class_labels": torch.tensor([0, 1]),
        },
    ),
    "PixArtTransformer2DModel": (
        {
            **_HEADS,
            "num_layers": 4,
            "sample_size": 16,
            "out_channels": 8,
            "cross_attention_dim": 32,
            "caption_channels": 32,
            "use_additional_conditions": False,
        },
        _states,
    ),
    "SD3Transformer2DModel": (
        {
            **_HEADS,
            "num_layers": 4,
            "sample_size": 16,
            "in_channels": 4,
            "out_channels": 4,
            "joint_attention_dim": 32,
            "caption_projection_dim": 32,
            "pooled_projection_dim": 32,
            "pos_embed_max_size": 16,
        },
        lambda: {**_states(), "pooled_projections": noise(ROWS, 32)},
    ),
    "SanaTransformer2DModel": (
        {
            **_HEADS,
            "num_layers": 4,
            "sample_size": 16,
            "in_channels": 4,
            "out_channels": 4,
            "num_cross_attention_heads": 4,
            "cross_attention_head_dim": 8,
            "cross_attention_dim": 32,
            "caption_channels": 32,
        },
        _states,
    ),
    "FluxTransformer2DModel": (
        {
            **_HEADS,
            "num_layers": 2,
            "num_single_layers": 4,
            "in_channels": 4,
            "joint_attention_dim": 32,
            "pooled_projection_dim": 32,
            "axes_dims_rope": (2, 4, 2),
        },
        lambda: {
            "hidden_states": noise(ROWS, 64, 4),
            "encoder_hidden_states": noise(ROWS, 8, 32),
            "pooled_projections": noise(ROWS, 32),
            "timestep": torch.tensor([0.1, 0.7]),
            "txt_ids": torch.zeros(8, 3),
            "img_ids": torch.zeros(64, 3),
        },
    ),
    "AuraFlowTransformer2DModel": (
        {
            **_HEADS,
            "num_mmdit_layers": 2,
            "num_single_dit_layers": 4,
            "sample_size": 16,
            "joint_attention_dim": 32,
            "caption_projection_dim": 32,
            "pos_embed_max_size": 64,
        },
        _states,
    ),
    "CogVideoXTransformer3DModel": (
        {
            **_HEADS,
            "num_layers": 4,
            "in_channels": 4,
            "out_channels": 4,
            "time_embed_dim": 8,
            "text_embed_dim": 32,
            "max_text_seq_length": 8,
            "sample_width": 8,
            "sample_height": 8,
            "sample_frames": 5,
        },
        lambda: {
            "hidden_states": noise(ROWS, 2, 4, 8, 8),
            "encoder_hidden_states": noise(ROWS, 8, 32),
            "timestep": _STEP,
        },
    ),
}


def diffusers_entries() -> list[Entry]:
    """U-Nets, autoencoders and diffusion transformers."""
    names = _DIFFUSERS if find_spec("diffusers") else ()
    return [Entry(f"diffusers/{name}", "diffusion", (_diffusers(name),)) for name in names]


def _diffusers(name: str) -> Callable[[], Iterator[Made]]:
    def make() -> Iterator[Made]:
        import diffusers

        config, batch = _DIFFUSERS[name]
        seed()
        model: nn.Module = getattr(diffusers, name)(**config).train()
        yield Made(model, batch(), mean_square)

    return make
