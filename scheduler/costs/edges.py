"""Edges of a graph: which they are, and an order in which they all lead forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scheduler.common.checks import plain
from scheduler.common.errors import InvalidCosts
from scheduler.common.text import did_you_mean, ordinal, shown

__all__ = ["Ordered", "in_order", "index_pairs", "name_pairs"]

Pairs = list[tuple[int, int]]

_MOST_NAMES = 8
"""Names shown of a circle."""


class Ordered(NamedTuple):
    """Nodes in a topological order.

    Attributes
    ----------
    order
        Positions of the nodes as they were given, in the new order.
    edges
        Pairs of positions in the new order, ascending.
    is_path
        Are the edges the one path through all nodes in that order?
    """

    order: list[int]
    edges: tuple[tuple[int, int], ...]
    is_path: bool


def name_pairs(edges: object, names: Sequence[str]) -> Pairs:
    """Positions of the two ends of every edge of a layer graph, which names its layers.

    Raises
    ------
    InvalidCosts
        `edges` is no list of pairs of known names.
    """
    position = {name: i for i, name in enumerate(names)}
    pairs = []
    for i, edge in enumerate(_listed(edges, "pairs of layer names")):
        where = f"the {ordinal(i + 1)} edge"
        if not isinstance(edge, list | tuple) or len(edge) != 2:
            raise InvalidCosts(f"{where} must be a pair of layer names, got {shown(edge)}")
        for end in edge:
            if not isinstance(end, str):
                raise InvalidCosts(f"{where} must name its layers, got {shown(end)}")
            if end not in position:
                raise InvalidCosts(
                    f"{where} names an unknown layer {shown(end)}{did_you_mean(end, position)}"
                )
        pairs.append((position[edge[0]], position[edge[1]]))
    return pairs


def index_pairs(edges: object, count: int) -> Pairs:
    """The two ends of every edge of a compute graph, which counts its nodes from 0.

    Raises
    ------
    InvalidCosts
        `edges` is no list of pairs of indices below `count`.
    """
    pairs = []
    for i, edge in enumerate(_listed(edges, "pairs of node indices")):
        where = f"the {ordinal(i + 1)} edge"
        if not isinstance(edge, list | tuple) or len(edge) != 2:
            raise InvalidCosts(f"{where} must be a pair of node indices, got {shown(edge)}")
        pair: list[int] = []
        for end in map(plain, edge):
            if not isinstance(end, int) or isinstance(end, bool):
                raise InvalidCosts(f"{where} must give the indices of its nodes, got {shown(end)}")
            if not 0 <= end < count:
                raise InvalidCosts(
                    f"{where} leads to node {shown(end)}, but there are nodes 0 to {count - 1}"
                )
            pair.append(end)
        pairs.append((pair[0], pair[1]))
    return pairs


def in_order(names: Sequence[str], pairs: Pairs, what: str) -> Ordered:
    """The nodes in a topological order; nodes that are in one already keep it.

    Parameters
    ----------
    names
        Names of the nodes, for the message.
    pairs
        The edges, as positions in `names`.
    what
        How a message calls a node: "layer" or "node".

    Raises
    ------
    InvalidCosts
        An edge leads to where it starts, or is there twice, or the edges run in a circle.
    """
    seen: set[tuple[int, int]] = set()
    for a, b in pairs:
        if a == b:
            raise InvalidCosts(
                f"{what} {names[a]!r} has an edge to itself, but it cannot read its own output; "
                "remove the edge"
            )
        if (a, b) in seen:
            raise InvalidCosts(
                f"the edge from {names[a]!r} to {names[b]!r} is there twice; remove one"
            )
        seen.add((a, b))
    order = _topological(names, pairs, what)
    at = {old: new for new, old in enumerate(order)}
    edges = tuple(sorted((at[a], at[b]) for a, b in pairs))
    return Ordered(order, edges, edges == tuple((i, i + 1) for i in range(len(names) - 1)))


def _listed(edges: object, what: str) -> list[object] | tuple[object, ...]:
    if not isinstance(edges, list | tuple):
        raise InvalidCosts(f"'edges' must be a list of {what}, got {shown(edges)}")
    return edges


def _topological(names: Sequence[str], pairs: Pairs, what: str) -> list[int]:
    """All positions, the first possible one next at each step."""
    if all(a < b for a, b in pairs):  # nearly always, and then without the import
        return list(range(len(names)))
    import networkx

    graph = networkx.DiGraph()
    graph.add_nodes_from(range(len(names)))
    graph.add_edges_from(pairs)
    try:
        return list(networkx.lexicographical_topological_sort(graph))
    except networkx.NetworkXUnfeasible:
        circle = [a for a, _ in networkx.find_cycle(graph)]
    first = circle.index(min(circle))
    spelled = _spelled([names[i] for i in circle[first:] + circle[:first]])
    raise InvalidCosts(
        f"the edges run in a circle, {spelled}, so no {what} of it can be the first to run; remove "
        "an edge of it"
    )


def _spelled(circle: list[str]) -> str:
    """``'a' → 'b' → 'a'``; of a long circle its beginning, and how long it is."""
    names = [repr(name) for name in circle]
    if len(names) <= _MOST_NAMES:
        return " → ".join([*names, names[0]])
    return f"{' → '.join(names[:_MOST_NAMES])} → … → {names[0]} ({len(names)} in all)"
