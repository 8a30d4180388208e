"""T5's blocks, with what comes before them, between its stacks and after them, on paper.

The first block of a stack makes the relative positions' bias, which the others are handed: it is
part of what comes before them. Decoder blocks are handed what the encoder makes, too.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler.memory.simulate.attending.attend import fuses, mixed
from scheduler.memory.simulate.ends import cross_entropy, looked_up
from scheduler.memory.simulate.kernels import (
    add,
    cast,
    dropout,
    linear,
    mean,
    multiply,
    power,
    scale,
    shift,
    view,
)
from scheduler.memory.simulate.modules import activate, project
from scheduler.memory.simulate.setting import Setting
from scheduler.memory.simulate.tensors import Paper, Value


def t5_block(paper: Paper, at: Setting, x: Value) -> Value:
    """Run a block that is handed the bias and, in a decoder, what the encoder has made."""
    bias = paper.side(at.shape.heads * at.sequence**2, at.stream, shared=not at.last)
    if not at.shape.crosses:
        return _block(paper, at, x, bias)
    states = paper.side(at.tokens * at.shape.width, at.stream, shared=not at.last)
    across = paper.leaf(at.shape.heads * at.sequence**2, at.stream, trained=False)
    return _block(paper, at, x, bias, states, across)


def t5_embed(paper: Paper, at: Setting, _given: Value) -> Value:
    """Look up the encoder's words, and run its first block."""
    words = looked_up(paper, at, at.tokens, at.shape.vocabulary, shared=True)
    return _block(paper, at, dropout(paper, at, words, at.shape.dropout))


def t5_between(paper: Paper, at: Setting, x: Value) -> Value:
    """Run the encoder's last norm, look up the decoder's words, and run its first block.

    `at` is of the decoder's blocks.
    """
    states = dropout(paper, at, _norm(paper, at, x), at.shape.dropout)
    paper.hand_on(states)
    # Labels shifted by one, with a copy of what is moved while they are made.
    ids = paper.compute((), at.tokens, 8)
    words = looked_up(paper, at, at.tokens, at.shape.vocabulary, ids, shared=True)
    if at.eager:
        paper.hand_on(paper.compute((), at.batch * at.sequence**2, at.stream))
    if at.padding_mask:
        paper.hand_on(paper.compute((), at.batch * at.sequence**2, at.stream if at.eager else 1))
    given = dropout(paper, at, words, at.shape.dropout)
    return _block(paper, at, given, states=states)


def t5_head(paper: Paper, at: Setting, x: Value, _loss: str) -> Value:
    """Run the decoder's last norm, the head and the loss."""
    made, _normed = t5_states(paper, at, x)
    logits = linear(paper, made, at.shape.width, at.shape.vocabulary, trained=at.trained)
    return cross_entropy(paper, logits)


def t5_states(paper: Paper, at: Setting, x: Value) -> tuple[Value, Value]:
    """Run the decoder's last norm; what the head gets, and what the decoder's output refers to."""
    normed = dropout(paper, at, _norm(paper, at, x), at.shape.dropout)
    return scale(paper, normed) if at.shape.scaled else normed, normed


def _block(
    paper: Paper,
    at: Setting,
    x: Value,
    bias: Value | None = None,
    states: Value | None = None,
    across: Value | None = None,
) -> Value:
    """Run a block; without a bias, and one across, the first one, which makes them."""
    x, _probabilities = _attended(paper, at, x, None, bias)
    if states is not None:
        x, _probabilities = _attended(paper, at, x, states, across)
    normed = _norm(paper, at, x)
    made = _mlp(paper, at, normed)
    del normed
    return add(paper, x, dropout(paper, at, made, at.shape.dropout))


def _attended(
    paper: Paper, at: Setting, x: Value, states: Value | None, bias: Value | None
) -> tuple[Value, Value | None]:
    normed = _norm(paper, at, x)
    made, probabilities = _attend(paper, at, normed, states, bias)
    return add(paper, x, dropout(paper, at, made, at.shape.dropout)), probabilities


