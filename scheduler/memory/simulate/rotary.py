"""Positions that turn queries and keys, on paper: see `modules`."""

from __future__ import annotations

from scheduler.memory.simulate.kernels import add, join, multiply, part, unary
from scheduler.memory.simulate.setting import Setting
from scheduler.memory.simulate.tensors import Paper, Value

JOINED_BY_ROTARY = ("glm", "glm4", "gpt_neox", "phi3")
"""Families whose rotary slices a head and joins the parts again, head by head in memory."""
_INTERLEAVED = ("glm", "glm4")
"""Of these, those that turn neighbours, so that each block makes tables of its own."""


def turned(paper: Paper, at: Setting, q: Value, k: Value) -> tuple[Value, Value]:
    """Turn queries and keys. Some families slice off what turns, and join it with the rest."""
    width, turning = at.shape.head_width, at.shape.turned_width
    table = paper.leaf(at.sequence * turning, at.stream, trained=False)
    tables = [table, table]
    if at.shape.family not in JOINED_BY_ROTARY:
        turned = _rotary(paper, q, tables)
        return turned, _rotary(paper, k, tables)
    if at.shape.family in _INTERLEAVED:
        tables = [_repeated(paper, at) for _ in range(2)]
    q_turns, q_stays, k_turns, k_stays = (
        part(paper, x, x.elements * share // width)
        for x in (q, k)
        for share in (turning, width - turning)
    )
    if at.shape.family == "phi3":
        turned = join(paper, _rotary(paper, q_turns, tables), q_stays)
        return turned, join(paper, _rotary(paper, k_turns, tables), k_stays)
    both = at.shape.family in _INTERLEAVED
    q, k = (_rotary(paper, x, tables, neighbours=both) for x in (q_turns, k_turns))
    turned = join(paper, q, q_stays)
    return turned, join(paper, k, k_stays)


def _rotary(paper: Paper, x: Value, tables: list[Value], *, neighbours: bool = False) -> Value:
    """Run x·cos + rotate_half(x)·sin.

    Backward: the halves' gradients are padded with zeros to full size and added up.
    """
    cos, sin = tables
    straight = multiply(paper, x, cos)
    return add(paper, straight, multiply(paper, _rotate_half(paper, x, neighbours), sin))


def _rotate_half(paper: Paper, x: Value, neighbours: bool) -> Value:
    first, second = (part(paper, x, x.elements // 2) for _ in range(2))
    op = "aten.stack.default" if neighbours else "aten.cat.default"
    return join(paper, unary(paper, second, "aten.neg.default"), first, op)


def _repeated(paper: Paper, at: Setting) -> Value:
    """Repeat each of half a table's columns: a copy."""
    half = paper.leaf(at.sequence * at.shape.turned_width, at.stream, trained=False)
    return paper.compute((half,), half.elements, half.size, op="aten.clone.default")


def table_bytes(at: Setting) -> int:
    """Bytes of the tables that all blocks are handed."""
    shape = at.shape
    if not shape.rotary:
        return 0
    # Gemma 3 has tables of their own for blocks with a window.
    pairs = len({kind.window for kind in shape.kinds}) if shape.family == "gemma3_text" else 1
    return 2 * pairs * at.sequence * shape.turned_width * at.stream
