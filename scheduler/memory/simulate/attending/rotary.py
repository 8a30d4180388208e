"""Positions that turn queries and keys, on paper: see `modules`."""

from __future__ import annotations

from scheduler.memory.simulate.kernels import (
    add,
    cast,
    join,
    multiply,
    part,
    split,
    subtract,
    unary,
)
from scheduler.memory.simulate.setting import Setting
from scheduler.memory.simulate.tensors import Paper, Value

JOINED_BY_ROTARY = ("deepseek_v3", "glm", "glm4", "gpt_neox", "gpt_oss", "phi3")
"""Families whose rotary slices a head and joins the parts again, head by head in memory."""
_BY_HALVES = ("gpt_oss",)
"""Of these, those whose halves are turned one by one, by tables of half a head."""
INTERLEAVED = ("glm", "glm4")
"""Of these, those that turn neighbours, so that each block makes tables of its own."""


def complex_turned(paper: Paper, at: Setting, q: Value, k: Value) -> tuple[Value, Value]:
    """Turn queries and keys as complex numbers in fp32, as Llama 4 does."""
    size = q.size
    table = paper.leaf(at.sequence * at.shape.head_width // 2, 8, trained=False)
    q, k = (_as_complex(paper, cast(paper, x, 4)) for x in (q, k))
    q_out = _as_real(paper, multiply(paper, q, table))
    k_out = _as_real(paper, multiply(paper, k, table))
    turned = cast(paper, q_out, size)
    return turned, cast(paper, k_out, size)


def _as_complex(paper: Paper, x: Value) -> Value:
    made = Value(x.elements // 2, 2 * x.size, x.storage)
    paper.record(made, (x,), lambda g, saved: [Value(2 * g[0].elements, 4, g[0].storage)])
    return made


def _as_real(paper: Paper, x: Value) -> Value:
    made = Value(2 * x.elements, x.size // 2, x.storage)
    paper.record(made, (x,), lambda g, saved: [Value(g[0].elements // 2, 8, g[0].storage)])
    return made


def turned(paper: Paper, at: Setting, q: Value, k: Value) -> tuple[Value, Value]:
    """Turn queries and keys. Some families slice off what turns, and join it with the rest."""
    width, turning = at.shape.head_width, at.shape.turned_width
    table = paper.leaf(at.sequence * turning, at.stream, trained=False)
    tables = [table, table]
    if at.shape.family in _BY_HALVES:
        half = paper.leaf(table.elements // 2, at.stream, trained=False)
        turned = by_halves(paper, split(paper, q, 2), half)
        return turned, by_halves(paper, split(paper, k, 2), half)
    if at.shape.family not in JOINED_BY_ROTARY:
        turned = _rotary(paper, q, tables)
        return turned, _rotary(paper, k, tables)
    if at.shape.family in INTERLEAVED:
        tables = [_repeated(paper, at) for _ in range(2)]
    q_turns, q_stays, k_turns, k_stays = (
        part(paper, x, x.elements * share // width)
        for x in (q, k)
        for share in (turning, width - turning)
    )
    if at.shape.family == "phi3":
        turned = join(paper, _rotary(paper, q_turns, tables), q_stays)
        return turned, join(paper, _rotary(paper, k_turns, tables), k_stays)
    both = at.shape.family in INTERLEAVED
    q, k = (_rotary(paper, x, tables, neighbours=both) for x in (q_turns, k_turns))
    turned = join(paper, q, q_stays)
    return turned, join(paper, k, k_stays)


def by_halves(paper: Paper, halves: list[Value], table: Value) -> Value:
    """Run x₁·cos - x₂·sin and x₂·cos + x₁·sin, and join them; tables are of half the features."""
    x, y = halves
    halves.clear()
    straight, across = multiply(paper, x, table), multiply(paper, y, table)
    first = subtract(paper, straight, across)
    del straight, across
    straight, across = multiply(paper, y, table), multiply(paper, x, table)
    second = add(paper, straight, across)
    del straight, across
    return join(paper, first, second)


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
    # Gemma 3 has tables of their own for blocks with a window.
    pairs = len({kind.window for kind in shape.kinds}) if shape.family == "gemma3_text" else 1
    if shape.positions:
        return 0
    if shape.family == "llama4_text":
        return 4 * at.sequence * shape.head_width  # complex numbers in fp32
    if shape.family in _BY_HALVES:
        return at.sequence * shape.turned_width * at.stream
    return 2 * pairs * at.sequence * shape.turned_width * at.stream
