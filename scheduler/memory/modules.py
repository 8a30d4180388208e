"""The modules of a block, on paper: linear layers with adapters, norms, MLP, mixture of experts.

Every function mirrors a module of transformers 5.24; a variable here lives as long as the variable
there.
"""

from __future__ import annotations

from scheduler.memory.kernels import (
    add,
    cast,
    dropout,
    gelu_new,
    layer_norm,
    linear,
    multiply,
    rms_norm,
    split,
    unary,
)
from scheduler.memory.paper import Paper, Value
from scheduler.memory.setting import Setting, linears

__all__ = ["mixture", "mlp", "norm", "project"]


def project(paper: Paper, at: Setting, x: Value, name: str) -> Value:
    """Run the block's linear layer of this name, its adapter with it."""
    inputs, outputs = linears(at.shape)[name]
    bias = {"o": at.shape.output_bias, "down": at.shape.mlp_bias, "up": at.shape.mlp_bias}
    bias |= {"gate": at.shape.mlp_bias, "gate_up": at.shape.mlp_bias}
    biased = bias.get(name, at.shape.qkv_bias)
    if name not in at.targets:
        return _linear(paper, at, x, inputs, outputs, biased)
    assert at.lora is not None
    result = _linear(paper, at, x, inputs, outputs, biased)
    x = cast(paper, x, at.lora.size)
    inside = linear(
        paper, dropout(paper, at, x, at.lora.dropout), inputs, at.lora.rank, trained=True
    )
    beside = linear(paper, inside, at.lora.rank, outputs, trained=True)
    result = add(paper, result, unary(paper, beside))
    return cast(paper, result, at.compute)


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
    return unary(paper, x, saves="output" if kind == "relu" else "input")


def mlp(paper: Paper, at: Setting, x: Value) -> Value:
    """Run down(act(gate x) · up x), or down(act(up x)) where there is no gate."""
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
    """Run a router and k of E experts, roughly as transformers' grouped product does.

    A row of each token for each of its k experts is copied, goes through gate and up together, the
    activation, the product, down, is weighted, and the k rows of a token are added. Sorting and the
    router's small tensors are left out; weights are those of all experts, read once.
    """
    shape, d, f = at.shape, at.shape.width, at.shape.mlp_width
    share = shape.experts_per_token
    paper.spend(0, 2 * at.tokens * d * shape.experts)
    rows = _spread(paper, x, share)
    weights = [paper.leaf(shape.experts * n * d * f, x.size, trained=at.trained) for n in (2, 1)]
    both = linear(paper, rows, d, 2 * f, trained=at.trained, weight=weights[0])
    gate, up = split(paper, both, 2)
    inside = multiply(paper, activate(paper, at, gate), up)
    made = linear(paper, inside, f, d, trained=at.trained, weight=weights[1])
    chances = paper.compute((), at.tokens * share, x.size)
    made = multiply(paper, made, chances)
    result = _gather(paper, made, share)
    if shape.shared_expert_width:
        s = shape.shared_expert_width
        gate = linear(paper, x, d, s, trained=at.trained)
        active = activate(paper, at, gate)
        inside = multiply(paper, active, linear(paper, x, d, s, trained=at.trained))
        result = add(paper, result, linear(paper, inside, s, d, trained=at.trained))
    return result


def _spread(paper: Paper, x: Value, share: int) -> Value:
    made, n, size = paper.compute((x,), x.elements * share, x.size), x.elements, x.size
    paper.record(made, (x,), lambda g, saved: [paper.compute(g, n, size)])
    return made


def _gather(paper: Paper, x: Value, share: int) -> Value:
    made, n, size = paper.compute((x,), x.elements // share, x.size), x.elements, x.size
    paper.record(made, (x,), lambda g, saved: [paper.compute(g, n, size)])
    return made
