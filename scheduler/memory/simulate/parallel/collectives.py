"""What GPUs that share a layer send each other, on paper.

Each collective is an operation with a time and an output, so that options of a block decide
whether what was gathered is kept, or gathered again. A GPU sends (t - 1)/t of what all t of them
have in the end, or had at the beginning.
"""

from __future__ import annotations

from scheduler.memory.simulate.setting import Setting
from scheduler.memory.simulate.tensors import Paper, Value

GATHER = "_c10d_functional.all_gather_into_tensor.default"
_SCATTER = "_c10d_functional.reduce_scatter_tensor.default"
_REDUCE = "_c10d_functional.all_reduce.default"
_EXCHANGE = "_c10d_functional.all_to_all_single.default"


def enter(paper: Paper, at: Setting, x: Value) -> Value:
    """Hand x to layers of which each GPU has some features: all tokens of it.

    Backward, what the features of each give is added up.
    """
    t, n, size = at.tensor, x.elements, x.size
    if t == 1:
        return x
    if not at.scattered:
        made = x.view()
        paper.record(made, (x,), lambda g, saved: [_sent(paper, at, _REDUCE, g[0], n, 2)])
        return made
    made = _sent(paper, at, GATHER, x, t * n)
    if at.gathers_again:
        again = []

        def gather(part: Value) -> Value:
            # Layers that read the same are one in Megatron, which gathers it once.
            again.append(part)
            if len(again) > 1:
                return paper.compute((), t * n, size)
            return _sent(paper, at, GATHER, part, t * n)

        made.part, made.again = x, gather
    paper.record(made, (x,), lambda g, saved: [_sent(paper, at, _SCATTER, g[0], n)])
    return made


def leave(paper: Paper, at: Setting, x: Value) -> Value:
    """Add up what the features of each GPU have made: the sum on all, or its tokens on each."""
    t, n = at.tensor, x.elements
    if t == 1:
        return x
    if not at.scattered:
        made = _sent(paper, at, _REDUCE, x, n, 2)
        paper.record(made, (x,), lambda g, saved: g)
        return made
    made = _sent(paper, at, _SCATTER, x, n // t)
    paper.record(made, (x,), lambda g, saved: [_sent(paper, at, GATHER, g[0], n)])
    return made


def dispatch(paper: Paper, at: Setting, x: Value, elements: int) -> Value:
    """Send rows to the GPUs that have their experts, or back; this one then has so many."""
    if at.expert == 1:
        return x

    def sent(x: Value, elements: int) -> Value:
        bytes_ = max(x.elements, elements) * x.size * (at.expert - 1) / at.expert
        far = paper.gpu.is_far(at.tensor * at.expert)
        return paper.send(_EXCHANGE, (x,), [(elements, x.size)], bytes_, far=far)[0]

    n = x.elements
    made = sent(x, elements)
    paper.record(made, (x,), lambda g, saved: [sent(g[0], n)])
    return made


def passed_bytes(paper: Paper, at: Setting, k: Value, v: Value) -> tuple[float, bool]:
    """What a GPU sends of keys and values while all tokens of a sequence pass, and if far."""
    return (at.context - 1) * (k.bytes + v.bytes), paper.gpu.is_far(at.tensor * at.context)


def passed(paper: Paper, at: Setting, k: Value, v: Value, *, backward: bool = False) -> list[Value]:
    """What attention over all tokens of a sequence holds beside this GPU's own.

    Documented, not measured: torch gathers all keys and values and adds up what they give in fp32
    (its default, ``_RotateMethod.ALL_GATHER``); Megatron passes them on, one being sent and one
    received, with their gradients in the backward.
    """
    if at.context == 1:
        return []
    n, size = k.elements + v.elements, k.size
    if at.runtime == "megatron":
        return [paper.compute((), 2 * n, size) for _ in range(2 if backward else 1)]
    summed = at.tokens * at.shape.query_width + (2 * n if backward else 0)
    buffers = [((1 + at.context) * n, size), (3 * at.tokens * at.shape.attended_width, 4)]
    return [paper.compute((), *each) for each in (*buffers, *([(summed, 4)] * backward))]


def _sent(paper: Paper, at: Setting, op: str, x: Value, elements: int, times: int = 1) -> Value:
    """Run a collective of the GPUs that share features, which leaves so many elements."""
    whole = max(x.elements, elements) * x.size
    bytes_ = times * whole * (at.tensor - 1) / at.tensor
    far = paper.gpu.is_far(at.tensor)
    return paper.send(op, (x,), [(elements, x.size)], bytes_, far=far)[0]
