"""A head that runs with its loss in tiles, on paper: `scheduler.pytorch.tiles` does it so.

The gradients are made in the forward, tile by tile; the backward multiplies them by the gradient of
the loss.
"""

from __future__ import annotations

from math import ceil

from scheduler.memory.simulate.modules import norm
from scheduler.memory.simulate.setting import Setting
from scheduler.memory.simulate.tensors import Paper, Value

_A_TOKEN = 64
"""Bytes, at most, of all that there is of a token beside its logits: labels, maxima, sums."""
_PASSES = 9
"""How often a tile's logits are read or written to make the loss and their gradient."""


def can_tile(at: Setting) -> bool:
    """Whether the head is one that is known in tiles."""
    shape = at.shape
    plain = shape.head == "causal" and shape.family != "gemma2" and not shape.head_bias
    return plain and not at.autocast and at.lora is None and at.stream == at.compute


def tiled_head(paper: Paper, at: Setting, x: Value, tiles: int) -> Value:
    """Run the last norm, and head and loss in `tiles`."""
    d, many, size = at.shape.width, at.shape.vocabulary, at.compute
    normed = norm(paper, at, x)
    del x
    w = paper.leaf(d * many, size, trained=at.trained)
    _rows, _labels = paper.compute((), at.tokens, 8), paper.compute((), at.tokens + at.batch, 8)
    _shifted = paper.compute((_labels,), at.tokens, 8) if at.batch > 1 else None
    _ones = paper.compute((), at.tokens, 4)
    of_x = paper.compute((), normed.elements, size)
    sums = [of_x, *([paper.compute((), d * many, 4)] if at.trained else [])]
    # Of each token its loss, and its weight in their mean: as parts, then put together.
    _losses = paper.compute((), 4 * at.tokens, 4)
    done = 0
    while done < at.tokens:
        tile = min(ceil(at.tokens / tiles), at.tokens - done)
        done += tile
        _run_tile(paper, at, normed, w, sums, tile)
    made, divisor = paper.compute((), 1, 4), paper.compute((), 1, 4)
    n = normed.elements

    def back(grads: list[Value], saved: list[Value]) -> list[Value | None]:
        for each in saved[:-1]:
            # In fp32, piece by piece: a cast where it is in less, and the product.
            piece = ceil(each.elements / tiles)
            _cast = paper.compute((), piece, 4) if each.size < 4 else None
            _product = paper.compute((), piece, 4)
            paper.spend(2 * each.bytes)
            del _cast, _product
        to_x = saved[0]
        if not at.trained:
            return [to_x, None]
        to_w = saved[1] if size == 4 else paper.compute((saved[1],), d * many, size)
        assert to_x.elements == n
        return [to_x, to_w]

    paper.record(made, (normed, w), back, paper.save(*sums, divisor))
    return made


def _run_tile(
    paper: Paper, at: Setting, x: Value, w: Value, sums: list[Value], tokens: int
) -> None:
    """Run a tile, and add what it gives to the gradients of the hidden states and the weight."""
    d, many, size = at.shape.width, at.shape.vocabulary, at.compute
    flops = 2 * tokens * d * many
    _beside = paper.compute((), _A_TOKEN * tokens + 4 * many, 1)
    chunk = paper.compute((x.view(tokens * d),), tokens * d, size)
    logits = paper.compute((chunk, w), tokens * many, size, flops)
    values = logits if size == 4 else paper.compute((logits,), tokens * many, 4)
    paper.spend(_PASSES * values.bytes)
    grad = values if size == 4 else paper.compute((values,), tokens * many, size)
    del logits, values
    piece = paper.compute((grad, w), tokens * d, size, flops)
    paper.spend(3 * piece.bytes)
    del piece
    if not at.trained:
        return
    if size == 4:
        paper.spend(2 * sums[1].bytes + grad.bytes + chunk.bytes, flops)
        return
    slices = ceil(d / tokens)
    for _ in range(slices):
        rows = ceil(many / slices)
        part = paper.compute((grad.view(tokens * rows), chunk), rows * d, size, flops / slices)
        paper.spend(2 * 4 * part.elements + part.bytes)
        del part
