"""Edges between layers: whether they are a path, and the order in which it runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scheduler.errors import InvalidCosts

__all__ = ["path_order"]

_ONLY_CHAINS = "the graph is not a chain, and general graphs are not supported yet"


def path_order(names: Sequence[str], edges: Iterable[tuple[int, int]]) -> list[int]:
    """Positions of the layers in the order of the path that `edges` form.

    Parameters
    ----------
    names
        Names of the layers, for the message.
    edges
        Pairs (from, to) of positions in `names`, in any order.

    Raises
    ------
    InvalidCosts
        The edges are not one path over all layers; the message names a layer where they fork,
        join, come apart or run in a circle.
    """
    after: dict[int, int] = {}
    before: dict[int, int] = {}
    for a, b in edges:
        if after.get(a) == b:
            raise InvalidCosts(
                f"the edge from {names[a]!r} to {names[b]!r} is there twice; remove one"
            )
        for one_way, at, new, what in ((after, a, b, "successors"), (before, b, a, "predecessors")):
            if at in one_way:
                raise InvalidCosts(
                    f"layer {names[at]!r} has two {what}, {names[one_way[at]]!r} and "
                    f"{names[new]!r}: {_ONLY_CHAINS}"
                )
            one_way[at] = new
    starts = [i for i in range(len(names)) if i not in before]
    order = _walk(starts[0], after) if starts else []
    if len(starts) > 1:
        raise InvalidCosts(
            f"no edges join {names[starts[1]]!r} to the path that starts at "
            f"{names[starts[0]]!r}: {_ONLY_CHAINS}"
        )
    if len(order) < len(names):
        on_cycle = next(iter(after.keys() - set(order)))
        circle = _walk(on_cycle, after)
        shown = [names[i] for i in circle[:3]] + ["…"] * (len(circle) > 3) + [names[on_cycle]]
        raise InvalidCosts(f"the edges run in a circle, {' → '.join(shown)}: {_ONLY_CHAINS}")
    return order


def _walk(start: int, after: dict[int, int]) -> list[int]:
    order = [start]
    while (following := after.get(order[-1], start)) != start:
        order.append(following)
    return order
