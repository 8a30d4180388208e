"""The rows of memory_measured.csv, and what the formulas say of each.

A row's ``case`` is a phrase; `prediction` reads it and calls the formula it is about. What a phrase
leaves out (heads, MLP width) is the same in all rows of its kind, and is named here.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduler import CostGraph
from scheduler.memory.activations import (
    Activations,
    block_activations,
    head_activations,
    loss_bytes,
)
from scheduler.memory.recipe import Lora
from scheduler.memory.shape.shape import Shape
from tests.memory.tape import embedding_activations

FILE = Path(__file__).parents[1] / "data" / "memory_measured.csv"
PRECISION = {"2": "bf16", "4": "fp32"}
LETTERS: dict[str, tuple[str, ...] | str] = {
    "qv": ("q", "v"),
    "qkvo": ("q", "k", "v", "o"),
    "all7": "all",
}


TINY_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "vocab_size": 100,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_dropout": 0.0,
}


def keep_all_peak(costs: CostGraph) -> int:
    """Peak of the step that keeps everything."""
    chain = costs.to_chain()
    return chain.replay(chain.keep_all()).peak_bytes


@dataclass(frozen=True)
class Row:
    """One measurement; `error` is what the file lists, none where it has no formula."""

    case: str
    measured: int
    error: float | None


def rows() -> list[Row]:
    """All rows; an indented case goes with the row before it and is read with it."""
    found, last = [], ""
    with FILE.open(encoding="utf-8", newline="") as file:
        for record in csv.DictReader(file):
            case = record["case"]
            if case.startswith(" "):
                case = f"{last} | {case.strip()}"
            else:
                last = case
            listed = record["rel_err"]
            error = float(listed) if listed else None
            found.append(Row(case, int(record["measured_bytes"]), error))
    return found


def llama(width: int, heads: int, kv_heads: int, mlp: int, **fields: object) -> Shape:
    """A shape of the Llama family."""
    values = {
        "layers": 1,
        "width": width,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_width": width // heads,
        "mlp_width": mlp,
        "vocabulary": 1000,
    }
    return Shape("llama", "llama", **(values | fields))  # type: ignore[arg-type]


def gpt2(width: int, heads: int, activation: str, dropout: float = 0.0, **fields: object) -> Shape:
    """A shape of the GPT-2 family."""
    values = {
        "layers": 1,
        "width": width,
        "heads": heads,
        "kv_heads": heads,
        "head_width": width // heads,
        "mlp_width": 4 * width,
        "vocabulary": 1000,
        "positions": 1024,
        "gated": False,
        "activation": activation,
        "norm": "layer",
        "dropout": dropout,
        "attention_dropout": dropout,
    }
    return Shape("gpt2", "gpt2", **(values | fields))  # type: ignore[arg-type]


def mixtral(width: int, mlp: int, experts: int, chosen: int, heads: int, kv_heads: int) -> Shape:
    """A shape of the Mixtral family."""
    return Shape(
        "mixtral",
        "mixtral",
        layers=1,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_width=width // heads,
        mlp_width=mlp,
        vocabulary=1000,
        experts=experts,
        experts_per_token=chosen,
    )


def with_boolean_masks(kept: Activations, size: int) -> int:
    """Bytes of a CPU run whose dropout masks are counted at one byte, as CUDA's are."""
    # Noise, divided in place by the probability to stay.
    return sum(n // size if name == "aten.div_.Scalar" else n for name, n in kept.tensors)


def _llama(match: re.Match[str]) -> int:
    dropout, b, s, d, h, g, f, attention, e = match.groups()
    shape = llama(int(d), int(h), int(g), int(f), attention_dropout=0.1 if dropout else 0.0)
    kept = block_activations(
        shape, int(b), int(s), precision=PRECISION[e], attention=attention, device="cpu"
    )
    return with_boolean_masks(kept, int(e)) if dropout == "bool" else kept.total_bytes


def _gpt2(match: re.Match[str]) -> int:
    b, s, d, h, attention, activation, e, dropout, mask, korthikanti = match.groups()
    if korthikanti:
        # Korthikanti et al. 2022, equation 2, which the file lists beside the measurement.
        tokens = int(b) * int(s)
        return tokens * (34 * int(d) + 5 * int(h) * int(s))
    plain = activation.replace("gelu_pytorch_tanh", "gelu")
    shape = gpt2(int(d), int(h), plain, 0.1 if dropout == ".1" else 0.0)
    kept = block_activations(
        shape, int(b), int(s), precision=PRECISION[e], attention=attention, device="cpu"
    )
    return with_boolean_masks(kept, int(e)) if mask == "bool" else kept.total_bytes


def _lora(match: re.Match[str]) -> int:
    targets, rank, dropout, dtype, g, e = match.groups()
    kept = block_activations(
        llama(256, 8, int(g), 704),
        2,
        128,
        precision=PRECISION[e],
        train="lora",
        lora=Lora(int(rank), LETTERS[targets], dtype, float(dropout)),
        device="cpu",
    )
    return kept.total_bytes


def _frozen(match: re.Match[str]) -> int:
    precision = PRECISION[match[1]]
    return block_activations(
        llama(256, 8, 8, 704), 2, 128, precision=precision, train="frozen"
    ).total_bytes


def _autocast(match: re.Match[str]) -> int:
    b, s, d, h, g, f = map(int, match.groups())
    return block_activations(llama(d, h, g, f), b, s, precision="autocast").total_bytes


def _padded(match: re.Match[str]) -> int:
    b, s, d, h, g = map(int, match.groups())
    return block_activations(llama(d, h, g, 704), b, s, padding_mask=True).total_bytes


def _mixtral(match: re.Match[str]) -> int:
    how = match["how"].removesuffix("_mm")
    b, s, d, f, e, k = (int(match[name]) for name in "bsdfek")
    heads, kv_heads = {256: (8, 2), 384: (6, 3), 128: (4, 4)}[d]
    shape = mixtral(d, f, e, k, heads, kv_heads)
    return block_activations(shape, b, s, experts=how).total_bytes


def _step(match: re.Match[str]) -> int:
    """Peak of a whole step, or what is live after its forward.

    Two of a step's three moments (the optimizer's is the third): the loss's backward, and a
    block's, with all inputs of the blocks below, the block's own activations, the gradients of the
    blocks above, and what is made on top when the gradient reaches the product in the MLP: two
    tensors of T·f and the down projection's gradient.
    """
    layers, b, s, d, v, e = (int(match[name]) for name in ("l", "b", "s", "d", "v", "e"))
    heads, kv_heads, f = {256: (8, 2, 704), 128: (4, 4, 344)}[d]
    shape = llama(d, heads, kv_heads, f, layers=layers, vocabulary=v)
    precision, tokens = PRECISION[str(e)], b * s
    block = block_activations(shape, b, s, precision=precision, device="cpu")
    head = head_activations(shape, b, s, precision=precision)
    tables = embedding_activations(shape, b, s, precision=precision)
    checkpointed, accumulated = match["ckpt"] == "True", match["accum"] == "2"
    # Saved ids are the caller's. Checkpoints hold their block's input, and the position ids.
    below = sum(size for name, size in tables.tensors if name != "token ids")
    below += layers * (block.input_bytes if checkpointed else block.total_bytes)
    below += 8 * s if checkpointed else 0
    gradients = shape.parameters * e if accumulated else 0
    if match["after"]:
        return gradients + below + head.kept.total_bytes + head.kept.output_bytes
    below += 2 * head.kept.output_bytes  # the loss and its gradient
    moments = [gradients + below + head.peak_bytes]
    if checkpointed:
        for i in range(layers):
            made = (shape.head_parameters + (layers - 1 - i) * shape.block_parameters) * e
            under = below - (layers - 1 - i) * block.input_bytes
            work = block.saved_bytes + block.input_bytes + 2 * tokens * f * e
            # A gradient that is added to an older one is let go of at once.
            moments.append((gradients or made + d * f * e) + under + work)
    return max(moments)


def _segments(match: re.Match[str]) -> int:
    """Peak of uniform segments of k blocks, without weights' gradients.

    The inputs of all L/k segments, the activations of the k blocks being done, the gradient of
    their output, and the two tensors of T·f that the backward of an MLP's product makes.
    """
    layers, d, f, tokens, k = map(int, match.groups())
    heads = {256: 8, 128: 4}[d]
    block = block_activations(llama(d, heads, heads, f), 2, tokens // 2)
    boundaries = (layers // k + 1) * block.output_bytes
    return boundaries + k * block.saved_bytes + 2 * 2 * tokens * f


def _loss(match: re.Match[str]) -> int:
    # 1.28 million logits; a bf16 model but in the row that says fp32.
    name, peak = match["name"], match["what"].startswith("step peak")
    loss = {
        "HF v5 loss, bf16 logits, outputs kept": "hf-outputs-kept",
        "HF v5 loss, outputs dropped": "hf",
        "torchtitan/torchtune .float()": "hf",
        "fp32 model": "hf",
        "bf16 CE without upcast": "bf16",
        "chunked CE x8, all logits first": "hf",
        "checkpointed chunked CE x8": "chunked",
    }[name]
    figures = loss_bytes(loss, 4 if name == "fp32 model" else 2, chunks=8)
    # The chunked row's peak has the gradient of the head's weight in it: 2·d/T bytes a logit, with
    # d = 64 and T = 256.
    weight = 0.5 if peak and loss == "chunked" else 0.0
    return round(1_280_000 * (figures[peak] + weight))


Reader = Callable[[re.Match[str]], int]
SIZES = r"B(\d+) S(\d+) d(\d+) H(\d+)"
READERS: dict[str, Reader] = {
    rf"llama full (?:attn-dropout .1 (CPU|bool) mask )?{SIZES} G(\d+) f(\d+) (\w+) e(\d)": _llama,
    rf"gpt2 full {SIZES} (\w+) (\w+) e(\d) p(0|.1)(?: (CPU|bool) mask)?( \| same vs Kor.*)?": _gpt2,
    r"llama LoRA\[(\w+)\] r(\d+) p([\d.]+) adapters (\w+) G(\d) sdpa e(\d)": _lora,
    r"llama frozen base, grad to inputs only e(\d)": _frozen,
    rf"llama full autocast\(bf16\) {SIZES} G(\d+) f(\d+) sdpa: .*": _autocast,
    rf"llama full bf16 sdpa WITH padding mask {SIZES} G(\d+): .*": _padded,
    r"mixtral full bf16 experts=(?P<how>\w+) E(?P<e>\d+) top(?P<k>\d) "
    r"B(?P<b>\d+) S(?P<s>\d+) d(?P<d>\d+) f(?P<f>\d+)": _mixtral,
    r"mixtral held-out shape (?P<how>\w+) B(?P<b>\d+) S(?P<s>\d+) d(?P<d>\d+) f(?P<f>\d+) "
    r"E(?P<e>\d+) top(?P<k>\d)": _mixtral,
    r"L(?P<l>\d+) B(?P<b>\d+) S(?P<s>\d+) d(?P<d>\d+) V(?P<v>\d+) e(?P<e>\d) ckpt=(?P<ckpt>\w+) "
    r"accum=(?P<accum>\d) .*?(?P<after> \| after forward)?": _step,
    r"segments: L(\d+) d(\d+) f(\d+) T(\d+) k=(\d+) peak activations": _segments,
    r"loss head: (?P<name>.*): (?P<what>(bytes|step peak).*)": _loss,
}
NOT_COVERED = {
    r"AdamW .* step temporaries .*": "of the optimizer's step, not of activations",
    r"loss head: HF v4 loss .*": "transformers 4 is not what is installed; head_activations has 5",
    r"loss head: chunked CE x8, all logits first: step peak .*": "keeps what no chunks do: unused",
}


def reason_not_covered(row: Row) -> str | None:
    """Why no formula says anything about this row; none where one does."""
    return next((why for what, why in NOT_COVERED.items() if re.fullmatch(what, row.case)), None)


def prediction(row: Row) -> int:
    """What the formula says."""
    for pattern, reader in READERS.items():
        match = re.fullmatch(pattern, row.case)
        if match:
            return reader(match)
    raise AssertionError(f"no reader for {row.case}")
