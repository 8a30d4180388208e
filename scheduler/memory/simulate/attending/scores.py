"""Attention whose scores and probabilities are tensors of their own, on paper: see `modules`."""

from __future__ import annotations

from scheduler.memory.simulate.attending.rotary import JOINED_BY_ROTARY
from scheduler.memory.simulate.kernels import (
    cast,
    dropout,
    join,
    part,
    scale,
    subtract,
    unary,
    view,
)
from scheduler.memory.simulate.setting import Setting
from scheduler.memory.simulate.tensors import Paper, Value

WIDEST_FUSED_HEAD = 256
_SOFTMAX_AS_IT_IS = ("gpt2", "bert", "llama4_text", "roberta", "t5")
"""Families whose eager attention runs softmax in the scores' own dtype."""


def expands(at: Setting) -> bool:
    """Whether transformers expands keys and values to all heads before a fused attention."""
    wide = at.shape.head_width > WIDEST_FUSED_HEAD
    return (at.masked or wide) and at.shape.kv_heads < at.shape.heads


def by_steps(
    paper: Paper, at: Setting, q: Value, k: Value, v: Value, mask: Value | None = None
) -> tuple[Value, None]:
    """Run what scaled_dot_product_attention is without a kernel of its own."""
    return view(paper, _in_fp32(paper, at, q, k, v, mask), made=at.shape.heads > 1), None


def _in_fp32(paper: Paper, at: Setting, q: Value, k: Value, v: Value, mask: Value | None) -> Value:
    """Run it in fp32. torch's function holds all that it has given a name to its end."""
    shape, apart = at.shape, at.batch > 1 and at.shape.heads > 1
    q_copied = apart and shape.family not in JOINED_BY_ROTARY
    k_copied, v_copied = q_copied, apart
    if expands(at):
        k, v = expanded(paper, at, k), expanded(paper, at, v)
        k_copied, v_copied = False, apart and shape.kv_heads == 1
    if mask is None and at.masked:
        mask = in_numbers(paper, at)
    in_fp32 = [cast(paper, part, 4) for part in (q, k, v)]
    queries, keys, values = in_fp32
    queries = unary(paper, queries, "aten.mul.Scalar")
    if mask is None and shape.causal:
        mask = _causal(paper, at)
    if shape.kv_heads < shape.heads and not expands(at):
        keys, values = (expanded(paper, at, part, copied=True) for part in (keys, values))
        k_copied = v_copied = False
    scores = _scaled_scores(paper, at, queries, keys, (q_copied, k_copied))
    if mask is not None:
        scores = _added(paper, scores, mask)
    scores = unary(paper, scores, "aten._safe_softmax.default", saves="output")
    scores = dropout(paper, at, scores, shape.attention_dropout)
    _returned = cast(paper, scores, at.compute)
    heads = at.tokens * shape.attended_width
    made = _product(paper, at, scores, _factor(paper, values, v_copied), heads)
    return cast(paper, view(paper, made, copied=apart), at.compute)


def _scaled_scores(
    paper: Paper, at: Setting, q: Value, k: Value, copied: tuple[bool, bool]
) -> Value:
    factors = q, unary(paper, k, "aten.mul.Scalar")
    q, k = (_factor(paper, x, new) for x, new in zip(factors, copied, strict=True))
    return _product(paper, at, q, k, at.probabilities)


def _causal(paper: Paper, at: Setting) -> Value:
    n = at.sequence**2
    every = paper.compute((), n, 1, op="aten.ones.default")
    lower = paper.compute((every,), n, 1, op="aten.tril.default")
    del every
    return _numbers(paper, lower, 4)


def in_numbers(paper: Paper, at: Setting) -> Value:
    """The mask that every block is handed, in numbers."""
    mask = paper.leaf(at.batch * at.sequence**2, 1, trained=False)
    return _numbers(paper, mask, at.compute)


def _numbers(paper: Paper, mask: Value, size: int) -> Value:
    """Turn a mask of booleans into one of zeros and minus infinities."""
    numbers = [paper.compute((), 1, size, op="aten.scalar_tensor.default") for _ in range(2)]
    return paper.compute((mask, *numbers), mask.elements, size, op="aten.where.self")


def expanded(paper: Paper, at: Setting, x: Value, *, copied: bool = False) -> Value:
    """Keys or values for every head: a copy, unless one head is read as all of them."""
    made = x.view(at.tokens * at.shape.query_width)
    if copied or at.shape.kv_heads > 1:
        made = paper.compute((made,), made.elements, x.size, op="aten.clone.default")
    paper.record_simple(made, x)
    return made


