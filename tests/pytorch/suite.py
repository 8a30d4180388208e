"""One small model of each architecture that people train, with random weights, and a batch.

Made to have a shape like the real ones: activations larger than gradients, insides of blocks larger
than their boundaries. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import nn

from scheduler import CostGraph, solve
from tests.pytorch.models import Case, mean_square, noise, smallest_budget

VOCABULARY, ROWS, LENGTH, DEPTH = 96, 4, 48, 6
TOKENS: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DECODER: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 112,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    **TOKENS,
}
ENCODER: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 192,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    **TOKENS,
}


@dataclass(frozen=True)
class Architecture:
    """How a case is made, and which modules are its blocks, or the leaves of its graph."""

    make: Callable[[], Case]
    blocks: str | list[str] = "auto"
    leaves: list[str] = field(default_factory=list)


def tokens(length: int = LENGTH) -> torch.Tensor:
    """A batch of token ids, reproducible; none of them is padding."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(3, VOCABULARY, (ROWS, length), generator=generator)


def text(
    kind: Any, config: Callable[[], Any], length: int = LENGTH, dtype: torch.dtype = torch.float32
) -> Callable[[], Case]:
    """A language model of this configuration and a batch; `kind` is one of transformers' Autos."""

    def make() -> Case:
        torch.manual_seed(0)
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            model = kind.from_config(config()).train()
        finally:
            torch.set_default_dtype(before)
        return Case(model, {"input_ids": tokens(length), "labels": tokens(length)})

    return make


def t5(encoder: int = 1, decoder: int = DEPTH) -> Case:
    """A whole T5 of so many blocks: each of the decoder's reads what the encoder made."""
    torch.manual_seed(0)
    config = transformers.T5Config(
        d_model=48,
        d_kv=12,
        d_ff=112,
        num_layers=encoder,
        num_decoder_layers=decoder,
        num_heads=4,
        **TOKENS,
    )
    config.decoder_start_token_id = 0
    model = transformers.T5ForConditionalGeneration(config).train()
    return Case(model, {"input_ids": tokens(), "labels": tokens()})


def whisper_encoder() -> Case:
    """Whisper's encoder on features of sound."""
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        d_model=48,
        encoder_layers=DEPTH,
        encoder_attention_heads=4,
        encoder_ffn_dim=192,
        num_mel_bins=16,
        max_source_positions=LENGTH,
        **TOKENS,
    )
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    model = WhisperEncoder(config).train()
    return Case(model, noise(ROWS, 16, 2 * LENGTH), lambda output: mean_square(output[0]))


def vit() -> Case:
    """A vision transformer that classifies."""
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=48,
        intermediate_size=192,
        num_hidden_layers=DEPTH,
        num_attention_heads=4,
        image_size=32,
        patch_size=4,
    )
    config.num_labels = 10
    model = transformers.ViTForImageClassification(config).train()
    return Case(model, {"pixel_values": noise(ROWS, 3, 32, 32), "labels": torch.arange(ROWS)})


class Bottleneck(nn.Module):
    """A residual block of 1x1, 3x3, 1x1 convolutions (arXiv:1512.03385, figure 5 right)."""

    def __init__(self, given: int, width: int, stride: int) -> None:
        super().__init__()
        made = 4 * width
        self.main = nn.Sequential(
            *(nn.Conv2d(given, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True)),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            *(nn.BatchNorm2d(width), nn.ReLU(True)),
            *(nn.Conv2d(width, made, 1, bias=False), nn.BatchNorm2d(made)),
        )
        self.short = nn.Sequential()
        if stride != 1 or given != made:
            self.short = nn.Sequential(
                nn.Conv2d(given, made, 1, stride, bias=False), nn.BatchNorm2d(made)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.main(x) + self.short(x))


class ResNet(nn.Module):
    """A residual network of four stages of bottlenecks, its channels a share of the usual 64."""

    def __init__(self, depths: tuple[int, ...] = (3, 4, 6, 3), width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, padding=3, bias=False),
            *(nn.BatchNorm2d(width), nn.ReLU(True), nn.MaxPool2d(3, 2, padding=1)),
        )
        given, blocks = width, []
        for stage, depth in enumerate(depths):
            for i in range(depth):
                blocks.append(Bottleneck(given, width << stage, 2 if stage and i == 0 else 1))
                given = 4 * (width << stage)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(given, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(image)).mean((2, 3)))  # type: ignore[no-any-return]


def resnet50() -> Case:
    """ResNet-50, narrow and on small images."""
    torch.manual_seed(0)
    return Case(ResNet().train(), noise(8, 3, 64, 64), mean_square)


def _gpt2() -> Any:
    return transformers.GPT2Config(n_embd=48, n_layer=DEPTH, n_head=4, n_positions=64, **TOKENS)


def _mamba() -> Any:
    return transformers.MambaConfig(hidden_size=48, num_hidden_layers=DEPTH, state_size=8, **TOKENS)


def _qwen3_moe() -> Any:
    experts: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "head_dim": 12}
    return transformers.Qwen3MoeConfig(**DECODER, **experts, moe_intermediate_size=64)


def _gemma3() -> Any:
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * (DEPTH // 3)
    return transformers.Gemma3TextConfig(
        **DECODER, head_dim=12, sliding_window=16, layer_types=kinds
    )


_CAUSAL, _MASKED = transformers.AutoModelForCausalLM, transformers.AutoModelForMaskedLM

SUITE = {
    "gpt2": Architecture(text(_CAUSAL, _gpt2)),
    "llama": Architecture(text(_CAUSAL, lambda: transformers.LlamaConfig(**DECODER))),
    "mistral": Architecture(
        text(_CAUSAL, lambda: transformers.MistralConfig(**DECODER, sliding_window=16))
    ),
    "qwen3": Architecture(text(_CAUSAL, lambda: transformers.Qwen3Config(**DECODER, head_dim=12))),
    "gemma3": Architecture(text(_CAUSAL, _gemma3)),
    "phi3": Architecture(text(_CAUSAL, lambda: transformers.Phi3Config(**DECODER))),
    "bert": Architecture(text(_MASKED, lambda: transformers.BertConfig(**ENCODER))),
    "roberta": Architecture(text(_MASKED, lambda: transformers.RobertaConfig(**ENCODER))),
    # The first block of each stack makes a position bias that the others read, gradient and all.
    "t5": Architecture(lambda: t5(3, 3), leaves=["*coder.block.*", "*coder.final_layer_norm"]),
    # The same as a chain, which begins after the decoder's first block; the encoder runs before.
    "t5-decoder": Architecture(t5, "decoder.block.[1-9]"),
    "whisper-encoder": Architecture(whisper_encoder),
    # Without its kernels, Mamba scans token by token in Python: a short sequence.
    "mamba": Architecture(text(_CAUSAL, _mamba, length=12)),
    "vit": Architecture(vit),
    "resnet50": Architecture(resnet50),
    # The grouped product of its experts has no fake version in fp32.
    "qwen3_moe": Architecture(text(_CAUSAL, _qwen3_moe, dtype=torch.bfloat16)),
}
"""The architectures by name."""


def budgets(costs: CostGraph) -> dict[str, int]:
    """Three budgets in bytes: keep-all minus a tenth, the middle, the smallest plus 2%.

    Of a graph the smallest is a floor, which may have no plan.
    """
    smallest = smallest_budget(costs)
    everything = solve(costs, budget=10**15).keep_all_peak_bytes
    return {
        "keep-all - 10%": everything * 9 // 10,
        "middle": (everything + smallest) // 2,
        "smallest + 2%": smallest * 102 // 100,
    }
