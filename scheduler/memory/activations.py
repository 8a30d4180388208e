"""What autograd keeps of one transformer block, and of a model's head with its loss, byte by byte.

Measured, not modelled: the layers of transformers run on paper (`simulate`), each operation with
what its backward needs, and the sums equal what torch 2.13 keeps on the CPU to the byte
(tests/memory/test_activations.py). The closed forms that follow are in the docstring of
`block_activations`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from scheduler.memory.errors import Argument, InvalidRecipe, check_choice, check_count
from scheduler.memory.gpus import load_gpu
from scheduler.memory.recipe import LOSSES, Recipe, RecipeFields, recipe_of
from scheduler.memory.shape.shape import Shape
from scheduler.memory.simulate.attending.scores import expands
from scheduler.memory.simulate.setting import Setting, setting
from scheduler.memory.simulate.step import Activations, Forward, block, head, run
from scheduler.memory.simulate.tensors import Paper

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Activations", "HeadActivations", "block_activations", "block_kept"]
__all__ += ["head_activations", "loss_bytes"]

_SORTING = {
    "aten.sort.default",
    "aten.floor_divide.default",
    "aten.index_put_.default",
    "aten.cumsum.default",
}
"""What a grouped product over sorted rows keeps of their order, and where each expert's end."""


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
        The model's; its dropout is taken from there, as in training. Where blocks differ the last
        one is meant; `Shape.blocks` has a shape for each.
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
    keys and values. 8f: gate's and up's outputs, the activation's, and the input of down. 4H: the
    attention's log-sums. 8: the norms' roots.

    GPT-2, e bytes: T(8e·d + e·f + act) + statistics, act 4e·f for gelu_new, e·f for a fused gelu,
    0 for relu; SDPA + 4·T·H; eager + e·A; residual dropout + 2m·T·d. Of the 8d: input and output
    of two norms, queries, keys, values, attention output. That is close to Korthikanti et al.
    2022, T·d(34 + 5·H·S/d), at e = 2, m = 1 and fused gelu, which leaves the statistics out.

    Residual sums keep nothing, so a block's output is never saved by the block that makes it.
    """
    at = setting(shape, batch, sequence, recipe_of(recipe, fields, computing=True))
    return block_kept(at, _kept(block, at))


def _kept(forward: Forward, at: Setting, *, scalar: bool = False) -> Activations:
    # On whichever GPU: the times are not asked.
    return run(Paper(load_gpu("h100")), forward, at, scalar=scalar)


def block_kept(at: Setting, seen: Activations) -> Activations:
    """What a block keeps, where that is not what it was seen to keep on paper.

    Experts run there as one product over R = T·k sorted rows. Batched, a product per row, every row
    keeps its expert's weights, e·3·d·f, by far the most. Eager, in a loop, each keeps its token and
    place, 16, and what is added to the result, e·d.

    Autocast on CUDA runs powers in fp32 (torch's list of operations that autocast to float32): then
    gelu_new keeps a cast of its input in place of that, and all but half of the input is of 4
    bytes, as is the output. That case follows from the list; it is not measured. And it casts keys,
    fp32 out of rotary, when a single head of them has been expanded to all heads in place.
    """
    shape, tensors, e = at.shape, seen.tensors, at.compute
    rows, wide = at.tokens * shape.experts_per_token, shape.width * e
    if shape.experts and at.experts != "grouped":
        tensors = tuple(each for each in tensors if each[0] not in _SORTING)
    if shape.experts and at.experts == "batched":
        if shape.family == "gpt_oss":
            # Shares are not sorted: what softmax keeps serves.
            sorted_shares = "aten.index.Tensor", rows * e
            tensors = tuple(each for each in tensors if each != sorted_shares)
        tensors += (("experts' weights of rows", rows * 3 * shape.mlp_width * wide),)
    if shape.experts and at.experts == "eager":
        tensors += ("tokens and places of rows", rows * 16), ("rows in the result", rows * wide)
    if at.autocast and at.cuda and shape.activation == "gelu_new":
        more = 3 + shape.gated  # tensors that are twice as large
        tensors += (("gelu_new in fp32", more * at.tokens * shape.mlp_width * e),)
    if at.autocast and expands(at) and shape.kv_heads == 1:
        more = shape.query_width - shape.kv_width
        tensors += (("keys for the other heads", more * at.tokens * e),)
    return replace(seen, tensors=tensors)


@dataclass(frozen=True, slots=True)
class HeadActivations:
    """What the last norm, the head and the loss keep, and the most they need.

    Attributes
    ----------
    kept
        Between forward and backward, the loss itself (`kept.output_bytes`) not included.
    peak_bytes
        At the loss's highest moment, when its backward has come to the log-softmax and has let go
        of labels and divisor. The rest of `kept` is included, gradients of weights are not.
    """

    kept: Activations
    peak_bytes: int


def loss_bytes(
    loss: str, size: int, chunks: int = 8, *, upcast: bool = True
) -> tuple[float, float]:
    """Bytes per logit that a loss keeps after the forward, and at its peak.

    Parameters
    ----------
    loss
        - "hf": transformers 5: logits go to fp32, cross-entropy; nobody holds the model's outputs.
          Log-softmax keeps its output, 4. The backward has that, the gradient with respect to it
          and the gradient with respect to the logits at once, 4 each: 12. (Logits of 2 bytes and
          their copy of 4 are gone by then; the forward's own peak is size + 8.)
        - "hf-outputs-kept": the caller holds ``outputs``, so the logits live too: size more.
        - "bf16": cross-entropy in the logits' own dtype, of size bytes: size, and 3 · size.
        - "chunked": the head and "hf" run on one chunk of tokens at a time, each checkpointed: 0,
          and 12 / chunks. (Gradients of the head's weight come on top, as everywhere. In
          memory_measured.csv they are 0.5 of the 2.0 bytes that it lists for 8 chunks.)
    size
        Bytes of one logit as the head makes it.
    chunks
        Of "chunked".
    upcast
        Whether "hf" brings logits to fp32, as for causal models. Other heads' losses do not: theirs
        is "bf16".
    """
    check_choice(Argument("loss"), loss, LOSSES, InvalidRecipe)
    each = 4 if upcast and loss != "bf16" else size
    if loss == "chunked":
        return 0.0, 3 * each / check_count(Argument("chunks"), chunks, InvalidRecipe)
    held = size if loss == "hf-outputs-kept" else 0
    return each + held, 3 * each + held


def head_activations(
    shape: Shape,
    batch: int,
    sequence: int,
    recipe: Recipe | None = None,
    *,
    chunks: int = 8,
    **fields: Unpack[RecipeFields],
) -> HeadActivations:
    """Bytes that the last norm, the head and the loss keep.

    Kept: the norm's (Llama in bf16 T(6d + 4)); the norm's output, 2·T·d in bf16, by the head when
    it is trained; per logit, of T·V, what `loss_bytes` says; labels shifted by one, int64, 8·T; and
    the loss's divisor, one number. (Labels are padded by one and sliced: one sequence is contiguous
    as it is, so no copy is made and the padded ones stay, 8·(T + 1).) Gemma 2 caps its logits with
    a tanh, which keeps its output. With "chunked" norm and head input are kept, labels are the
    caller's.

    Parameters
    ----------
    shape, batch, sequence, recipe, fields
        As in `block_activations`. Adapters are as frozen weights here where none is the head's.
    chunks
        See `loss_bytes`.
    """
    recipe = recipe_of(recipe, fields, computing=True)
    loss = recipe.loss
    at = setting(shape, batch, sequence, recipe, inside=False)
    chunked = loss == "chunked"
    made = _kept(partial(head, loss=loss), at, scalar=not chunked)
    logits, size = at.logits, 4 if at.upcast and loss != "bf16" else at.compute
    tensors = made.tensors
    if loss == "hf-outputs-kept":
        tensors += (("logits", logits * at.compute),)
    all_kept = replace(made, tensors=tensors, output_bytes=size)
    labels = 8 * (at.tokens + (at.batch == 1)) if shape.head == "causal" else 0
    labels_and_divisor = 0 if chunked else labels + size
    kept, peak = loss_bytes(loss, at.compute, chunks, upcast=at.upcast)
    above = round((peak - kept) * logits)
    return HeadActivations(all_kept, all_kept.total_bytes - labels_and_divisor + above)