def eager(
    paper: Paper, at: Setting, q: Value, k: Value, v: Value, bias: Value | None = None
) -> tuple[Value, Value]:
    """Run softmax(q kᵀ · scale + mask) v, operation by operation.

    Softmax is in fp32 and its output cast, 4·A and e·A; some have it in their own dtype, e·A.

    A product sees batch and heads as one dimension. A factor in which the two do not lie so is
    copied; those that rotary has joined or that are expanded to all heads lie so already.
    """
    shape = at.shape
    heads, apart = at.tokens * shape.attended_width, at.batch > 1 and shape.heads > 1
    q_copied = k_copied = apart and shape.family not in JOINED_BY_ROTARY
    v_copied = apart
    if shape.kv_heads < shape.heads:
        k, v = expanded(paper, at, k), expanded(paper, at, v)
        k_copied = v_copied = apart and shape.kv_heads == 1
    scores = _scores(paper, at, q, k, (q_copied, k_copied), bias)
    if shape.sinks:
        chances, _combined = _with_sinks(paper, at, scores)
        scores = dropout(paper, at, chances, shape.attention_dropout)
        made = _product(paper, at, scores, _factor(paper, v, v_copied), heads)
        return view(paper, made, made=shape.heads > 1, copied=apart), scores
    size = at.compute if shape.family in _SOFTMAX_AS_IT_IS else 4
    scores = unary(paper, cast(paper, scores, size), "aten._softmax.default", saves="output")
    scores = cast(paper, scores, at.compute)
    scores = dropout(paper, at, scores, shape.attention_dropout)
    made = _product(paper, at, scores, _factor(paper, v, v_copied), heads)
    return view(paper, made, made=shape.heads > 1, copied=apart), scores


def _scores(
    paper: Paper,
    at: Setting,
    q: Value,
    k: Value,
    copied: tuple[bool, bool],
    bias: Value | None,
) -> Value:
    q_new, k_new = copied
    factors = _factor(paper, q, q_new), _factor(paper, k, k_new)
    scores = _product(paper, at, *factors, at.probabilities)
    del factors
    scores = scale(paper, scores)
    if at.shape.family == "gemma2":
        scores = unary(paper, scores, "aten.div.Tensor")
        scores = unary(paper, scores, "aten.tanh.default", saves="output")
        scores = scale(paper, scores)
    if bias is not None:
        scores = _added(paper, scores, bias)
    if not (at.shape.causal or at.masked):
        return scores
    mask = paper.leaf(at.batch * at.sequence**2, at.compute, trained=False)
    return _added(paper, scores, mask)


def _with_sinks(paper: Paper, at: Setting, scores: Value) -> tuple[Value, Value]:
    """Run softmax beside a sink's score, which then goes; and what softmax ran on."""
    size, rows = at.compute, scores.elements // at.sequence
    sink = paper.leaf(at.shape.heads, size, trained=at.trained)
    spread = sink.view(rows)
    paper.record_simple(spread, sink)
    every = join(paper, scores, spread)
    highest, places = paper.run("aten.max.dim", (every,), [(rows, size), (rows, 8)])
    n = every.elements
    paper.record(
        highest, (every,), lambda g, saved: [paper.compute(g, n, size)], paper.save(places)
    )
    del places
    every = subtract(paper, every, highest)
    del highest
    chances = unary(paper, every, "aten._softmax.default", saves="output")
    return part(paper, chances, scores.elements), every


def _added(paper: Paper, scores: Value, mask: Value) -> Value:
    made = paper.compute((scores, mask), scores.elements, scores.size, op="aten.add.Tensor")
    n, size = mask.elements, mask.size

    def back(grads: list[Value], saved: list[Value]) -> list[Value | None]:
        (g,) = grads
        if not learned:
            return [g, None]
        # The engine sums over the batch, and casts.
        to_mask = g if n == g.elements else paper.compute((g,), n, g.size)
        return [g, to_mask if size == g.size else paper.compute((to_mask,), n, size)]

    learned = mask.node is not None
    paper.record(made, (scores, mask), back)
    return made


def _factor(paper: Paper, x: Value, copied: bool) -> Value:
    """Queries, keys or values as a product of all heads sees them."""
    return view(paper, x, made=True) if copied else x


def _product(paper: Paper, at: Setting, x: Value, y: Value, elements: int) -> Value:
    """Run a product of every head: 2·A·a FLOPs."""
    inner = at.shape.head_width if elements == at.probabilities else at.shape.value_head_width
    flops = 2 * at.probabilities * inner
    sizes = x.elements, y.elements
    kept = paper.save(x, y)
    made = paper.compute((x, y), elements, x.size, flops, op="aten.bmm.default")

    def back(grads: list[Value], saved: list[Value]) -> list[Value]:
        x, y = saved
        return [
            paper.compute((*grads, y), sizes[0], x.size, flops),
            paper.compute((*grads, x), sizes[1], y.size, flops),
        ]

    paper.record(made, (x, y), back, kept)
    return made
