"""What runs in tiles, on paper: `scheduler.pytorch.tiles` does it so.

Of a block the modules that treat tokens alone (`tokenwise`). A head runs with its loss: the
gradients are made in the forward, tile by tile, and the backward multiplies them by the gradient of
the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import ceil

from scheduler.costs.options.tiles import Tile, find_tiles
from scheduler.costs.peaks import Peaks
from scheduler.memory.gpus import Gpu
from scheduler.memory.simulate.ends import transformed
from scheduler.memory.simulate.modules import norm
from scheduler.memory.simulate.setting import HEAD, Setting
from scheduler.memory.simulate.step import block, capped, rehearse, run_once
from scheduler.memory.simulate.t5 import t5_states
from scheduler.memory.simulate.tensors import Node, Paper, Value

_A_TOKEN = 64
"""Bytes, at most, of all that there is of a token beside its logits: labels, maxima, sums."""
_PIECES = 8
"""Of a tile, in which its logits become their gradient."""

_STATES: dict[str, Callable[[Paper, Setting, Value], tuple[Value, ...]]] = {
    "causal": lambda paper, at, x: (norm(paper, at, x),),
    "masked": lambda paper, at, x: (transformed(paper, at, x),),
    "seq2seq": t5_states,
}
"""What makes of the last block's output that of which the head makes logits.

That comes first, beside what the model refers to until the loss is made.
"""


def head_tiles(at: Setting, gpu: Gpu, least: int | None, whole: Peaks) -> tuple[Tile, ...]:
    """The head, `whole` on paper, in 2, 4, … tiles of at least so many tokens."""
    # An adapter's head is no plain layer; a class's has a row for each sequence; when autocast lets
    # go of what it casts is not followed.
    if at.shape.head not in _STATES or HEAD in at.targets or at.autocast:
        return ()

    def seen(count: int) -> Peaks:
        return run_once(partial(tiled_head, tiles=count), at, gpu, scalar=True)

    return find_tiles(at.tokens, least, whole, seen)


def block_tiles(at: Setting, gpu: Gpu, least: int | None, whole: Peaks) -> tuple[Tile, ...]:
    """A block, `whole` on paper, in 2, 4, … tiles of at least so many tokens."""
    if not at.tiled:
        return ()

    def seen(count: int) -> Peaks:
        return rehearse(block, replace(at, tiles=count), gpu).peaks

    return find_tiles(at.tokens, least, whole, seen)


def tiled_head(paper: Paper, at: Setting, x: Value, tiles: int) -> Value:
    """Run what is before the head, and head and loss in `tiles`."""
    d, many = at.shape.width, at.shape.vocabulary
    states, *_referred = _STATES[at.shape.head](paper, at, x)
    del x
    sizes = [d * many, *([many] if at.shape.head_bias else [])]
    parameters = [paper.leaf(n, at.stream, trained=at.trained) for n in sizes]
    _rows = paper.compute((), at.tokens, 8)
    _labels = _shifted(paper, at) if at.shape.head == "causal" else ()
    _ones = paper.compute((), at.tokens, 4)
    sums = [paper.compute((), states.elements, states.size)]
    if at.trained:
        sums += [paper.compute((), n, 4) for n in sizes]
    # Of each token its loss, and its weight in their mean: as parts, then put together.
    _losses = paper.compute((), 4 * at.tokens, 4)
    done = 0
    while done < at.tokens:
        tile = min(ceil(at.tokens / tiles), at.tokens - done)
        done += tile
        _run_tile(paper, at, states, parameters[0], sums, tile)
    size = 4 if at.upcast else at.compute
    made, divisor = paper.compute((), 1, size), paper.compute((), 1, 4)

    def back(grads: list[Value], saved: list[Value]) -> list[Value | None]:
        to_x, *to_own = saved[:-1]
        for each in (to_x, *to_own):
            paper.spend(2 * each.bytes)
        if not at.trained:
            return [to_x, *(None for _ in sizes)]
        return [to_x, *(v if at.stream == 4 else _cast(paper, v, at.stream) for v in to_own)]

    paper.record(made, (states, *parameters), back, paper.save(*sums, divisor))
    return made


def _cast(paper: Paper, x: Value, size: int) -> Value:
    return paper.compute((x,), x.elements, size)


def _shifted(paper: Paper, at: Setting) -> tuple[Value, ...]:
    """Labels shifted by one: padded, and of several sequences a copy without the first ones."""
    padded = paper.compute((), at.tokens + at.batch, 8)
    return (padded, paper.compute((padded,), at.tokens, 8)) if at.batch > 1 else (padded,)


def _run_tile(
    paper: Paper, at: Setting, x: Value, w: Value, sums: list[Value], tokens: int
) -> None:
    """Run a tile, and add what it gives to the gradients of the hidden states and the weight."""
    d, many, size = at.shape.width, at.shape.vocabulary, at.compute
    flops = 2 * tokens * d * many
    _beside = paper.compute((), _A_TOKEN * tokens + 4 * many, 1)
    chunk = paper.compute((x.view(tokens * d),), tokens * d, size)
    logits = paper.compute((chunk, w), tokens * many, size, flops)
    done = 0
    while done < tokens:
        piece = min(ceil(tokens / _PIECES), tokens - done)
        done += piece
        _run_piece(paper, at, logits.view(piece * many))
    states = paper.compute((logits, w), tokens * d, size, flops)
    paper.spend(3 * states.bytes)
    del states
    if not at.trained:
        return
    if size == 4:
        paper.spend(2 * sums[1].bytes + logits.bytes + chunk.bytes, flops)
        return
    slices = ceil(_PIECES * d / tokens)
    for _ in range(slices):
        rows = ceil(many / slices)
        part = paper.compute((logits.view(tokens * rows), chunk), rows * d, size, flops / slices)
        paper.spend(2 * 4 * part.elements + part.bytes)
        del part


def _run_piece(paper: Paper, at: Setting, logits: Value) -> None:
    """Put the gradient of the losses in the place of some tokens' logits."""
    n, size = logits.elements, logits.size
    start = Node(0)
    read = Value(n, size, logits.storage, start)
    has_steps = at.shape.family == "gemma2"
    if has_steps:
        for step in capped(paper):
            read = step(read)
    paper.spend(read.bytes)  # the largest of each token
    in_place = not has_steps and size == 4
    values = read if in_place else paper.compute((read,), n, 4)
    # Less the largest; their powers, and the sums of those; times a factor of each token.
    paper.spend(2 * values.bytes * in_place + 3 * values.bytes + values.bytes + read.bytes)
    if not has_steps:
        return
    assert read.node is not None
    grad = values if size == 4 else _cast(paper, values, size)
    del values
    paper.backward(read.node, grad)
    del grad
    paper.spend(2 * start.collected.pop().bytes)
