"""What LitGPT keeps when it trains adapters: its blocks are not those of transformers.

Read from LitGPT's public sources of late 2023 (``lit_gpt/model.py``, ``lora.py``, ``rmsnorm.py``,
``utils.py``, ``finetune/lora.py``), facts only. The tables of ``tutorials/resource-tables.md`` were
made with them: precision bf16-true, fused attention, adapters on queries and values inside one qkv
layer, dropout before them, everything else frozen.
"""

from __future__ import annotations

from scheduler.memory.activations import Activations
from scheduler.memory.errors import (
    InvalidRecipe,
    InvalidShape,
    check_choice,
    check_count,
    check_flag,
)
from scheduler.memory.recipe import DEVICES
from scheduler.memory.shape.shape import Shape
from tests.memory.tape import Tape, Tensor

__all__ = ["CHUNK", "adapter_parameters", "litgpt_block", "litgpt_lora_bytes", "litgpt_loss_bytes"]

CHUNK = 128  # tokens of each sequence that head and loss take at a time: lm_head_chunk_size
_BF16 = 2


def litgpt_block(
    shape: Shape,
    batch: int,
    sequence: int,
    rank: int,
    *,
    first: bool = False,
    shared_norm: bool = False,
    device: str = "cuda",
) -> Activations:
    """What one block keeps: frozen weights in bf16, adapters on q and v behind dropout.

    With T = B·S tokens, d the width, f the MLP's, H heads, r the rank, in bytes:

    - Each norm: its input. RMS norm computes in fp32 (x₃₂ = x.float(); x₃₂², its mean, then
      x₃₂ · rsqrt(mean)): x₃₂ 4·T·d and the reciprocal roots 4·T. Layer norm: x 2·T·d, mean and
      reciprocal deviation 4·T each. The weight is frozen, so what it multiplies is not kept.
    - Adapters: dropout's mask, T·d (one byte an element on CUDA), and its output 2·T·d, which A
      keeps; A's output of 2r features, 4·T·r, which B keeps. B gives updates of q and v alone,
      2d features. They are copied by ``index_copy`` into zeros as wide as q, k and v, and that
      operation keeps its source, 4·T·d (torch's derivative takes its sizes from there), and the
      positions it wrote to, int64, 8·2d.
    - Attention: rotary makes queries and keys, 2·T·d each. Values are a view of the whole qkv
      output, 6·T·d, which stays for them. The output 2·T·d, and 4·T·H log-sums.
    - MLP, its linear layers frozen: gated, the outputs of gate, silu and up, 6·T·f; else gelu's
      input, 2·T·f.

    Where heads share keys and values (dk features, and dq of queries) these are copied for all
    heads, values too, so that nothing holds the qkv output: 6·T·dq for the three; an update has
    dq + dk features.

    Llama: T(27d + 4r + 6f + 4H + 8) + 16d. With a parallel residual both layer norms read the same
    input, and in phi-1.5 they are one: T(21d + 4r + 2f + 4H + 8 a norm) + 16d.

    In the first block nothing before the adapters needs a gradient, since the embedding is frozen:
    its norm before attention keeps nothing and dropout no mask. With a parallel residual the MLP
    and its norm keep nothing either.

    RMS norm in fp32 is what later sources have. Earlier ones compute it in bf16, which keeps
    T(2d + 2) less a norm. Which of them commit 8641822 of the table has could not be read: that it
    is the later is an inference. "Half precision fixes", LitGPT's pull request 606, came shortly
    before, and in the table memory grows by 7.77 GB from one sequence of Llama 2 7B to two: by
    7.74 with the norm in fp32, by 7.06 with the other.

    Parameters
    ----------
    shape
        The model's.
    batch, sequence
        B and S.
    rank
        r, of each of the two adapters.
    first
        Is it the model's first block?
    shared_norm
        One norm serves attention and MLP (phi-1.5).
    device
        "cuda" or "cpu", where dropout's mask is noise in bf16, 2·T·d, and a layer norm's statistics
        are in bf16 too.

    Raises
    ------
    InvalidRecipe
        A size is not a positive whole number, or a name is unknown.
    InvalidShape
        The head's width does not follow from the model's, or one norm is to serve two sublayers in
        a row.
    """
    tokens = check_count("batch", batch, InvalidRecipe)
    tokens *= check_count("sequence", sequence, InvalidRecipe)
    check_count("rank", rank, InvalidRecipe)
    check_flag("first", first, InvalidRecipe)
    cuda = check_choice("device", device, DEVICES, InvalidRecipe) == "cuda"
    _check(shape, check_flag("shared_norm", shared_norm, InvalidRecipe))
    tape, d = Tape(), tokens * shape.width
    given = Tensor("input", d, _BF16)
    updated, values = shape.query_width + shape.kv_width, 3 if shape.kv_heads == shape.heads else 1
    if not first:
        _norm(tape, shape, given, "attention norm", cuda)
        tape.keep(Tensor("dropout mask", d, 1 if cuda else _BF16))
    tape.keep(
        Tensor("dropped input", d, _BF16),
        Tensor("after A", tokens * 2 * rank, _BF16),
        Tensor("update of queries and values", tokens * updated, _BF16),
        Tensor("where updates go", updated, 8),
        Tensor("turned queries", d, _BF16),
        Tensor("turned keys", d, _BF16),
        Tensor("values, in a view of queries, keys and values", values * d, _BF16),
        Tensor("attention output", d, _BF16),
        Tensor("log of sums of exponentials", tokens * shape.heads, 4),
    )
    if not (first and shape.parallel):
        middle = given if shape.parallel else given.named("middle")
        if not shared_norm:
            _norm(tape, shape, middle, "MLP norm", cuda)
        inside = Tensor("activation input", tokens * shape.mlp_width, _BF16)
        tape.keep(inside)
        if shape.gated:
            tape.keep(inside.named("activation output"), inside.named("up output"))
    return tape.finish(given, given.named("output"))


