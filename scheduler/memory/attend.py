"""Attention, on paper: see `modules`."""

from __future__ import annotations

from scheduler.memory.kernels import cast, dropout, rms_norm, rotary, split, unary, view
from scheduler.memory.modules import project
from scheduler.memory.paper import Paper, Value
from scheduler.memory.setting import Setting, linears

__all__ = ["attend"]

_WIDEST_FUSED_HEAD = 256


def attend(paper: Paper, at: Setting, x: Value) -> tuple[Value, Value | None]:
    """Run attention on the normed input, its output projection and GPT-2's dropout with it.

    Eager attention also returns the probabilities, and the block refers to them to its end.
    """
    shape = at.shape
    if "qkv" in linears(shape):
        widths = [shape.query_width, shape.kv_width, shape.kv_width]
        q, k, v = split(paper, project(paper, at, x, "qkv"), widths)
    else:
        q, k, v = (project(paper, at, x, name) for name in ("q", "k", "v"))
        # Rotary hands its gradient on with heads before tokens: a copy puts it in order.
        q, k = view(paper, q, copied=True), view(paper, k, copied=True)
    if shape.qk_norm:
        q = rms_norm(paper, at, q, shape.head_width)
        k = rms_norm(paper, at, k, shape.head_width)
    if not shape.positions:
        q, k = _turned(paper, at, q, k)
    x, probabilities = (_eager if at.eager else _fused)(paper, at, q, k, v)
    x = project(paper, at, x, "o")
    return dropout(paper, at, x, shape.dropout), probabilities


def _turned(paper: Paper, at: Setting, q: Value, k: Value) -> tuple[Value, Value]:
    table = paper.leaf(at.sequence * at.shape.head_width, at.stream, trained=False)
    turned = rotary(paper, q, table)
    return turned, rotary(paper, k, table)


def _fused(paper: Paper, at: Setting, q: Value, k: Value, v: Value) -> tuple[Value, None]:
    """Run scaled_dot_product_attention: 4·A·a FLOPs, 2.5 times that backward (scores again).

    A causal mask halves both, as flash kernels skip what it hides; a padding mask does not.
    """
    shape = at.shape
    q, k, v = (cast(paper, part, at.compute) for part in (q, k, v))
    flops = 4 * at.probabilities * shape.head_width // (1 if at.padding_mask else 2)
    wide = shape.head_width > _WIDEST_FUSED_HEAD
    if (at.padding_mask or wide) and 1 < shape.kv_heads < shape.heads:
        k, v = _expanded(paper, at, k), _expanded(paper, at, v)
    masks = []
    if at.padding_mask:
        masks.append(paper.compute((), at.batch * at.sequence**2, at.compute))
    saved = paper.save(q, k, v, *masks)
    made = paper.compute((q, k, v, *masks), q.elements, at.compute, flops)
    sums = paper.compute((), at.tokens * shape.heads, 4)
    saved = (*saved, *paper.save(made, sums))
    sizes = [part.elements for part in (q, k, v)]

    def back(grads: list[Value], saved: tuple[Value, ...]) -> list[Value]:
        paper.spend(sum(part.bytes for part in (*grads, *saved)), flops * 2.5)
        return [paper.compute((), n, at.compute) for n in sizes]

    paper.record(made, (q, k, v), back, saved)
    return made, None


def _expanded(paper: Paper, at: Setting, x: Value) -> Value:
    made, n = paper.compute((x,), at.tokens * at.shape.query_width, x.size), x.elements
    paper.record(made, (x,), lambda g, saved: [paper.compute(g, n, g[0].size)])
    return made


def _eager(paper: Paper, at: Setting, q: Value, k: Value, v: Value) -> tuple[Value, Value]:
    """Run softmax(q kᵀ · scale + mask) v, operation by operation."""
    if at.shape.kv_heads < at.shape.heads:
        k, v = _expanded(paper, at, k), _expanded(paper, at, v)
    heads = at.tokens * at.shape.query_width
    scores = _scores(paper, at, q, k)
    size = at.compute if at.shape.family == "gpt2" else 4
    scores = cast(paper, unary(paper, cast(paper, scores, size), saves="output"), at.compute)
    scores = dropout(paper, at, scores, at.shape.attention_dropout)
    made = _product(paper, at, scores, v, heads)
    return view(paper, made, copied=True), scores


def _scores(paper: Paper, at: Setting, q: Value, k: Value) -> Value:
    scores = _product(paper, at, q, k, at.probabilities)
    scores = unary(paper, scores)
    if at.shape.family == "gemma2":
        scores = unary(paper, unary(paper, unary(paper, scores), saves="output"))
    mask = paper.leaf(at.sequence**2, at.compute, trained=False)
    made = paper.compute((scores, mask), scores.elements, scores.size)
    paper.record(made, (scores,), lambda g, saved: g)
    return made


def _product(paper: Paper, at: Setting, x: Value, y: Value, elements: int) -> Value:
    """Run a product of every head: 2·A·a FLOPs. Factors with heads apart are copied together."""
    flops = 2 * at.probabilities * at.shape.head_width
    x, y = (
        part if part.elements == at.probabilities else view(paper, part, made=True)
        for part in (x, y)
    )
    sizes = x.elements, y.elements
    saved = paper.save(x, y)
    made = paper.compute((x, y), elements, x.size, flops)

    def back(grads: list[Value], saved: tuple[Value, ...]) -> list[Value]:
        x, y = saved
        return [
            paper.compute((*grads, y), sizes[0], x.size, flops),
            paper.compute((*grads, x), sizes[1], y.size, flops),
        ]

    paper.record(made, (x, y), back, saved)
    return made
