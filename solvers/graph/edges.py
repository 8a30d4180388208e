"""What both kinds of graphs have: edges, and copies that live until their last use."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from solvers.problem import InvalidProblem
from solvers.schedule import IllegalPlan

Edges = tuple[tuple[int, int], ...]


class Edged:
    """Nodes or layers in a topological order, with edges between them."""

    edges: Edges

    @abstractmethod
    def __len__(self) -> int: ...

    @cached_property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """For each node or layer those that it reads, ascending."""
        return self._neighbours((v, u) for u, v in self.edges)

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """For each node or layer those that read it, ascending."""
        return self._neighbours(self.edges)

    def _neighbours(self, edges: Iterable[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
        lists: list[list[int]] = [[] for _ in range(len(self))]
        for u, v in edges:
            lists[u].append(v)
        return tuple(tuple(sorted(row)) for row in lists)

    def check_edges(self) -> None:
        """Refuse edges that lead nowhere, backward, or twice the same way."""
        seen: set[tuple[int, int]] = set()
        for u, v in self.edges:
            if not (0 <= u < len(self) and 0 <= v < len(self)):
                last = len(self) - 1
                raise InvalidProblem(f"edge {(u, v)} leads outside the graph's nodes 0 to {last}")
            if u >= v:
                raise InvalidProblem(f"edge {(u, v)} goes against the order of the nodes")
            if (u, v) in seen:
                raise InvalidProblem(f"edge {(u, v)} is there twice")
            seen.add((u, v))


def freed_after(
    made: Sequence[int | None], reads: Iterable[Sequence[int]], said: Callable[[int, int], str]
) -> list[list[int]]:
    """For each step those whose copy has its last use there, by what each step makes and reads.

    A run makes a fresh copy, which serves every use until the next. `said` makes of a step and of
    an input that is not live then what an `IllegalPlan` says of them.
    """
    last_use = list(range(len(made)))  # of the copy that each step makes
    copy: dict[int, int] = {}  # node -> step that made its newest copy
    for step, (v, inputs) in enumerate(zip(made, reads, strict=True)):
        for u in inputs:
            if u not in copy:
                raise IllegalPlan(f"{said(step, u)} is not live (step {step})")
            last_use[copy[u]] = step
        if v is not None:
            copy[v] = step
    freed: list[list[int]] = [[] for _ in made]
    for v, step in zip(made, last_use, strict=True):
        if v is not None:
            freed[step].append(v)
    return freed
