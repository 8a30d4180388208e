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
from scheduler.memory.simulate.parallel.collectives import enter, leave
from scheduler.memory.simulate.setting import MLP, Setting, linears
from scheduler.memory.simulate.tensors import Paper, Value
from scheduler.memory.simulate.tokenwise import tiled

_ROWS = ("o", "down")
"""Layers that read features of which each GPU of tensor parallelism has some."""


def project(paper: Paper, at: Setting, x: Value, name: str) -> Value:
    """Run the block's linear layer of this name, its adapter with it."""
    inputs, outputs = linears(at.shape)[name]
    of_attention = {"o": at.shape.output_bias} | dict.fromkeys(
        ("q", "k", "v", "qkv"), at.shape.qkv_bias
    )
    result = dense(paper, at, x, inputs, outputs, of_attention.get(name, at.shape.mlp_bias))
    result = adapted(paper, at, result, x, name, inputs, outputs)
    return leave(paper, at, result) if name in _ROWS else result


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


def dense(
    paper: Paper, at: Setting, x: Value, inputs: int, outputs: int, bias: bool = False
) -> Value:
    """Run a linear layer of the model, under autocast on casts."""
    weight = None
    if at.autocast:
        x = cast(paper, x, at.compute)
        weight = cast(paper, paper.leaf(inputs * outputs, 4, trained=at.trained), at.compute)
    return linear(paper, x, inputs, outputs, trained=at.trained, bias=bias, weight=weight)


def norm(paper: Paper, at: Setting, x: Value) -> Value:
    """Run the shape's norm over the model's width."""
    if at.shape.norm == "layer":
        return layer_norm(paper, at, x)
    return narrow_norm(paper, at, x, at.shape.width)


def narrow_norm(paper: Paper, at: Setting, x: Value, width: int) -> Value:
    """Run the RMS norm of a block or a head, over so many numbers each."""
    if at.tiles and at.tiled[0] != MLP:
        return tiled(paper, at.tiles, x, width, lambda paper, x: rms_norm(paper, at, x, width))
    return rms_norm(paper, at, x, width)


def activate(paper: Paper, at: Setting, x: Value) -> Value:
    """Run the activation function."""
    kind = at.shape.activation
    if kind == "gelu_new":
        return gelu_new(paper, x)
    op = f"aten.{kind.removesuffix('_pytorch_tanh')}.default"
    return unary(paper, x, op, saves="output" if kind == "relu" else "input")


def mlp(paper: Paper, at: Setting, x: Value) -> Value:
    """Run the MLP, in tiles where it does so."""
    if at.tiles and MLP in at.tiled:
        return tiled(paper, at.tiles, x, at.shape.width, lambda paper, x: _mlp(paper, at, x))
    return _mlp(paper, at, x)


def _mlp(paper: Paper, at: Setting, x: Value) -> Value:
    """Run down(act(gate x) · up x), or down(act(up x)) where there is no gate.

    Gated with silu it keeps 4·e·T·f trained, 3·e·T·f frozen, beside x.
    """
    x = enter(paper, at, x)
    if "gate_up" in linears(at.shape):
        gate, up = split(paper, project(paper, at, x, "gate_up"), 2)
        x = multiply(paper, up, activate(paper, at, gate))
        x = project(paper, at, x, "down")
    elif at.shape.family == "llama4_text":
        product = _gated(paper, at, x)
        x = project(paper, at, product, "down")
    elif at.shape.gated:
        # The product is an argument of down: it and what it is made of go as soon as they can.
        x = project(paper, at, _gated(paper, at, x), "down")
    else:
        x = project(paper, at, x, "up")
        x = activate(paper, at, x)
        x = project(paper, at, x, "down")
    return dropout(paper, at, x, at.shape.dropout) if at.shape.family == "gpt2" else x


def _gated(paper: Paper, at: Setting, x: Value) -> Value:
    active = activate(paper, at, project(paper, at, x, "gate"))
    return multiply(paper, active, project(paper, at, x, "up"))
