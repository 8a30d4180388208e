"""What both kinds of graphs check, and what their edges say."""

from __future__ import annotations

from collections.abc import Iterable

from solvers.problem import LIMIT, InvalidProblem

__all__ = ["Edges", "check_edges", "check_sum", "neighbours"]

Edges = tuple[tuple[int, int], ...]


def check_sum(what: str, total: int) -> None:
    """Refuse a total that int64 arithmetic cannot hold."""
    if total >= LIMIT:
        raise InvalidProblem(f"the {what} add up to {total}, beyond 2**62; use a larger unit")


def check_edges(edges: Edges, n: int) -> None:
    """Refuse edges that lead nowhere, backward, or twice the same way."""
    seen: set[tuple[int, int]] = set()
    for u, v in edges:
        if not (0 <= u < n and 0 <= v < n):
            raise InvalidProblem(f"edge {(u, v)} leads outside the graph's nodes 0 to {n - 1}")
        if u >= v:
            raise InvalidProblem(f"edge {(u, v)} goes against the order of the nodes")
        if (u, v) in seen:
            raise InvalidProblem(f"edge {(u, v)} is there twice")
        seen.add((u, v))


def neighbours(edges: Iterable[tuple[int, int]], n: int) -> tuple[tuple[int, ...], ...]:
    """For each of `n` nodes the second ends of the edges that it begins, ascending."""
    lists: list[list[int]] = [[] for _ in range(n)]
    for u, v in edges:
        lists[u].append(v)
    return tuple(tuple(sorted(row)) for row in lists)
