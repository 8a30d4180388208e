"""The operations of a transformer block, each as what it keeps for its backward.

Element sizes in bytes: e of what linear layers make, s of the residual stream (s = e but under
autocast, where it is fp32). T = batch · sequence tokens.
"""

from __future__ import annotations

from scheduler.memory.activations.setting import Setting
from scheduler.memory.activations.tape import Tape, Tensor

__all__ = ["activate", "dropout", "layer_norm", "linear", "norm", "rms_norm", "rotary"]


def linear(tape: Tape, at: Setting, x: Tensor, name: str, inputs: int, outputs: int) -> Tensor:
    """Run y = x Wᵀ.

    Kept: x, for the weight's gradient, when the weight is trained (the input's gradient needs W
    alone, a parameter). Under autocast x and W are cast to 2 bytes first: each layer keeps a cast
    of x of its own where x is fp32, and the cast of W, 2·inputs·outputs, which the input's gradient
    needs. With an adapter, what `_adapter` says.
    """
    if at.trained:
        cast = x if x.size == at.compute else x.named(f"{x.name}, cast for {name}", at.compute)
        tape.keep(cast)
    if at.autocast:
        tape.keep(Tensor(f"{name} weight, cast", inputs * outputs, at.compute))
    if name in at.targets:
        _adapter(tape, at, x, name)
    return Tensor(f"{name} output", at.tokens * outputs, at.compute)


def _adapter(tape: Tape, at: Setting, x: Tensor, name: str) -> None:
    """Run B A dropout(x), the adapters in their own dtype of a bytes (PEFT's order).

    Kept: what enters A, for A's gradient. That is x itself when the dtypes agree (shared with
    whoever else keeps x), a cast of x of its own when they do not, and after dropout always a
    tensor of its own, beside the mask. Then what enters B: T·rank·a. The scale is a number and the
    sum keeps nothing.
    """
    assert at.lora is not None
    size = at.lora.size
    entering = x if x.size == size else x.named(f"{x.name}, cast for {name}'s adapter", size)
    if at.lora.dropout:
        tape.keep(entering.named(f"{name} adapter's dropout mask", at.mask_size(size)))
        entering = entering.named(f"{name} adapter's input after dropout")
    tape.keep(entering)
    tape.keep(Tensor(f"{name} adapter's inside", at.tokens * at.lora.rank, size))


def norm(tape: Tape, at: Setting, x: Tensor, name: str) -> Tensor:
    """Run the shape's norm over the model's width."""
    if at.shape.norm == "layer":
        return layer_norm(tape, at, x, name)
    return rms_norm(tape, at, x, name, at.tokens)


def rms_norm(tape: Tape, at: Setting, x: Tensor, name: str, rows: int) -> Tensor:
    """Run transformers' RMS norm: w · (x₃₂ · rsqrt(mean(x₃₂²) + ε)) in x's dtype.

    Kept: x₃₂, by the square and by the product (x itself when it is fp32 already, else a cast of 4
    bytes an element); the reciprocal root, by itself and by the product, 4 bytes a row; and x₃₂ · r
    back in x's dtype, by the product with w, when w is trained.

    Gemma multiplies in fp32 by 1 + w: it keeps the vector 1 + w (4 bytes a feature), and when w is
    trained the product in fp32.
    """
    gemma = at.shape.family.startswith("gemma")
    tape.keep(x if x.size == 4 else x.named(f"{x.name} in fp32", 4))
    tape.keep(Tensor(f"{name} reciprocal root", rows, 4))
    if gemma:
        tape.keep(Tensor(f"{name} weight + 1", x.elements // rows, 4))
    if at.trained:
        tape.keep(x.named(f"{name} before its weight", 4 if gemma else x.size))
    return x.named(f"{name} output")


def layer_norm(tape: Tape, at: Setting, x: Tensor, name: str) -> Tensor:
    """Run torch's fused layer norm, mean and deviation over the width.

    Kept: x; mean and reciprocal deviation, one number each a token: fp32 on CUDA, in x's dtype on
    the CPU (in fp32 as well when x is).
    """
    size = 4 if at.cuda else x.size
    tape.keep(x)
    tape.keep(Tensor(f"{name} mean", at.tokens, size))
    tape.keep(Tensor(f"{name} reciprocal deviation", at.tokens, size))
    # Autocast runs it in fp32, which the stream is already.
    return x.named(f"{name} output")


def rotary(at: Setting, name: str, features: int) -> Tensor:
    """Run x·cos + rotate_half(x)·sin on queries or keys.

    Kept: the tables cos and sin, which the whole model shares and the embedding is charged with;
    nothing of x, since the tables get no gradient.
    """
    return Tensor(name, at.tokens * features, at.compute)


def activate(tape: Tape, at: Setting, x: Tensor) -> Tensor:
    """Run the MLP's activation function on x.

    Kept: silu, fused gelu (exact or tanh): x. relu: its output. gelu_new, written out as
    0.5·x · (1 + tanh(c·(x + 0.044715·x³))): x by the cube, the tanh by itself, and 0.5·x and
    1 + tanh by their product: four tensors. Autocast on CUDA runs powers in fp32 (torch's list of
    operations that autocast to float32): then the cube keeps a cast of x, and all but 0.5·x are of
    4 bytes, as is the output. That case follows from the list; it is not measured here.
    """
    made = x.named("activation output")
    kind = at.shape.activation
    if kind == "relu":
        tape.keep(made)
        return made
    if kind == "gelu_new" and at.autocast and at.cuda:
        for part in ("input in fp32", "tanh", "tanh plus one"):
            tape.keep(x.named(f"activation: {part}", 4))
        tape.keep(x.named("activation: half of the input"))
        return x.named("activation output", 4)
    tape.keep(x)
    if kind == "gelu_new":
        for part in ("tanh", "half of the input", "tanh plus one"):
            tape.keep(x.named(f"activation: {part}"))
    return made


def dropout(tape: Tape, at: Setting, x: Tensor, name: str, probability: float) -> Tensor:
    """Run dropout; kept: its mask (see `Setting.mask_size`), when there is any dropout."""
    if not probability:
        return x
    tape.keep(x.named(f"{name} mask", at.mask_size(x.size)))
    return x.named(f"{name} output")
