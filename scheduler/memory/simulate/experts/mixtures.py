"""Mixtures of experts, on paper: see `modules`."""

from __future__ import annotations

from math import ceil

from scheduler.memory.simulate.experts.routers import all_shares, route, route_in_groups
from scheduler.memory.simulate.kernels import (
    add,
    cast,
    linear,
    multiply,
    part,
    scale,
    shift,
    split,
    unary,
    view,
)
from scheduler.memory.simulate.modules import activate
from scheduler.memory.simulate.parallel.collectives import dispatch, enter, leave
from scheduler.memory.simulate.setting import Setting
from scheduler.memory.simulate.tensors import Paper, Value


def mixture(paper: Paper, at: Setting, x: Value) -> Value:
    """Run a mixture on all tokens, each GPU with its features of every expert it has."""
    return leave(paper, at, _mixture(paper, at, enter(paper, at, x)))


def _mixture(paper: Paper, at: Setting, x: Value) -> Value:
    """Run the router, k of E experts for every token, and the shared expert where there is one.

    Experts are transformers' grouped product over R = T·k sorted rows, op by op: how tokens are
    routed changes no size. Weights of rows are u bytes: 4, or e in Qwen's families, which cast
    them. Kept by the router: 4·T·E + 8·T·k, and 4·T·k + 4·T where the shares are divided by their
    sum; by a row: e·(2d + 4f) (frozen e·(d + 3f)), u, and 24 of its place; and 4·E.
    """
    shape = at.shape
    if shape.family == "llama4_text":
        return _of_all_experts(paper, at, x)
    if shape.family == "deepseek_v3":
        _logits, shares, chosen = route_in_groups(paper, at, x)
        made = _experts(paper, at, x, shares, chosen)
        return add(paper, made, _shared_expert(paper, at, x))
    if not shape.shared_expert_width:
        _logits, shares, chosen = route(paper, at, x)
        return _experts(paper, at, x, shares, chosen)
    shared = _shared_expert(paper, at, x)
    _logits, shares, chosen = route(paper, at, x)
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


def _of_all_experts(paper: Paper, at: Setting, x: Value) -> Value:
    """Run every expert on every token, scaled by a share that is 0 where it was not chosen.

    As Llama 4 does: kept are E·T rows of every size that a chosen expert's have.
    """
    shape, d, f = at.shape, at.shape.width, at.shape.mlp_width
    every = shape.experts * at.tokens
    _logits = linear(paper, x, d, shape.experts, trained=at.trained)
    shares = all_shares(paper, at, _logits)
    rows = _repeated(paper, x, shape.experts)
    rows = multiply(paper, rows, view(paper, shares, made=True, copied=True))

    def experts(rows: Value) -> Value:
        both = _batched(paper, at, rows, d, 2 * f)
        gate, up = split(paper, both, 2)
        return _batched(paper, at, multiply(paper, up, activate(paper, at, gate)), f, d)

    made = experts(rows)
    shared = _shared_expert(paper, at, x)
    total = unary(paper, made, "aten.sum.dim_IntList", elements=at.tokens * d)
    result = shared.view()
    paper.change("aten.add_.Tensor", result, total)
    paper.record(result, (shared, total), lambda g, saved: [g[0], g[0]])
    assert made.elements == every * d
    return result


def _repeated(paper: Paper, x: Value, times: int) -> Value:
    made = paper.compute((x,), x.elements * times, x.size, op="aten.repeat.default")
    paper.record_simple(made, x)
    return made


def _batched(paper: Paper, at: Setting, x: Value, inputs: int, outputs: int) -> Value:
    """Run each expert's product with its share of rows: 2·inputs·outputs FLOPs a row."""
    rows, size, weights = x.elements // inputs, x.size, at.shape.experts * inputs * outputs
    flops = 2 * rows * inputs * outputs
    w = paper.leaf(weights, size, trained=at.trained)
    kept = paper.save(*((x, w) if at.trained else (w,)))
    made = paper.compute((x, w), rows * outputs, size, flops, op="aten.bmm.default")

    def back(grads: list[Value], saved: list[Value]) -> list[Value | None]:
        (g,), (*_, w) = grads, saved
        to_w = paper.compute((g, saved[0]), weights, size, flops) if at.trained else None
        return [paper.compute((g, w), rows * inputs, size, flops), to_w]

    paper.record(made, (x, w), back, kept)
    return made