def _attend(
    paper: Paper, at: Setting, x: Value, states: Value | None, bias: Value | None
) -> tuple[Value, Value | None]:
    """Run attention on the stack's own tokens, or across on the encoder's `states`."""
    kind, source = ("", x) if states is None else ("cross_", states)
    fused = fuses(at) and (at.cuda or states is not None)
    copied = not fused and at.shape.heads > 1
    q = view(paper, project(paper, at, x, f"{kind}q"), copied=copied)
    k = view(paper, project(paper, at, source, f"{kind}k"), copied=copied)
    v = view(paper, project(paper, at, source, f"{kind}v"), copied=copied)
    if bias is None:
        bias = _bias(paper, at) if states is None else _nothing(paper, at)
        paper.hand_on(bias)
    seeing = at if states is None else replace(at, shape=replace(at.shape, causal=False))
    mask = bias if at.eager else None
    made, probabilities = mixed(paper, seeing, q, k, v, mask or _mask(paper, seeing, bias))
    made = project(paper, at, made, f"{kind}o")
    return made, probabilities


def _mask(paper: Paper, at: Setting, bias: Value) -> Value:
    """The bias as a fused attention gets it: a mask of numbers, e·H·S².

    With padding there is one for each sequence.
    """
    # As it is looked up, pair by pair, it lies in another order than scores do.
    ordered = bias.node is not None
    if at.padding_mask and not (at.shape.causal and ordered):
        return _where(paper, bias, None, at.batch * bias.elements)
    if at.shape.causal and ordered:
        places = [paper.compute((), at.sequence, 8, op="aten.arange.default") for _ in range(2)]
        mask = paper.compute(places, at.sequence**2, 1, op="aten.ge.Tensor")
        del places
        bias = _where(paper, bias, mask, bias.elements)
    return view(paper, bias, made=True) if ordered else bias


def _where(paper: Paper, x: Value, mask: Value | None, elements: int) -> Value:
    """Put minus infinity where a mask says so; `mask` where it is made here, and not handed in."""
    number = paper.compute((), 1, x.size, op="aten.scalar_tensor.default")
    reads = (x, number, *([mask] if mask else []))
    made = paper.compute(reads, elements, x.size, op="aten.where.self")
    if x.node is None:
        return made
    n, size = x.elements, x.size

    def back(grads: list[Value], saved: list[Value]) -> list[Value]:
        to_x = paper.compute((*grads, *saved), elements, size)
        return [to_x if n == elements else paper.compute((to_x,), n, size)]

    paper.record(made, (x,), back, *([paper.save(mask)] if mask else []))
    return made


def _nothing(paper: Paper, at: Setting) -> Value:
    return paper.compute((), at.shape.heads * at.sequence**2, at.stream, op="aten.zeros.default")


def _bias(paper: Paper, at: Setting) -> Value:
    """Look up a number a head for each pair of tokens, by the bucket that their distance is in."""
    shape, n = at.shape, at.sequence**2
    buckets = _buckets(paper, at)
    table = shape.buckets * shape.heads
    w = paper.leaf(table, at.stream, trained=at.trained)
    made = paper.compute((buckets,), n * shape.heads, at.stream, op="aten.embedding.default")
    saved = paper.save(buckets)
    paper.record(
        made, (w,), lambda g, saved: [paper.compute((*g, *saved), table, at.stream)], saved
    )
    return made


def _buckets(paper: Paper, at: Setting) -> Value:
    """Put distances in buckets, in whole numbers of 8 bytes, one for each pair of tokens."""
    n = at.sequence**2

    def made(size: int = 8) -> Value:
        return paper.compute((), n, size)

    # How far apart two tokens are, on which side (where both are seen), and how far at most.
    _apart, _side, _distance = made(), made() if not at.shape.causal else None, made()
    _is_small = made(1)
    logarithm = made(4)
    logarithm = made(4)
    far = made()
    del logarithm
    most = made()
    far = made()
    del most
    found = made()
    del far
    return found


def _norm(paper: Paper, at: Setting, x: Value) -> Value:
    """Run T5's norm, which multiplies what it is given, not a cast of it."""
    rows = x.elements // at.shape.width
    w = paper.leaf(at.shape.width, x.size, trained=at.trained)
    variance = mean(paper, power(paper, cast(paper, x, 4)), rows)
    made = multiply(paper, x, power(paper, shift(paper, variance), of_output=True))
    return multiply(paper, w, cast(paper, made, x.size))


def _mlp(paper: Paper, at: Setting, x: Value) -> Value:
    if at.shape.gated:
        gate = activate(paper, at, project(paper, at, x, "gate"))
        up = project(paper, at, x, "up")
        made = multiply(paper, gate, up)
    else:
        made = activate(paper, at, project(paper, at, x, "up"))
    made = dropout(paper, at, made, at.shape.dropout)
    return project(paper, at, made, "down")
