"""A mixture of experts, on paper: transformers' grouped product over sorted rows, op by op.

R = T·k rows, one for each of the k experts of a token; how tokens are routed changes no size, so
the working memory does not depend on it. Variables live as long as in transformers 5.24. Weights of
rows are u bytes: 4, or e in Qwen's families, which cast them.
"""

from __future__ import annotations

from scheduler.memory.simulate.kernels import add, cast, linear, multiply, split, unary
from scheduler.memory.simulate.modules import activate
from scheduler.memory.simulate.setting import Setting
from scheduler.memory.simulate.tensors import Paper, Value

__all__ = ["mixture"]


def mixture(paper: Paper, at: Setting, x: Value) -> Value:
    """Run the router, k of E experts for every token, and the shared expert where there is one."""
    shape = at.shape
    if not shape.shared_expert_width:
        _logits, shares, chosen = _route(paper, at, x)
        return _experts(paper, at, x, shares, chosen)
    shared = _gated(paper, at, x, shape.shared_expert_width)
    _logits, shares, chosen = _route(paper, at, x)
    made = _experts(paper, at, x, shares, chosen)
    open_ = unary(
        paper,
        linear(paper, x, shape.width, 1, trained=at.trained),
        "aten.sigmoid.default",
        saves="output",
    )
    shared = multiply(paper, open_, shared)
    del open_
    return add(paper, made, shared)


def _gated(paper: Paper, at: Setting, x: Value, width: int) -> Value:
    d = at.shape.width

    def inside() -> Value:
        active = activate(paper, at, linear(paper, x, d, width, trained=at.trained))
        return multiply(paper, active, linear(paper, x, d, width, trained=at.trained))

    return linear(paper, inside(), width, d, trained=at.trained)


def _route(paper: Paper, at: Setting, x: Value) -> tuple[Value, Value, Value]:
    """Run the router: scores of all experts, shares and indices of those chosen."""
    shape, rows = at.shape, at.tokens * at.shape.experts_per_token
    logits = linear(paper, x, shape.width, shape.experts, trained=at.trained)
    chances = unary(paper, cast(paper, logits, 4), "aten._softmax.default", saves="output")
    every = chances.elements
    shares, indices = paper.run("aten.topk.default", (chances,), [(rows, 4), (rows, 8)])
    paper.record(
        shares, (chances,), lambda g, saved: [paper.compute(g, every, 4)], paper.save(indices)
    )
    if shape.shares_divided:
        shares = _divided(paper, at, shares)
    if shape.family.startswith("qwen"):
        shares = cast(paper, shares, at.compute)
    return logits, shares, indices


def _divided(paper: Paper, at: Setting, shares: Value) -> Value:
    """Divide by the sum, in place: what was there is copied for the backward."""
    n = shares.elements
    total = unary(paper, shares, "aten.sum.dim_IntList", elements=at.tokens)
    before = paper.compute((shares,), n, 4, op="aten.clone.default")
    saved = paper.save(before, total)
    made = shares.view()
    paper.change("aten.div_.Tensor", made, total)

    def back(grads: list[Value], saved: list[Value]) -> list[Value]:
        to_shares = paper.compute((*grads, saved[1]), n, 4)
        return [to_shares, paper.compute((*grads, *saved), at.tokens, 4)]

    paper.record(made, (shares, total), back, saved)
    return made


def _experts(paper: Paper, at: Setting, x: Value, shares: Value, chosen: Value) -> Value:
    """Sort rows by expert, run gate, up and down on all, weight and add them up."""
    shape, d, f = at.shape, at.shape.width, at.shape.mlp_width
    rows = shares.elements
    ids, order = paper.run("aten.sort.default", (chosen,), [(rows, 8), (rows, 8)])
    token = paper.compute((order,), rows, 8, op="aten.floor_divide.default")
    taken = _rows(paper, x, rows * d, token)
    del token
    weights = _rows(paper, shares, rows, order)
    counted = paper.compute((ids,), rows, 4, op="aten._to_copy.default")
    counts = paper.compute((counted,), shape.experts, 4, op="aten.histc.default")
    ends = paper.compute((counts,), shape.experts, 4, op="aten.cumsum.default")
    made = _grouped(paper, at, taken, d, 2 * f, ends)
    made = _activated(paper, at, made)
    made = _grouped(paper, at, made, f, d, ends)
    weighted = multiply(paper, made, weights)
    back = paper.compute((order,), rows, 8, op="aten.empty_like.default")
    places = paper.compute((), rows, 8, op="aten.arange.default")
    paper.change("aten.index_put_.default", back, order, places)
    del places
    weighted = _rows(paper, weighted, rows * d, back)
    total = _summed(paper, weighted, at.tokens * d)
    return cast(paper, total, x.size)


def _activated(paper: Paper, at: Setting, both: Value) -> Value:
    gate, up = split(paper, both, 2)
    return multiply(paper, activate(paper, at, gate), up)


def _rows(paper: Paper, x: Value, elements: int, places: Value) -> Value:
    """Take rows by their places; backward, they are added to a copy of zeros."""
    saved, n, size = paper.save(places), x.elements, x.size
    made = paper.compute((x, places), elements, size, op="aten.index.Tensor")

    def back(grads: list[Value], saved: list[Value]) -> list[Value]:
        zeros = paper.compute((), n, size)
        return [paper.compute((zeros, *saved, *grads), n, size)]

    paper.record(made, (x,), back, saved)
    return made


def _summed(paper: Paper, x: Value, elements: int) -> Value:
    """Add up each token's rows; backward, its gradient is copied to each of them."""
    n, size = x.elements, x.size
    made = paper.compute((x,), elements, size, op="aten.sum.dim_IntList")
    paper.record(made, (x,), lambda g, saved: [paper.compute(g, n, size)])
    return made


def _grouped(paper: Paper, at: Setting, x: Value, inputs: int, outputs: int, ends: Value) -> Value:
    """Run each row's product with its expert's weight: 2·inputs·outputs FLOPs a row."""
    rows, size, weights = x.elements // inputs, x.size, at.shape.experts * inputs * outputs
    flops = 2 * rows * inputs * outputs
    w = paper.leaf(weights, size, trained=at.trained)
    kept = paper.save(*((x, w, ends) if at.trained else (w, ends)))
    made = paper.compute((x, w, ends), rows * outputs, size, flops, op="aten._grouped_mm.default")
    onward = x.node is not None

    def back(grads: list[Value], saved: list[Value]) -> list[Value | None]:
        (g,), (*_, w, ends) = grads, saved
        to_x = paper.compute((g, w, ends), rows * inputs, size, flops) if onward else None
        to_w = paper.compute((g, saved[0], ends), weights, size, flops) if at.trained else None
        return [to_x, to_w]

    paper.record(made, (x, w), back, kept)
    return made
