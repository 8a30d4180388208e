"""What autograd keeps of one transformer block, byte by byte.

Measured, not modelled: every operation of transformers' blocks is gone through for what its
backward needs (`operations`, `attention`, `mlp`), and the sums equal what torch 2.13 keeps on the
CPU to the byte (tests/memory/test_activations.py). The closed forms that follow are in the
docstring of `block_activations`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.memory.activations.attention import attention as run_attention
from scheduler.memory.activations.mlp import mixture, mlp
from scheduler.memory.activations.operations import dropout, norm
from scheduler.memory.activations.setting import setting
from scheduler.memory.activations.tape import Activations, Tape, Tensor
from scheduler.memory.recipe import Recipe, RecipeFields, recipe_of
from scheduler.memory.shape.shape import Shape

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Activations", "block_activations"]


def block_activations(
    shape: Shape,
    batch: int,
    sequence: int,
    recipe: Recipe | None = None,
    **fields: Unpack[RecipeFields],
) -> Activations:
    """Bytes that one block keeps from its forward to its backward.

    Parameters
    ----------
    shape
        The model's; its dropout is taken from there, as in training.
    batch, sequence
        B and S: sequences in a (micro-)batch, tokens in each.
    recipe, fields
        A `Recipe`, or its fields; "fp16" is a precision too, that of "fp16-mixed". A block whose
        input needs no gradient (the first one over a frozen embedding) keeps less: this counts it
        like the others.

    Returns
    -------
    Activations
        By tensor; `total_bytes` with, `saved_bytes` without the block's input and output.

    Raises
    ------
    InvalidRecipe
        A size is not a positive whole number, or a name is unknown.
    UnsupportedModel
        Nobody has derived a formula for this combination.

    Notes
    -----
    With T = B·S, d the width, dq = H·a, dk = G·a, f the MLP's, A = B·H·S², what is kept of a
    Llama block, the input included where it is (in fp32 and under autocast):

    ====================  ====================================================================
    bf16, SDPA            T(16d + 4dq + 4dk + 8f + 4H + 8)
    fp32, SDPA            T(24d + 8dq + 8dk + 16f + 4H + 8)
    autocast, SDPA        T(26d + 4dq + 4dk + 8f + 4H + 8) + 2 · linear weights
    bf16, eager           T(16d + 8dq + 8f + 8) + 6A; + mA with dropout, m bytes a mask
    frozen, bf16, SDPA    T(8d + 4dq + 4dk + 6f + 4H + 8), + adapters
    ====================  ====================================================================

    Of the 16d: each of two norms keeps a cast of its input 4d, its output before the weight 2d,
    and hands on 2d that the linear layers after it keep. 4dq: queries and attention output. 4dk:
    keys and values. 8f: see `mlp`. 4H: the attention's log-sums. 8: the norms' roots.

    GPT-2, e bytes: T(8e·d + e·f + act) + statistics, act 4e·f for gelu_new, e·f for a fused gelu,
    0 for relu; SDPA + 4·T·H; eager + e·A; residual dropout + 2m·T·d. Of the 8d: input and output
    of two norms, queries, keys, values, attention output. That is close to Korthikanti et al.
    2022, T·d(34 + 5·H·S/d), at e = 2, m = 1 and fused gelu, which leaves the statistics out.

    Residual sums keep nothing, so a block's output is never saved by the block that makes it.
    """
    at = setting(shape, batch, sequence, recipe_of(recipe, fields, computing=True))
    tape = Tape()
    given = Tensor("input", at.tokens * shape.width, at.stream)
    after = norm(tape, at, given, "attention norm")
    made = dropout(tape, at, run_attention(tape, at, after), "attention dropout", shape.dropout)
    if shape.norms == 4:
        norm(tape, at, made, "norm after attention")
    middle = given if shape.parallel else given.named("middle")
    after = norm(tape, at, middle, "MLP norm")
    made = (mixture if shape.experts else mlp)(tape, at, after)
    made = dropout(tape, at, made, "MLP dropout", shape.dropout)
    if shape.norms == 4:
        norm(tape, at, made, "norm after MLP")
    return tape.finish(given, given.named("output"))
