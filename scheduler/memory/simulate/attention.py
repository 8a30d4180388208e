"""Attention, on paper: see `modules`."""

from __future__ import annotations

from scheduler.memory.simulate.kernels import (
    cast,
    dropout,
    join,
    l2_norm,
    multiply,
    part,
    rms_norm,
    scale,
    split,
    subtract,
    unary,
    view,
)
from scheduler.memory.simulate.latent import latent_projected
from scheduler.memory.simulate.modules import project
from scheduler.memory.simulate.rotary import JOINED_BY_ROTARY, complex_turned, turned
from scheduler.memory.simulate.setting import Setting, linears
from scheduler.memory.simulate.tensors import Paper, Value

_WIDEST_FUSED_HEAD = 256
_NORMED_LATE = ("gemma3_text",)
"""Families that norm queries and keys when keys and values are projected."""
_SOFTMAX_AS_IT_IS = ("gpt2", "bert", "llama4_text", "roberta")
"""Families whose eager attention runs softmax in the scores' own dtype."""
_FUSED = "aten._scaled_dot_product_flash_attention"
_FUSED_WITH_MASKS = "aten._scaled_dot_product_efficient_attention"
"""What CUDA runs where there is a mask, a head is too wide or numbers have four bytes."""


def attend(paper: Paper, at: Setting, x: Value) -> tuple[Value, Value | None]:
    """Run attention on the normed input, its output projection and GPT-2's dropout with it.

    Eager attention also returns the probabilities, and the block refers to them to its end.
    """
    shape = at.shape
    _held: tuple[Value, ...] = ()
    if shape.kv_rank:
        q, k, v, _held = latent_projected(paper, at, x)
    else:
        q, k, v = _projected(paper, at, x)
    if shape.rotary and not shape.kv_rank:
        turn = complex_turned if shape.family == "llama4_text" else turned
        q, k = turn(paper, at, q, k)
    if shape.qk_l2_norm:
        q = _unit(paper, at, q)
        k = _unit(paper, at, k)
    if shape.scaled_queries:
        q = cast(paper, multiply(paper, q, _temperatures(paper, at)), q.size)
    attended, probabilities = _mixed(paper, at, q, k, v)
    attended = project(paper, at, attended, "o")
    if shape.family == "gpt2":
        attended = dropout(paper, at, attended, shape.dropout)
    return attended, probabilities