def _shared_expert(paper: Paper, at: Setting, x: Value) -> Value:
    d, width = at.shape.width, at.shape.shared_expert_width

    def inside() -> Value:
        active = activate(paper, at, linear(paper, x, d, width, trained=at.trained))
        return multiply(paper, active, linear(paper, x, d, width, trained=at.trained))

    if at.shape.family == "llama4_text":
        product = inside()
        return linear(paper, product, width, d, trained=at.trained)
    return linear(paper, inside(), width, d, trained=at.trained)


def _experts(paper: Paper, at: Setting, x: Value, shares: Value, chosen: Value) -> Value:
    """Sort rows by expert, run gate, up and down on all, weight and add them up."""
    shape, d, f = at.shape, at.shape.width, at.shape.mlp_width
    rows = shares.elements
    here = ceil(rows * at.load) if at.expert > 1 else rows
    ids, order = paper.run("aten.sort.default", (chosen,), [(rows, 8), (rows, 8)])
    token = paper.compute((order,), rows, 8, op="aten.floor_divide.default")
    taken = dispatch(paper, at, _rows(paper, x, rows * d, token), here * d)
    del token
    weights = _rows(paper, shares, rows, order)
    counted = paper.compute((ids,), rows, 4, op="aten._to_copy.default")
    counts = paper.compute((counted,), shape.experts, 4, op="aten.histc.default")
    ends = paper.compute((counts,), at.own_experts, 4, op="aten.cumsum.default")
    biases = _biases(paper, at, 2 * f, ids, here)
    made = _grouped(paper, at, taken, d, 2 * f, ends, biases)
    made = (_clamped if shape.family == "gpt_oss" else _activated)(paper, at, made)
    biases = _biases(paper, at, d, ids, here)
    made = _grouped(paper, at, made, f, d, ends, biases)
    made = dispatch(paper, at, made, rows * d)
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


def _clamped(paper: Paper, at: Setting, both: Value) -> Value:
    """Run (clamp(up) + 1) · g · sigmoid(a·g) with g = clamp(gate), of columns that take turns."""
    gate, up = (part(paper, both, both.elements // 2) for _ in range(2))
    gate = _clamp(paper, gate, 1)
    up = _clamp(paper, up, 2)
    open_ = unary(paper, scale(paper, gate), "aten.sigmoid.default", saves="output")
    glu = multiply(paper, gate, open_)
    del open_
    return multiply(paper, shift(paper, up), glu)


def _clamp(paper: Paper, x: Value, bounds: int) -> Value:
    """Run clamp; backward, one comparison for each bound, and a choice."""
    n, size, kept = x.elements, x.size, paper.save(x)
    made = paper.compute((x,), n, size, op="aten.clamp.default")

    def back(grads: list[Value], saved: list[Value]) -> list[Value]:
        inside = [paper.compute(saved, n, 1) for _ in range(bounds)]
        return [paper.compute((*grads, inside[0]), n, size)]

    paper.record(made, (x,), back, kept)
    return made


def _biases(paper: Paper, at: Setting, width: int, expert: Value, rows: int) -> Value | None:
    """Take the bias of each row's expert, where experts have one."""
    if not at.shape.mlp_bias:
        return None
    size = at.compute
    every = paper.leaf(at.own_experts * width, size, trained=at.trained)
    return _rows(paper, every, rows * width, expert)


def _rows(paper: Paper, x: Value, elements: int, places: Value) -> Value:
    """Take rows by their places; backward, they are added to a copy of zeros."""
    saved = [paper.save(places)] if x.node is not None else []
    n, size = x.elements, x.size
    made = paper.compute((x, places), elements, size, op="aten.index.Tensor")

    def back(grads: list[Value], saved: list[Value]) -> list[Value]:
        zeros = paper.compute((), n, size)
        return [paper.compute((zeros, *saved, *grads), n, size)]

    paper.record(made, (x,), back, *saved)
    return made


def _summed(paper: Paper, x: Value, elements: int) -> Value:
    """Add up each token's rows; backward, its gradient is copied to each of them."""
    made = paper.compute((x,), elements, x.size, op="aten.sum.dim_IntList")
    paper.record_simple(made, x)
    return made


def _grouped(
    paper: Paper,
    at: Setting,
    x: Value,
    inputs: int,
    outputs: int,
    ends: Value,
    biases: Value | None = None,
) -> Value:
    """Run each row's product with its expert's weight: 2·inputs·outputs FLOPs a row."""
    rows, size, weights = x.elements // inputs, x.size, at.own_experts * inputs * outputs
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
    if biases is None:
        return made
    with_bias = made.view()
    paper.change("aten.add_.Tensor", with_bias, biases)
    paper.record(with_bias, (made, biases), lambda g, saved: [g[0], g[0]])
    return with_bias
