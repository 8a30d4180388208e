"""What the two ends of a model keep: the embedding, and the head with the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scheduler.memory.activations.operations import dropout, linear, norm
from scheduler.memory.activations.setting import setting
from scheduler.memory.activations.tape import Activations, Tape, Tensor
from scheduler.memory.checks import check_choice, check_count
from scheduler.memory.errors import Argument, InvalidRecipe
from scheduler.memory.recipe import LOSSES, Recipe, RecipeFields, recipe_of
from scheduler.memory.shape.shape import Shape

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["HeadActivations", "embedding_activations", "head_activations", "loss_bytes"]


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


def loss_bytes(loss: str, size: int, chunks: int = 8) -> tuple[float, float]:
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
    """
    check_choice(Argument("loss"), loss, LOSSES, InvalidRecipe)
    if loss == "chunked":
        return 0.0, 12 / check_count(Argument("chunks"), chunks, InvalidRecipe)
    if loss == "bf16":
        return size, 3 * size
    held = size if loss == "hf-outputs-kept" else 0
    return 4 + held, 12 + held


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

    Kept: the norm's (see `operations`: Llama in bf16 T(6d + 4)); the norm's output, 2·T·d in
    bf16, by the head when it is trained; per logit, of T·V, what `loss_bytes` says; labels shifted
    by one, int64, 8·T; and the loss's divisor, one number. (Labels are padded by one and sliced:
    one sequence is contiguous as it is, so no copy is made and the padded ones stay, 8·(T + 1).)
    Gemma 2 caps its logits with a tanh, which keeps its output. With "chunked" norm and head input
    are kept, labels are the caller's.

    Parameters
    ----------
    shape, batch, sequence, recipe, fields
        As in `block_activations`. Adapters are the same here as frozen weights: they sit in blocks.
    chunks
        See `loss_bytes`.
    """
    recipe = recipe_of(recipe, fields, computing=True)
    loss = recipe.loss
    at = setting(shape, batch, sequence, recipe, inside=False)
    tape = Tape()
    given = Tensor("input", at.tokens * shape.width, at.stream)
    normed = norm(tape, at, given, "last norm")
    logits = linear(tape, at, normed, "head", shape.width, shape.vocabulary)
    kept, peak = loss_bytes(loss, logits.size, chunks)
    if shape.family == "gemma2" and loss != "chunked":
        tape.keep(logits.named("capped logits"))
    if loss == "hf-outputs-kept":
        tape.keep(logits)
    if loss != "chunked":
        size = logits.size if loss == "bf16" else 4
        tape.keep(
            logits.named("log-softmax", size),
            Tensor("shifted labels", at.tokens + (at.batch == 1), 8),
            Tensor("loss divisor", 1, size),
        )
    all_kept = tape.finish(given, Tensor("loss", 1, logits.size if loss == "bf16" else 4))
    done = sum(
        size for name, size in all_kept.tensors if name in ("shifted labels", "loss divisor")
    )
    above = round((peak - kept) * logits.elements)
    return HeadActivations(all_kept, all_kept.total_bytes - done + above)


def embedding_activations(
    shape: Shape,
    batch: int,
    sequence: int,
    recipe: Recipe | None = None,
    **fields: Unpack[RecipeFields],
) -> Activations:
    """Bytes that are kept before the first block; the layer's input are the token ids.

    Kept: the ids, int64, 8·T, when the embedding is trained; with learned positions their ids, 8·S;
    dropout's mask, also when nothing here is trained, since a gradient passes on to the embedding's
    output; with rotary the tables cos and sin, s·S·a each (a features of a head that turn), which
    every block uses and all sequences share.
    """
    at = setting(shape, batch, sequence, recipe_of(recipe, fields, computing=True), inside=False)
    tape = Tape()
    ids = Tensor("token ids", at.tokens, 8)
    if at.trained:
        tape.keep(ids)
        if shape.positions:
            tape.keep(Tensor("position ids", at.sequence, 8))
    made = Tensor("embedding", at.tokens * shape.width, at.stream)
    made = dropout(tape, at, made, "embedding dropout", shape.dropout)
    if not shape.positions:
        table = Tensor("cosines", at.sequence * shape.turned_width, at.stream)
        tape.keep(table, table.named("sines"))
    return tape.finish(ids, made)
