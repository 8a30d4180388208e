"""Attention, on paper: see `modules`."""

from __future__ import annotations

from scheduler.memory.simulate.attending.latent import latent_projected
from scheduler.memory.simulate.attending.rotary import JOINED_BY_ROTARY, complex_turned, turned
from scheduler.memory.simulate.attending.scores import (
    WIDEST_FUSED_HEAD,
    by_steps,
    eager,
    expanded,
    expands,
    in_numbers,
)
from scheduler.memory.simulate.kernels import (
    cast,
    dropout,
    l2_norm,
    multiply,
    part,
    split,
    view,
)
from scheduler.memory.simulate.modules import narrow_norm, project
from scheduler.memory.simulate.parallel.collectives import enter, passed, passed_bytes
from scheduler.memory.simulate.setting import Setting, linears
from scheduler.memory.simulate.tensors import Paper, Value

_NORMED_LATE = ("gemma3_text",)
"""Families that norm queries and keys when keys and values are projected."""
_FUSED = "aten._scaled_dot_product_flash_attention"
_FUSED_WITH_MASKS = "aten._scaled_dot_product_efficient_attention"
"""What CUDA runs where there is a mask, a head is too wide or numbers have four bytes."""


def attend(paper: Paper, at: Setting, x: Value) -> tuple[Value, Value | None]:
    """Run attention on the normed input, its output projection and GPT-2's dropout with it.

    Eager attention also returns the probabilities, and the block refers to them to its end.
    """
    shape = at.shape
    x = enter(paper, at, x)
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
    attended, probabilities = mixed(paper, at, q, k, v)
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
    return mixed(paper, at, q, k, v)


def mixed(
    paper: Paper, at: Setting, q: Value, k: Value, v: Value, bias: Value | None = None
) -> tuple[Value, Value | None]:
    """Run attention up to its output projection.

    `bias` is what is added to scores; fused, the whole mask in numbers. The CPU has no kernel for
    one that gets a gradient.
    """
    learned = bias is not None and bias.node is not None
    fused = fuses(at) and (at.cuda or not learned)
    run = eager if at.eager else _fused if fused else by_steps
    return run(paper, at, q, k, v, bias)


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
        v = view(paper, v, copied=not fuses(at) and shape.kv_heads > 1)
        if late:
            q, k = (narrow_norm(paper, at, part, shape.head_width) for part in (q, k))
        return q, k, v
    qkv = project(paper, at, x, "qkv")
    if shape.family == "gpt_neox":
        q, k, v = split(paper, view(paper, qkv, copied=ordered), 3)
    elif shape.family == "phi3":
        widths = (shape.query_width, shape.kv_width, shape.kv_width)
        q, k, v = (view(paper, part(paper, qkv, at.tokens * n), copied=ordered) for n in widths)
    else:
        q, k, v = (view(paper, n, copied=not fuses(at) and ordered) for n in split(paper, qkv, 3))
    return q, k, v


def _headed(paper: Paper, at: Setting, x: Value, late: bool) -> Value:
    """Put queries or keys in heads, and norm them where the shape does, unless `late`."""
    x = view(paper, x, copied=at.shape.rotary or (not fuses(at) and at.shape.heads > 1))
    return narrow_norm(paper, at, x, at.shape.head_width) if at.shape.qk_norm and not late else x


def _fused(
    paper: Paper, at: Setting, q: Value, k: Value, v: Value, mask: Value | None = None
) -> tuple[Value, None]:
    """Run scaled_dot_product_attention: 4·A·a FLOPs, 2.5 times that backward (scores again).

    A causal mask halves both, as flash kernels skip what it hides; a padding mask does not, nor a
    window's: it is turned into one of numbers in every layer, e·B·S². Kept are queries, keys and
    values, the output, which lies in memory as the queries do (where rotary has put them head by
    head, the projection keeps a copy), and the log of each row's sum of exponentials, 4·T·H.
    """
    shape = at.shape
    q, k, v = (cast(paper, part, at.compute) for part in (q, k, v))
    halved = shape.causal and not at.masked and mask is None
    widths = shape.head_width + shape.value_head_width
    flops = 2 * at.probabilities * at.context * widths // (2 if halved else 1)
    if expands(at):
        k, v = expanded(paper, at, k), expanded(paper, at, v)
    masks = [mask] if mask else [in_numbers(paper, at)] if at.masked else []
    flash = not masks and at.compute == 2 and widths <= 2 * WIDEST_FUSED_HEAD
    flash = flash and shape.value_head_width == shape.head_width
    kernel = (_FUSED if flash else _FUSED_WITH_MASKS) if at.cuda else f"{_FUSED}_for_cpu"
    before = paper.save(q, k, v, *masks)
    sent, far = passed_bytes(paper, at, k, v)
    beside = passed(paper, at, k, v)
    made, sums = paper.send(
        f"{kernel}.default",
        (q, k, v, *masks),
        [(at.tokens * shape.attended_width, at.compute), (at.tokens * shape.heads, 4)],
        *(sent, flops),
        far=far,
    )
    after = paper.save(made, sums)
    given = [q, k, v, *([mask] if mask is not None and mask.node is not None else [])]
    del sums, masks, beside
    sizes = [part.elements for part in given]

    def back(grads: list[Value], saved: list[Value]) -> list[Value]:
        _beside = passed(paper, at, *saved[1:3], backward=True)
        paper.send("", (*grads, *saved), [], 2 * sent, flops * 2.5, far=far)
        found = [paper.compute((), n, at.compute) for n in sizes[:3]]
        if len(sizes) > 3:
            every = paper.compute((), at.probabilities, at.compute)
            # One mask may serve all sequences: its gradient is summed.
            one = every.elements == sizes[3]
            found.append(every if one else paper.compute((every,), sizes[3], at.compute))
        return found

    paper.record(made, given, back, before, after)
    del given
    if shape.family in JOINED_BY_ROTARY and shape.heads > 1:
        return view(paper, made, made=True), None
    return made, None


def fuses(at: Setting) -> bool:
    """Whether one kernel runs the attention. The CPU has none with dropout, nor for two widths."""
    on_cpu = not at.shape.attention_dropout and at.shape.value_head_width == at.shape.head_width
    return not at.eager and (at.cuda or on_cpu)
