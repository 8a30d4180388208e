"""Models with heads, and what a step of them gives."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn

from tests.pytorch.models import batch, gpt2

VOCABULARY = 96
_WIDTHS = {"hidden_size": 32, "num_hidden_layers": 2}
_DECODER = {**_WIDTHS, "intermediate_size": 48, "num_attention_heads": 4, "use_cache": False}
_DECODER |= {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0, "num_key_value_heads": 2}
Gradients = dict[str, torch.Tensor]


def model_of(name: str, vocabulary: int = VOCABULARY) -> Any:
    """A tiny model in training mode; without dropout, of which chunks change nothing."""
    torch.manual_seed(0)
    if name == "gpt2":
        return gpt2(2, dropout=0.0)
    kinds: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig, _DECODER),
        "qwen3": (transformers.Qwen3ForCausalLM, transformers.Qwen3Config, _DECODER),
        "gemma2": (
            transformers.Gemma2ForCausalLM,
            transformers.Gemma2Config,
            {**_DECODER, "head_dim": 8, "final_logit_softcapping": 3.0},
        ),
        "granite": (
            transformers.GraniteForCausalLM,
            transformers.GraniteConfig,
            {**_DECODER, "logits_scaling": 3.0},
        ),
        "bert": (
            transformers.BertForMaskedLM,
            transformers.BertConfig,
            {
                **_WIDTHS,
                "intermediate_size": 48,
                "num_attention_heads": 4,
                "hidden_dropout_prob": 0.0,
                "attention_probs_dropout_prob": 0.0,
            },
        ),
        "t5": (
            transformers.T5ForConditionalGeneration,
            transformers.T5Config,
            {
                "d_model": 32,
                "d_ff": 48,
                "d_kv": 8,
                "num_layers": 1,
                "num_heads": 4,
                "dropout_rate": 0.0,
                "use_cache": False,
                "decoder_start_token_id": 0,
            },
        ),
        "bart": (
            transformers.BartForConditionalGeneration,
            transformers.BartConfig,
            {
                "d_model": 32,
                "encoder_layers": 1,
                "decoder_layers": 1,
                "encoder_ffn_dim": 32,
                "decoder_ffn_dim": 32,
                "encoder_attention_heads": 2,
                "decoder_attention_heads": 2,
                "dropout": 0.0,
                "use_cache": False,
                "decoder_start_token_id": 0,
            },
        ),
    }
    kind, config, settings = kinds[name]
    return kind(config(vocab_size=vocabulary, **settings)).train()


def masked_batch(rows: int = 2, length: int = 16) -> dict[str, torch.Tensor]:
    """Token ids, and labels of which some are ignored."""
    ids = batch(rows, length)["input_ids"]
    labels = ids.clone()
    labels[0, :5] = -100
    return {"input_ids": ids, "labels": labels}


def step(model: nn.Module, **inputs: Any) -> tuple[torch.Tensor, Gradients]:
    """Loss and gradients of one step."""
    model.zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), grads


def check_close(mine: Gradients, whole: Gradients, limit: float) -> None:
    """Each gradient is within `limit` of the other's norm."""
    assert mine.keys() == whole.keys()
    for name, size in sizes(whole).items():
        assert float((mine[name] - whole[name]).norm()) <= limit * size, name


def sizes(grads: Gradients) -> dict[str, float]:
    """What the rounding of each gradient is relative to."""
    norms = {name: float(grad.norm()) for name, grad in grads.items()}
    # Some are zero but for rounding: of the bias of keys, which softmax takes away.
    least = 1e-4 * max(norms.values())
    return {name: max(norm, least) for name, norm in norms.items()}


class Plain(nn.Module):
    """An embedding, a layer and a head, whose loss is made outside."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.mix = nn.Linear(16, 16)
        self.head = nn.Linear(16, VOCABULARY, bias=bias)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.tanh(self.mix(self.embed(ids))))
        return out
