"""Floating-point operations of a model's layers, to put a time on them.

A multiplication and an addition are two. Counted are matrix products, as is usual (Kaplan et al.
2020, section 2.1; Korthikanti et al. 2022, appendix A): norms, activations and softmax move memory
more than they compute.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.memory.activations.setting import linears as linears_of
from scheduler.memory.activations.setting import setting
from scheduler.memory.recipe import Lora, Recipe
from scheduler.memory.shape.shape import Shape

__all__ = ["Flops", "block_flops", "head_flops"]


@dataclass(frozen=True, slots=True)
class Flops:
    """Operations of one layer's forward and of its backward (without any recomputation)."""

    forward: int
    backward: int


def block_flops(
    shape: Shape,
    batch: int,
    sequence: int,
    *,
    train: str = "full",
    lora: Lora | None = None,
    causal: bool = False,
) -> Flops:
    """Operations of one block.

    Forward: 2·T·in·out for each linear layer (experts: of the k that a token meets, and the
    router), and attention's two products, 4·B·S²·H·a.
    Backward: a trained linear layer takes as much for its input's gradient and as much again for
    its weight's: twice the forward. A frozen one needs the first alone: once. The products of
    attention have two inputs that need gradients: twice. Adapters, 2·T·rank·(in + out) forward,
    are trained: twice. (A fused attention also computes its scores again, one product more.)

    Parameters
    ----------
    shape, batch, sequence, train, lora
        As in `block_activations`.
    causal
        Count the half of the scores that a causal mask leaves, as flash kernels compute it.
        Default: all, as eager attention does and most published figures count.
    """
    at = setting(shape, batch, sequence, Recipe(attention="eager", train=train, lora=lora))
    tokens = at.tokens
    sizes = linears_of(shape)
    weights = sum(inputs * outputs for inputs, outputs in sizes.values())
    if shape.experts:
        matrices = 3 if shape.gated else 2
        met = shape.experts_per_token * shape.mlp_width + shape.shared_expert_width
        weights += shape.width * (matrices * met + shape.experts + bool(shape.shared_expert_width))
    linear = 2 * tokens * weights
    scores = 4 * at.batch * at.sequence**2 * shape.query_width // (2 if causal else 1)
    adapters = 0
    if lora is not None:
        features = sum(sum(sizes[name]) for name in at.targets)
        adapters = 2 * tokens * lora.rank * features
    passes = 2 if at.trained else 1
    return Flops(linear + scores + adapters, passes * linear + 2 * scores + 2 * adapters)


def head_flops(shape: Shape, batch: int, sequence: int, *, train: str = "full") -> Flops:
    """Operations of the head: 2·T·d·V forward; backward twice that, once when it is frozen."""
    recipe = Recipe(train="full" if train == "full" else "frozen")
    at = setting(shape, batch, sequence, recipe, inside=False)
    forward = 2 * at.tokens * shape.width * shape.vocabulary
    return Flops(forward, (2 if at.trained else 1) * forward)
