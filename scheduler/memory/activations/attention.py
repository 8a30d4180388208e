"""What attention keeps, from its normed input to its output projection.

T = batch · sequence, dq = heads · head width, dk = key-value heads · head width,
A = batch · heads · sequence², e bytes an element.
"""

from __future__ import annotations

from scheduler.memory.activations.operations import dropout, linear, rms_norm, rotary
from scheduler.memory.activations.setting import Setting, linears
from scheduler.memory.activations.tape import Tape, Tensor

__all__ = ["JOINED_BY_ROTARY", "attention", "expands"]

_WIDEST_FUSED_HEAD = 256
JOINED_BY_ROTARY = ("gpt_neox", "phi3")
"""Families whose rotary slices a head and joins the parts again, head by head in memory."""


def attention(tape: Tape, at: Setting, x: Tensor) -> Tensor:
    """Run attention on the normed input x.

    Three projections (GPT-2: one), norms of queries and keys where the shape has them, rotary
    where there are no learned positions, the attention itself, the output projection.
    """
    sizes = linears(at.shape)
    if "qkv" in sizes:
        # Queries, keys and values are views of one tensor: whoever keeps one, not a copy of it,
        # keeps all. Rotary makes copies of queries and keys.
        q = k = v = linear(tape, at, x, "qkv", *sizes["qkv"])
    else:
        q, k, v = (linear(tape, at, x, name, *sizes[name]) for name in ("q", "k", "v"))
    if at.shape.qk_norm:
        q = rms_norm(tape, at, q, "query norm", at.tokens * at.shape.heads)
        k = rms_norm(tape, at, k, "key norm", at.tokens * at.shape.kv_heads)
    if not at.shape.positions:
        q = rotary(at, "queries", at.shape.query_width)
        k = rotary(at, "keys", at.shape.kv_width)
    result = (_eager if at.eager else _fused)(tape, at, q, k, v)
    return linear(tape, at, result, "o", *sizes["o"])


def _fused(tape: Tape, at: Setting, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Run scaled_dot_product_attention, a flash kernel.

    Kept: queries e·T·dq, keys and values e·T·dk each, the log of each row's sum of exponentials in
    fp32, 4·T·heads, and the output e·T·dq, which the output projection shares. No probabilities.
    The output lies in memory as the queries do. Where rotary has put them head by head (GPT-NeoX,
    Phi-3) the projection gets a copy, heads side by side, and keeps that as well when trained.

    With a padding mask, or a sequence as long as the model's window, keys and values are first
    expanded to all heads (e·T·dq each), and the boolean mask is turned into one of numbers in every
    layer, e·batch·sequence². Heads wider than 256, which the flash kernels do not take, expand them
    too. One key-value head is expanded without a copy.

    Dropout on the probabilities keeps nothing more on CUDA, where the kernel keeps its seed. The
    CPU's kernel has none: the attention is computed in fp32 step by step and keeps queries, keys
    and values in fp32 (4·T·dq each), and the probabilities, the mask and the probabilities after
    dropout, 4·A each. (Values in fp32 that can be read where they are keep GPT-2's whole q, k, v.)
    """
    shape = at.shape
    if not at.cuda and shape.attention_dropout:
        return _by_steps(tape, at, v)
    if at.masked:
        tape.keep(Tensor("mask in numbers", at.batch * at.sequence**2, at.compute))
    if expands(at):
        # One head is expanded in place, but autocast casts the keys (fp32 out of rotary) after it.
        k = _expanded(at, "keys") if shape.kv_heads > 1 or at.autocast else k
        v = _expanded(at, "values") if shape.kv_heads > 1 else v
    tape.keep(q, k, v)
    tape.keep(Tensor("log of sums of exponentials", at.tokens * shape.heads, 4))
    result = Tensor("attention output", at.tokens * shape.query_width, at.compute)
    tape.keep(result)
    copied = shape.family in JOINED_BY_ROTARY and shape.heads > 1
    return result.named("attention output, heads side by side") if copied else result


def expands(at: Setting) -> bool:
    """Whether transformers expands keys and values to all heads before a fused attention."""
    wide = at.shape.head_width > _WIDEST_FUSED_HEAD
    return (at.masked or wide) and at.shape.kv_heads < at.shape.heads


def _by_steps(tape: Tape, at: Setting, v: Tensor) -> Tensor:
    """Run what `_fused` becomes on the CPU with dropout."""
    heads = Tensor("attention output", at.tokens * at.shape.query_width, 4)
    tape.keep(heads.named("scaled queries"), heads.named("scaled keys"))
    shared = at.shape.kv_heads < at.shape.heads
    in_place = _readable(at) and (expands(at) or not shared)
    tape.keep(v if v.size == 4 and in_place else heads.named("values in fp32"))
    every = Tensor("probabilities", at.probabilities, 4)
    tape.keep(every, every.named("probabilities' dropout mask"), every.named("dropped ones"))
    return heads.named("attention output", at.compute)


def _eager(tape: Tape, at: Setting, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Run softmax(q kᵀ · scale + mask) v, operation by operation.

    Kept: queries, and keys and values expanded to all heads, by the two products: 3·e·T·dq (with
    one key-value head and a batch of one they are expanded without a copy). Softmax keeps its
    output. Llama computes it in fp32 and casts it: 4·A, and e·A for the cast, which the product
    with v keeps (one tensor when e = 4); GPT-2 computes it in its own dtype: e·A. Dropout keeps a
    mask of m bytes, m·A, and the product keeps what comes out of it, e·A, in place of the cast.
    Gemma 2 caps the scores with a tanh, which keeps its output, e·A.
    The output is kept by its projection alone.
    """
    shape = at.shape
    if not _readable(at):
        q, k, v = (_expanded(at, name) for name in ("queries", "keys", "values"))
    tape.keep(q, k, v)
    if shape.family == "gemma2":
        tape.keep(Tensor("capped scores", at.probabilities, at.compute))
    in_fp32 = shape.family != "gpt2"
    softmax = Tensor("probabilities", at.probabilities, 4 if in_fp32 else at.compute)
    tape.keep(softmax)
    cast = softmax.named("cast probabilities", at.compute)
    used = softmax if cast.size == softmax.size else cast
    tape.keep(dropout(tape, at, used, "probabilities' dropout", shape.attention_dropout))
    return Tensor("attention output", at.tokens * shape.query_width, at.compute)


def _expanded(at: Setting, name: str) -> Tensor:
    """Queries, keys or values in a tensor of their own, for every head."""
    return Tensor(f"{name}, for every head", at.tokens * at.shape.query_width, at.compute)


def _readable(at: Setting) -> bool:
    """Whether a product of all heads at once reads queries, keys and values where they are.

    It sees batch and heads as one dimension. That is a copy, unless one of the two is 1; and a
    copy for every head where heads share keys and values, unless all share one and the batch is 1.
    """
    shape = at.shape
    if shape.kv_heads < shape.heads:
        return at.batch == shape.kv_heads == 1
    return 1 in (at.batch, shape.heads)