def _unit(paper: Paper, at: Setting, x: Value) -> Value:
    return l2_norm(paper, cast(paper, x, 4), x.elements // at.shape.head_width, x.size)


def _temperatures(paper: Paper, at: Setting) -> Value:
    scales = paper.compute((), at.sequence, 8, op="aten.arange.default")
    scales = paper.compute((scales,), at.sequence, 8, op="aten.add.Tensor")
    ops = "_to_copy.default add.Tensor div.Tensor floor.default log1p.default mul.Tensor add.Tensor"
    for op in ops.split():
        scales = paper.compute((scales,), at.sequence, 4, op=f"aten.{op}")
    return scales.view(at.tokens)


def mix(paper: Paper, at: Setting, x: Value) -> tuple[Value, Value | None]:
    """Run attention without rotary up to its output projection; nothing inside it is held."""
    q, k, v = _projected(paper, at, x)
    return _mixed(paper, at, q, k, v)


def _mixed(paper: Paper, at: Setting, q: Value, k: Value, v: Value) -> tuple[Value, Value | None]:
    run = _eager if at.eager else _fused if _is_fused(at) else _by_steps
    return run(paper, at, q, k, v)


def _projected(paper: Paper, at: Setting, x: Value) -> tuple[Value, Value, Value]:
    """Run the projections and put heads before tokens.

    Where their gradients come in that order, a copy puts them in the projection's.
    """
    shape = at.shape
    ordered = shape.heads > 1
    if "qkv" not in linears(shape):
        # Where queries are normed before keys are projected, so in reverse go their gradients.
        late = shape.family in _NORMED_LATE
        q, k = (_headed(paper, at, project(paper, at, x, name), late) for name in ("q", "k"))
        v = project(paper, at, x, "v")
        v = view(paper, v, copied=not _is_fused(at) and shape.kv_heads > 1)
        if late:
            q, k = (rms_norm(paper, at, part, shape.head_width) for part in (q, k))
        return q, k, v
    qkv = project(paper, at, x, "qkv")
    if shape.family == "gpt_neox":
        q, k, v = split(paper, view(paper, qkv, copied=ordered), 3)
    elif shape.family == "phi3":
        widths = (shape.query_width, shape.kv_width, shape.kv_width)
        q, k, v = (view(paper, part(paper, qkv, at.tokens * n), copied=ordered) for n in widths)
    else:
        q, k, v = (
            view(paper, n, copied=not _is_fused(at) and ordered) for n in split(paper, qkv, 3)
        )
    return q, k, v


def _headed(paper: Paper, at: Setting, x: Value, late: bool) -> Value:
    """Put queries or keys in heads, and norm them where the shape does, unless `late`."""
    x = view(paper, x, copied=at.shape.rotary or (not _is_fused(at) and at.shape.heads > 1))
    return rms_norm(paper, at, x, at.shape.head_width) if at.shape.qk_norm and not late else x


def _fused(paper: Paper, at: Setting, q: Value, k: Value, v: Value) -> tuple[Value, None]:
    """Run scaled_dot_product_attention: 4·A·a FLOPs, 2.5 times that backward (scores again).

    A causal mask halves both, as flash kernels skip what it hides; a padding mask does not, nor a
    window's: it is turned into one of numbers in every layer, e·B·S². Kept are queries, keys and
    values, the output, which lies in memory as the queries do (where rotary has put them head by
    head, the projection keeps a copy), and the log of each row's sum of exponentials, 4·T·H.
    """
    shape = at.shape
    q, k, v = (cast(paper, part, at.compute) for part in (q, k, v))
    widths = shape.head_width + shape.value_width
    flops = 2 * at.probabilities * widths // (2 if shape.causal and not at.masked else 1)
    if expands(at):
        k, v = _expanded(paper, at, k), _expanded(paper, at, v)
    masks = [_in_numbers(paper, at)] if at.masked else []
    flash = not masks and at.compute == 2 and widths <= 2 * _WIDEST_FUSED_HEAD
    flash = flash and shape.value_width == shape.head_width
    kernel = (_FUSED if flash else _FUSED_WITH_MASKS) if at.cuda else f"{_FUSED}_for_cpu"
    before = paper.save(q, k, v, *masks)
    made, sums = paper.run(
        f"{kernel}.default",
        (q, k, v, *masks),
        [(at.tokens * shape.attended_width, at.compute), (at.tokens * shape.heads, 4)],
        flops,
    )
    after = paper.save(made, sums)
    del sums, masks
    sizes = [part.elements for part in (q, k, v)]

    def back(grads: list[Value], saved: list[Value]) -> list[Value]:
        paper.spend(sum(part.bytes for part in (*grads, *saved)), flops * 2.5)
        return [paper.compute((), n, at.compute) for n in sizes]

    paper.record(made, (q, k, v), back, before, after)
    if shape.family in JOINED_BY_ROTARY and shape.heads > 1:
        return view(paper, made, made=True), None
    return made, None


def expands(at: Setting) -> bool:
    """Whether transformers expands keys and values to all heads before a fused attention."""
    wide = at.shape.head_width > _WIDEST_FUSED_HEAD
    return (at.masked or wide) and at.shape.kv_heads < at.shape.heads


def _is_fused(at: Setting) -> bool:
    """Whether one kernel runs the attention. The CPU has none with dropout, nor for two widths."""
    on_cpu = not at.shape.attention_dropout and at.shape.value_width == at.shape.head_width
    return not at.eager and (at.cuda or on_cpu)


def _by_steps(paper: Paper, at: Setting, q: Value, k: Value, v: Value) -> tuple[Value, None]:
    """Run what scaled_dot_product_attention is without a kernel of its own."""
    return view(paper, _in_fp32(paper, at, q, k, v), made=at.shape.heads > 1), None


def _in_fp32(paper: Paper, at: Setting, q: Value, k: Value, v: Value) -> Value:
    """Run it in fp32. torch's function holds all that it has given a name to its end."""
    shape, apart = at.shape, at.batch > 1 and at.shape.heads > 1
    q_copied = apart and shape.family not in JOINED_BY_ROTARY
    k_copied, v_copied = q_copied, apart
    if expands(at):
        k, v = _expanded(paper, at, k), _expanded(paper, at, v)
        k_copied, v_copied = False, apart and shape.kv_heads == 1
    mask = _in_numbers(paper, at) if at.masked else None
    in_fp32 = [cast(paper, part, 4) for part in (q, k, v)]
    queries, keys, values = in_fp32
    queries = unary(paper, queries, "aten.mul.Scalar")
    if mask is None and shape.causal:
        mask = _causal(paper, at)
    if shape.kv_heads < shape.heads and not expands(at):
        keys, values = (_expanded(paper, at, part, copied=True) for part in (keys, values))
        k_copied = v_copied = False
    scores = _scaled_scores(paper, at, queries, keys, (q_copied, k_copied))
    if mask is not None:
        scores = _added(paper, scores, mask)
    scores = unary(paper, scores, "aten._safe_softmax.default", saves="output")
    scores = dropout(paper, at, scores, shape.attention_dropout)
    _returned = cast(paper, scores, at.compute)
    heads = at.tokens * shape.attended_width
    made = _product(paper, at, scores, _factor(paper, values, v_copied), heads)
    return cast(paper, view(paper, made, copied=apart), at.compute)


def _scaled_scores(
    paper: Paper, at: Setting, q: Value, k: Value, copied: tuple[bool, bool]
) -> Value:
    factors = q, unary(paper, k, "aten.mul.Scalar")
    q, k = (_factor(paper, x, new) for x, new in zip(factors, copied, strict=True))
    return _product(paper, at, q, k, at.probabilities)


def _causal(paper: Paper, at: Setting) -> Value:
    n = at.sequence**2
    every = paper.compute((), n, 1, op="aten.ones.default")
    lower = paper.compute((every,), n, 1, op="aten.tril.default")
    del every
    return _numbers(paper, lower, 4)


def _in_numbers(paper: Paper, at: Setting) -> Value:
    """The mask that every block is handed, in numbers."""
    mask = paper.leaf(at.batch * at.sequence**2, 1, trained=False)
    return _numbers(paper, mask, at.compute)


def _numbers(paper: Paper, mask: Value, size: int) -> Value:
    """Turn a mask of booleans into one of zeros and minus infinities."""
    numbers = [paper.compute((), 1, size, op="aten.scalar_tensor.default") for _ in range(2)]
    return paper.compute((mask, *numbers), mask.elements, size, op="aten.where.self")


def _expanded(paper: Paper, at: Setting, x: Value, *, copied: bool = False) -> Value:
    """Keys or values for every head: a copy, unless one head is read as all of them."""
    made = x.view(at.tokens * at.shape.query_width)
    if copied or at.shape.kv_heads > 1:
        made = paper.compute((made,), made.elements, x.size, op="aten.clone.default")
    paper.record_simple(made, x)
    return made


def _eager(paper: Paper, at: Setting, q: Value, k: Value, v: Value) -> tuple[Value, Value]:
    """Run softmax(q kᵀ · scale + mask) v, operation by operation.

    Softmax is in fp32 and its output cast, 4·A and e·A; some have it in their own dtype, e·A.

    A product sees batch and heads as one dimension. A factor in which the two do not lie so is
    copied; those that rotary has joined or that are expanded to all heads lie so already.
    """
    shape = at.shape
    heads, apart = at.tokens * shape.attended_width, at.batch > 1 and shape.heads > 1
    q_copied = k_copied = apart and shape.family not in JOINED_BY_ROTARY
    v_copied = apart
    if shape.kv_heads < shape.heads:
        k, v = _expanded(paper, at, k), _expanded(paper, at, v)
        k_copied = v_copied = apart and shape.kv_heads == 1
    scores = _scores(paper, at, q, k, (q_copied, k_copied))
    if shape.sinks:
        chances, _combined = _with_sinks(paper, at, scores)
        scores = dropout(paper, at, chances, shape.attention_dropout)
        made = _product(paper, at, scores, _factor(paper, v, v_copied), heads)
        return view(paper, made, made=shape.heads > 1, copied=apart), scores
    size = at.compute if shape.family in _SOFTMAX_AS_IT_IS else 4
    scores = unary(paper, cast(paper, scores, size), "aten._softmax.default", saves="output")
    scores = cast(paper, scores, at.compute)
    scores = dropout(paper, at, scores, shape.attention_dropout)
    made = _product(paper, at, scores, _factor(paper, v, v_copied), heads)
    return view(paper, made, made=shape.heads > 1, copied=apart), scores


def _scores(paper: Paper, at: Setting, q: Value, k: Value, copied: tuple[bool, bool]) -> Value:
    q_new, k_new = copied
    factors = _factor(paper, q, q_new), _factor(paper, k, k_new)
    scores = _product(paper, at, *factors, at.probabilities)
    del factors
    scores = scale(paper, scores)
    if at.shape.family == "gemma2":
        scores = unary(paper, scores, "aten.div.Tensor")
        scores = unary(paper, scores, "aten.tanh.default", saves="output")
        scores = scale(paper, scores)
    if not (at.shape.causal or at.masked):
        return scores
    mask = paper.leaf(at.batch * at.sequence**2, at.compute, trained=False)
    return _added(paper, scores, mask)


def _with_sinks(paper: Paper, at: Setting, scores: Value) -> tuple[Value, Value]:
    """Run softmax beside a sink's score, which then goes; and what softmax ran on."""
    size, rows = at.compute, scores.elements // at.sequence
    sink = paper.leaf(at.shape.heads, size, trained=at.trained)
    spread = sink.view(rows)
    paper.record_simple(spread, sink)
    every = join(paper, scores, spread)
    highest, places = paper.run("aten.max.dim", (every,), [(rows, size), (rows, 8)])
    n = every.elements
    paper.record(
        highest, (every,), lambda g, saved: [paper.compute(g, n, size)], paper.save(places)
    )
    del places
    every = subtract(paper, every, highest)
    del highest
    chances = unary(paper, every, "aten._softmax.default", saves="output")
    return part(paper, chances, scores.elements), every


def _added(paper: Paper, scores: Value, mask: Value) -> Value:
    made = paper.compute((scores, mask), scores.elements, scores.size, op="aten.add.Tensor")
    paper.record(made, (scores,), lambda g, saved: g)
    return made


def _factor(paper: Paper, x: Value, copied: bool) -> Value:
    """Queries, keys or values as a product of all heads sees them."""
    return view(paper, x, made=True) if copied else x


def _product(paper: Paper, at: Setting, x: Value, y: Value, elements: int) -> Value:
    """Run a product of every head: 2·A·a FLOPs."""
    inner = at.shape.head_width if elements == at.probabilities else at.shape.value_width
    flops = 2 * at.probabilities * inner
    sizes = x.elements, y.elements
    kept = paper.save(x, y)
    made = paper.compute((x, y), elements, x.size, flops, op="aten.bmm.default")

    def back(grads: list[Value], saved: list[Value]) -> list[Value]:
        x, y = saved
        return [
            paper.compute((*grads, y), sizes[0], x.size, flops),
            paper.compute((*grads, x), sizes[1], y.size, flops),
        ]

    paper.record(made, (x, y), back, kept)
    return made
