"""A head in chunks: the same losses and gradients, and never the logits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn

from scheduler.pytorch import chunked_head
from scheduler.pytorch.observe.dispatch import tensors_of
from scheduler.pytorch.observe.tracker import MemoryTracker, storage_bytes
from tests.pytorch.models import batch, gpt2, llama

VOCABULARY = 96
_WIDTHS = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}
_DECODER = {**_WIDTHS, "intermediate_size": 48, "num_attention_heads": 4, "use_cache": False}
_DECODER |= {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0, "num_key_value_heads": 2}
Gradients = dict[str, torch.Tensor]


def model_of(name: str) -> nn.Module:
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
                "vocab_size": VOCABULARY,
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
                "vocab_size": VOCABULARY,
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
    model: nn.Module = kind(config(**settings)).train()
    return model


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


@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "qwen3", "gemma2", "granite", "bert", "t5", "bart"]
)
def test_models_have_the_same_gradients(name: str) -> None:
    model, inputs = model_of(name), masked_batch()
    loss, whole = step(model, **inputs)
    with chunked_head(model, 5):
        in_chunks, mine = step(model, **inputs)
    torch.testing.assert_close(in_chunks, loss, rtol=1e-6, atol=0)
    check_close(mine, whole, 1e-6)
    again, _ = step(model, **inputs)
    assert torch.equal(again, loss)  # it is taken away


@pytest.mark.parametrize("name", ["llama", "bert"])
@pytest.mark.parametrize("autocast", [False, True], ids=["bf16", "autocast"])
def test_rounding_is_that_of_the_whole_step(name: str, autocast: bool) -> None:
    # Within two units in the last place of the error that the step has without chunks.
    exact_model, inputs = model_of(name), masked_batch()
    _, exact = step(exact_model, **inputs)
    model = exact_model if autocast else copy.deepcopy(exact_model).bfloat16()
    found = []
    for chunks in (None, 1, 7):
        handle = chunked_head(model, chunks) if chunks else None
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            model.zero_grad()
            loss = model(**inputs).loss
        loss.backward()
        grads = {name: p.grad.float() for name, p in model.named_parameters() if p.grad is not None}
        found.append((loss.dtype, grads))
        if handle is not None:
            handle.remove()
    (dtype, whole), *others = found
    for mine_dtype, mine in others:
        assert mine_dtype == dtype
        for key, size in sizes(exact).items():
            error = float((whole[key] - exact[key]).norm())
            assert float((mine[key] - exact[key]).norm()) <= error + 2 * 2**-8 * size, key


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


IDS = masked_batch(3, 10)["input_ids"]
WEIGHT = torch.linspace(0.5, 2, VOCABULARY, dtype=torch.float64)
Loss = Callable[[torch.Tensor], torch.Tensor]
ODD = torch.arange(10) % 2 == 1
LOSSES: dict[str, Loss] = {
    "flat": lambda x: F.cross_entropy(x.view(-1, VOCABULARY), IDS.view(-1)),
    "shifted": lambda x: F.cross_entropy(x[..., :-1, :].contiguous().flatten(0, 1), IDS[:, 1:].reshape(-1)),
    "classes second": lambda x: nn.CrossEntropyLoss()(x[:, 1:].transpose(1, 2), IDS[:, :-1]),
    "time first": lambda x: F.cross_entropy(x.transpose(0, 1).reshape(-1, x.size(-1)), IDS.t().reshape(-1)),
    "one row": lambda x: F.cross_entropy(x[1], IDS[1], reduction="sum"),
    "last of each": lambda x: F.cross_entropy(x[:, -1], IDS[:, -1]),
    "masked": lambda x: F.cross_entropy(x[:, ODD].flatten(0, 1), IDS[:, ODD].flatten()),
    "picked twice": lambda x: F.cross_entropy(x[[0, 0, 2]].flatten(0, 1), IDS[[0, 0, 2]].flatten()),
    "smoothed": lambda x: F.cross_entropy(x.mT, IDS, label_smoothing=0.1, ignore_index=int(IDS[0, 0])),
    "weighted": lambda x: F.cross_entropy(x.mT, IDS, weight=WEIGHT, label_smoothing=0.2, ignore_index=5),
    "sum": lambda x: F.cross_entropy(x.mT, IDS, weight=WEIGHT, reduction="sum") / 7,
    "each": lambda x: (F.cross_entropy(x.mT, IDS, weight=WEIGHT, reduction="none") * IDS).mean(),
    "scaled": lambda x: F.cross_entropy((2 * x / 0.7 + 1).mT, IDS),
    "biased": lambda x: F.cross_entropy((x + WEIGHT[None]).mT, IDS),
    "capped": lambda x: F.cross_entropy((3 * torch.tanh(x / 3)).mT, IDS),
    "tanh at the end": lambda x: F.cross_entropy(x.tanh().mT, IDS),
}  # fmt: skip


@pytest.mark.parametrize("loss_fn", LOSSES.values(), ids=LOSSES)
def test_losses_outside_the_model(loss_fn: Loss) -> None:
    model = Plain().double()
    found = []
    for chunks in (None, 1, 3):
        handle = chunked_head(model, chunks) if chunks else None
        model.zero_grad()
        loss = loss_fn(model(IDS))
        loss.backward()
        found.append((loss.detach(), {n: p.grad for n, p in model.named_parameters()}))
        if handle is not None:
            handle.remove()
    (loss, whole), *others = found
    for mine, grads in others:
        torch.testing.assert_close(mine, loss, rtol=1e-12, atol=0)
        check_close(grads, whole, 1e-12)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "gemma2", "bert"])
def test_no_logits_are_ever_made(name: str, dtype: torch.dtype) -> None:
    model, inputs = model_of(name).to(dtype), masked_batch(8, 64)
    tokens = inputs["input_ids"].numel()
    largest = 0

    def seen(func: Any, args: Any, kwargs: Any, result: Any) -> None:
        nonlocal largest
        sized = [tensor for tensor in tensors_of(result) if VOCABULARY in tensor.shape]
        largest = max([largest, *map(storage_bytes, sized)])

    chunks = 32
    with chunked_head(model, chunks), MemoryTracker(seen) as tracker:
        out = model(**inputs)
        loss = out.loss
        del out
        kept = tracker.live_bytes
        loss.backward()
        del loss
    chunk, weight = tokens // chunks * VOCABULARY * 4, VOCABULARY * 32 * 4
    assert largest == max(chunk, weight)
    assert kept < 10**9


def test_the_forward_keeps_two_gradients() -> None:
    model, hidden = nn.Linear(8, VOCABULARY), torch.randn(64, 8, requires_grad=True)
    target = torch.arange(64)
    with chunked_head(model, 4), MemoryTracker() as tracker:
        logits = model(hidden)
        loss = F.cross_entropy(logits, target)
        kept = tracker.live_bytes
        loss.backward()
        after = tracker.live_bytes
    numbers = 64 * 8 + VOCABULARY * 8 + VOCABULARY
    assert 4 * numbers <= kept <= 4 * numbers + 8 * 64 + 64  # and which token is which
    assert after <= kept
    assert logits.untyped_storage().nbytes() == 0