def litgpt_lora_bytes(
    shape: Shape, batch: int, sequence: int, rank: int = 8, *, shared_norm: bool = False
) -> int:
    """Most bytes of ``finetune/lora.py`` on one GPU: its first step, whose batch is the longest.

    - Weights in bf16, 2P, and adapters 2·P_a, P_a = L·r(2·d + dq + dk): A from d to 2r features, B
      from r to dq and to dk (4,194,304 for Llama 2 7B, as the tables say). Gradients and moments do
      not exist yet: the script takes its longest sequence first, and steps the optimizer only after
      it has accumulated.
    - Blocks, see `litgpt_block`; the last norm's input.
    - Logits and loss, see `litgpt_loss_bytes`.

    Left out: rotary tables and token ids, at most 2 MB here, and cuBLAS's workspace, about 8.

    Parameters
    ----------
    shape, batch, sequence, rank, shared_norm
        As in `litgpt_block`; the vocabulary is LitGPT's padded one.
    """
    block = litgpt_block(shape, batch, sequence, rank, shared_norm=shared_norm)
    start = litgpt_block(shape, batch, sequence, rank, first=True, shared_norm=shared_norm)
    tape = Tape()
    given = Tensor("input", batch * sequence * shape.width, _BF16)
    _norm(tape, shape, given, "last norm", cuda=True)
    kept = (shape.layers - 1) * block.total_bytes + start.total_bytes
    kept += tape.finish(given, given.named("output")).total_bytes
    loss = litgpt_loss_bytes(shape.vocabulary, batch, sequence)
    parameters = shape.parameters - shared_norm * shape.layers * shape.norm_parameters
    adapters = shape.layers * adapter_parameters(shape, rank)
    return _BF16 * (parameters + adapters) + kept + loss


def adapter_parameters(shape: Shape, rank: int) -> int:
    """Of the adapters of one block."""
    return rank * (2 * shape.width + shape.query_width + shape.kv_width)


def litgpt_loss_bytes(vocabulary: int, batch: int, sequence: int, chunk: int = CHUNK) -> int:
    """Most bytes of logits and loss: 4·V·(2·T - B + 2·B·chunk).

    Fabric hands a model's outputs on in fp32, and the script holds them, 4·T·V. Cross-entropy's
    log-softmax keeps its output, 4·V for each of the T - B tokens that have a label. Head and loss
    run on chunks of tokens of each sequence. In the backward a chunk's gradients with respect to
    its log-softmax and to its logits are there, 4·V a row each, before the log-softmax goes; the
    second one stays in its place until the head's turn, after all chunks. So the peak is 8·V a row
    of a chunk above what was kept.

    Parameters
    ----------
    vocabulary
        V, LitGPT's padded one.
    batch, sequence
        B and S, T = B·S.
    chunk
        Tokens of a sequence in a chunk.
    """
    labelled = sequence - 1
    return 4 * vocabulary * batch * (sequence + labelled + 2 * min(chunk, labelled))


def _norm(tape: Tape, shape: Shape, x: Tensor, name: str, cuda: bool) -> None:
    rows = x.elements // shape.width
    if shape.norm == "rms":
        tape.keep(x.named(f"{x.name} in fp32", 4), Tensor(f"{name} reciprocal root", rows, 4))
        return
    tape.keep(x)
    for part in ("mean", "reciprocal deviation"):
        tape.keep(Tensor(f"{name} {part}", rows, 4 if cuda else _BF16))


def _check(shape: Shape, shared_norm: bool) -> None:
    if shape.query_width != shape.width:
        raise InvalidShape(
            f"LitGPT's heads are as wide as the model together, {shape.width}; those of "
            f"{shape.name} are {shape.query_width}"
        )
    if shared_norm and not shape.parallel:
        raise InvalidShape(f"one norm for attention and MLP needs them parallel in {shape.name}")
