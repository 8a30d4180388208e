"""Formulas that others have published, as they stand there: for comparison, not for planning.

Each counts something else than this package's own formulas do; its docstring says what, and where
it is from. ``benchmarks/memory.py`` prints their figures beside those of the full counts.
"""

from __future__ import annotations

from scheduler.memory.errors import InvalidRecipe, check_choice, check_count, check_flag
from scheduler.memory.shape.shape import Shape

__all__ = [
    "RECOMPUTED",
    "checkpointed_sum_bytes",
    "deepspeed_zero2_doc_bytes",
    "first_block_backward_bytes",
    "galore_bytes",
    "megatron_block_bytes",
    "rotary_tables_bytes",
    "zero_activations_bytes",
]

RECOMPUTED = ("nothing", "attention", "everything")
_BF16 = 2


def zero_activations_bytes(layers: int, width: int, batch: int, sequence: int) -> int:
    """Activations by ZeRO (arXiv:1910.02054), section 3.2: 12·h·B·S·L elements of 2 bytes.

    The paper gives the rule in a footnote and derives it nowhere. 24·T·h bytes a layer are fewer
    than a GPT-2 block keeps, T·(34h + 5·heads·S) by Korthikanti et al.: no count of saved tensors.
    """
    return 24 * width * batch * sequence * layers


def deepspeed_zero2_doc_bytes(parameters: int | float, gpus: int) -> float:
    """GPU memory of ZeRO-2 by the examples of DeepSpeed's ``memory.rst``: 4P + 16P/N.

    Weights and gradients of 2 bytes on every GPU, and 16 bytes a parameter over N GPUs. The text
    is older than the code beside it, whose estimate is 2P + 18P/N since its pull request 5099.
    """
    return 4 * parameters + 16 * parameters / check_count("gpus", gpus, InvalidRecipe)


def megatron_block_bytes(
    width: int,
    heads: int,
    batch: int,
    sequence: int,
    *,
    tensor_parallel: int = 1,
    sequence_parallel: bool = False,
    recompute: str = "nothing",
) -> float:
    """Activations of a Megatron GPT block on one GPU: Korthikanti et al., arXiv:2205.05198.

    With s tokens in a sequence, b sequences, h the width, a heads, t GPUs of tensor parallelism
    (table 2 of the paper), f = 4h, 2-byte activations and dropout masks of 1:

    ===============================  ==================================
    nothing recomputed, t = 1        sbh · (34 + 5·a·s/h)
    tensor parallel                  sbh · (10 + 24/t + 5·a·s/(h·t))
    tensor and sequence parallel     sbh/t · (34 + 5·a·s/h)
    attention recomputed             the same without 5·a·s/h
    everything recomputed            2·sbh
    ===============================  ==================================

    The 34: attention 11 (input of q, k, v 2; queries and keys 4; values 2; input of the projection
    2; dropout mask 1), MLP 19 (input 2; gelu's input 8; input of the second layer 8; mask 1), two
    norms' inputs 4. Of these the inputs of attention and MLP, 4, norms 4 and masks 2 are on every
    GPU: 10; sequence parallelism divides them too. The 5·a·s/h: softmax's output 2, mask 1, what
    the product with the values takes 2. Statistics of norms are left out, as in the paper.

    Parameters
    ----------
    width, heads, batch, sequence
        h, a, b, s.
    tensor_parallel
        t.
    sequence_parallel
        Norms and dropouts are divided too.
    recompute
        "nothing"; "attention", the scores to the product with the values, which the paper calls
        selective; "everything": the block's input is kept, whole on each GPU.

    Raises
    ------
    InvalidRecipe
        A size is not a positive whole number, or a name is unknown.
    """
    names = ("width", "heads", "batch", "sequence", "tensor_parallel")
    values = (width, heads, batch, sequence, tensor_parallel)
    for name, value in zip(names, values, strict=True):
        check_count(name, value, InvalidRecipe)
    divided = check_flag("sequence_parallel", sequence_parallel, InvalidRecipe)
    check_choice("recompute", recompute, RECOMPUTED, InvalidRecipe)
    features = sequence * batch * width
    if recompute == "everything":
        return float(_BF16 * features)
    scores = 5 * heads * sequence / width if recompute == "nothing" else 0
    everywhere = 10 / tensor_parallel if divided else 10
    return features * (everywhere + (24 + scores) / tensor_parallel)


def rotary_tables_bytes(layers: int, positions: int, head_width: int) -> int:
    """Tables of cosines and sines that every block of early torchtune holds, fp32.

    Half a head's width of angles, two numbers each, for each of the positions the model was built
    for: 4·positions·head_width bytes a block. Later versions share one table.
    """
    return layers * 4 * positions * head_width


def checkpointed_sum_bytes(
    persistent: int, shape: Shape, tokens: int, block: int, beside: int = 0
) -> int:
    """A step with every block checkpointed, as tables add it up: state + L·2·T·d + one block.

    Each block's input in bf16, and what the one block keeps that is recomputed. Gradients on their
    way through that block are left out, and so are head and loss, as for chunked ones. `beside` is
    for the one large thing that a recipe adds: over a 4-bit base the weight of the largest linear
    layer, turned into bf16 for its product; with the optimizer in the backward the largest gradient
    (of embedding or head), though it does not meet a recomputed block and all inputs at once.

    Parameters
    ----------
    persistent
        Bytes of state: as far as it is on the GPU (paged moments are not).
    shape
        Its L and d.
    tokens
        T.
    block
        Bytes that a block keeps: `block_activations`.
    beside
        Bytes.
    """
    return persistent + shape.layers * _BF16 * tokens * shape.width + block + beside


def first_block_backward_bytes(shape: Shape, tokens: int, block: int) -> int:
    """Pure bf16 AdamW, every block checkpointed, at its last backward: that of the first block.

    Weights 2P and moments 4P; gradients of all but this block, 2(P - P_block), a tied table's in
    one tensor; the block's input 2·T·d and what it keeps, recomputed; the gradient of its output,
    2·T·d; in the gated MLP the gradients of the product and of one of its factors, 2·T·f each.
    """
    state = 6 * shape.parameters + _BF16 * (shape.parameters - shape.block_parameters)
    return state + 4 * tokens * shape.width + block + 4 * tokens * shape.mlp_width


def galore_bytes(shape: Shape, tokens: int, rank: int) -> int:
    """GaLore with 8-bit Adam, an update per layer in the backward, every block checkpointed.

    Zhao et al., arXiv:2403.03507: a matrix m × n, m ≤ n, has its gradient projected to r × n by an
    m × r matrix. Weights 2P; of each linear layer of a block both 8-bit moments of the projected
    gradient, 2·r·n, and the projector in bf16, 2·m·r; of embedding and head both 8-bit moments in
    full, 2·V·d each; inputs of the blocks L·2·T·d; logits 12·T·V, see `loss_bytes`. Scales of the
    8-bit blocks (2·4/256 a number) and gradients, one layer's at a time, are left out. That the
    projector is in bf16 is an inference of the table that the formula is from.
    """
    d, v, f = shape.width, shape.vocabulary, shape.mlp_width
    matrices = [(d, shape.query_width), (shape.query_width, d), *[(d, shape.kv_width)] * 2]
    matrices += [(d, f)] * (3 if shape.gated else 2)
    optimizer = sum(2 * rank * (max(pair) + min(pair)) for pair in matrices)
    ends = 2 * v * d * (1 if shape.tied else 2)
    kept = shape.layers * _BF16 * tokens * d + 12 * tokens * v
    return _BF16 * shape.parameters + shape.layers * optimizer + ends + kept
