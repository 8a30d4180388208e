"""A module that treats tokens alone, run tile by tile, on paper: see `scheduler.pytorch.tiles`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from scheduler.memory.simulate.tensors import Node, Paper, Value

Body = Callable[[Paper, Value], Value]


def tiled(paper: Paper, tiles: int, x: Value, width: int, body: Body) -> Value:
    """Run a module over the rows of x, each `width` wide, in so many tiles.

    Only x is saved, before the tiles run; the backward makes each tile again.
    """
    rows, onward = x.elements // width, x.node is not None
    saved = paper.save(x)
    out: Value | None = None
    with paper.without_graph() as noted:
        for tile in _tiles(rows, tiles):
            made = body(paper, x.view(tile * width))
            if out is None:
                sizes = noted[:]
                out = paper.compute((), rows * made.elements // tile, made.size)
            paper.spend(2 * made.bytes)
            del made
    assert out is not None
    parameters = [paper.leaf(n, size) for n, size in sizes]
    deep = out.elements // rows

    def back(grads: list[Value], saved: list[Value]) -> list[Value | None]:
        (grad,), (x,) = grads, saved
        saved_at = paper.saved_at
        to_x = paper.compute((), x.elements, x.size) if onward else None
        sums: dict[int, Value] = {}
        for tile in _tiles(rows, tiles):
            start = Node(0)
            part = Value(tile * width, x.size, x.storage, start if onward else None)
            outer, paper.leaves = paper.leaves, []
            made = body(paper, part)
            paper.skip_late_products()
            for i, leaf in enumerate(paper.leaves):
                leaf.hook = partial(_add, paper, sums, i)
            paper.leaves = outer
            assert made.node is not None
            paper.backward(made.node, grad.view(tile * deep))
            del made, part
            if onward:
                paper.spend(2 * start.collected.pop().bytes)
        paper.saved_at = saved_at
        found: list[Value | None] = [to_x]
        for i, (n, size) in enumerate(sizes):
            each = sums.pop(i, None)  # a bias that is not there has none
            if each is not None and each.size != size:
                found.append(paper.compute((each,), n, size))
            else:
                found.append(each)
        return found

    paper.record(out, (x, *parameters), back, saved)
    return out


def _tiles(rows: int, tiles: int) -> Iterator[int]:
    """The rows of each tile."""
    for part in range(tiles):
        yield (rows + tiles - 1 - part) // tiles


def _add(paper: Paper, sums: dict[int, Value], place: int, grad: Value) -> None:
    """Add the gradient that a tile gives to the sum of them, in fp32."""
    if place in sums:
        paper.spend(2 * sums[place].bytes + grad.bytes)
        return
    sums[place] = grad if grad.size == 4 else paper.compute((grad,), grad.elements, 4)
