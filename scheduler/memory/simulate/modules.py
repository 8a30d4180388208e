"""The modules of a block, on paper: linear layers with adapters, norms, MLP, experts.

Every function mirrors a module of transformers 5.24; a variable here lives as long as the variable
there.
"""

from __future__ import annotations

from scheduler.memory.simulate.kernels import (
    add,
    cast,
    dropout,
    gelu_new,
    layer_norm,
    linear,
    multiply,
    rms_norm,
    scale,
    split,
    unary,
)
from scheduler.memory.simulate.setting import Setting, linears
from scheduler.memory.simulate.tensors import Paper, Value


def project(paper: Paper, at: Setting, x: Value, name: str) -> Value:
    """Run the block's linear layer of this name, its adapter with it."""
    inputs, outputs = linears(at.shape)[name]
    of_attention = {"o": at.shape.output_bias} | dict.fromkeys(
        ("q", "k", "v", "qkv"), at.shape.qkv_bias
    )
    result = _linear(paper, at, x, inputs, outputs, of_attention.get(name, at.shape.mlp_bias))
    return adapted(paper, at, result, x, name, inputs, outputs)


def adapted(
    paper: Paper, at: Setting, result: Value, x: Value, name: str, inputs: int, outputs: int
) -> Value:
    """Add to what a linear layer of this name made of x what its adapter makes, if it has one."""
    if name not in at.targets:
        return result
    assert at.lora is not None
    # The call itself holds x to its end, beside the cast.
    entering = cast(paper, x, at.lora.size)
    result = add(paper, result, _adapter(paper, at, entering, inputs, outputs))
    return cast(paper, result, at.compute)


def _adapter(paper: Paper, at: Setting, x: Value, inputs: int, outputs: int) -> Value:
    """Run B A dropout(x) · scale, one expression as PEFT has it."""
    assert at.lora is not None
    rank = at.lora.rank
    return scale(
        paper,
        linear(
            paper,
            linear(paper, dropout(paper, at, x, at.lora.dropout), inputs, rank, trained=True),
            rank,
            outputs,
            trained=True,
        ),
    )


def _linear(
    paper: Paper, at: Setting, x: Value, inputs: int, outputs: int, bias: bool = False
) -> Value:
    weight = None
    if at.autocast:
        x = cast(paper, x, at.compute)
        weight = cast(paper, paper.leaf(inputs * outputs, 4, trained=at.trained), at.compute)
    return linear(paper, x, inputs, outputs, trained=at.trained, bias=bias, weight=weight)


def norm(paper: Paper, at: Setting, x: Value) -> Value:
    """Run the shape's norm over the model's width."""
    if at.shape.norm == "layer":
        return layer_norm(paper, at, x)
    return rms_norm(paper, at, x, at.shape.width)


def activate(paper: Paper, at: Setting, x: Value) -> Value:
    """Run the activation function."""
    kind = at.shape.activation
    if kind == "gelu_new":
        return gelu_new(paper, x)
    op = f"aten.{kind.removesuffix('_pytorch_tanh')}.default"
    return unary(paper, x, op, saves="output" if kind == "relu" else "input")


def mlp(paper: Paper, at: Setting, x: Value) -> Value:
    """Run down(act(gate x) · up x), or down(act(up x)) where there is no gate.

    Gated with silu it keeps 4·e·T·f trained, 3·e·T·f frozen, beside x.
    """
    if "gate_up" in linears(at.shape):
        gate, up = split(paper, project(paper, at, x, "gate_up"), 2)
        x = multiply(paper, up, activate(paper, at, gate))
        x = project(paper, at, x, "down")
    elif at.shape.gated:
        # The product is an argument of down: it and what it is made of go as soon as they can.
        x = project(paper, at, _gated(paper, at, x), "down")
    else:
        x = project(paper, at, x, "up")
        x = activate(paper, at, x)
        x = project(paper, at, x, "down")
    return dropout(paper, at, x, at.shape.dropout)


def _gated(paper: Paper, at: Setting, x: Value) -> Value:
    active = activate(paper, at, project(paper, at, x, "gate"))
    return multiply(paper, active, project(paper, at, x, "up"))


def mixture(paper: Paper, at: Setting, x: Value) -> Value:
    """Run the router, k of E experts for every token, and the shared expert where there is one.

    Experts are transformers' grouped product over R = T·k sorted rows, op by op: how tokens are
    routed changes no size. Weights of rows are u bytes: 4, or e in Qwen's families, which cast
    them. Kept by the router: 4·T·E + 8·T·k, and 4·T·k + 4·T where the shares are divided by their
    sum; by a row: e·(2d + 4f) (frozen e·(d + 3f)), u, and 24 of its place; and 4·E.
    """
    shape = at.shape
    if not shape.shared_expert_width:
        _logits, shares, chosen = _route(paper, at, x)
        return _experts(paper, at, x, shares, chosen)
    shared = _shared_expert(paper, at, x)
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


def _shared_expert(paper: Paper, at: Setting, x: Value) -> Value:
    d, width = at.shape.width, at.shape.shared_expert_width

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
    made = paper.compute((x,), elements, x.size, op="aten.sum.dim_IntList")
    paper.record_simple(made, x)
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
