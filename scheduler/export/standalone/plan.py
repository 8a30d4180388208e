"""The plan that an exported file runs: there its own, in the place of the empty one here."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch.utils.checkpoint as of_torch

LAYERS: list[str] = []
CHECKPOINTS: list[tuple[str, str]] = []
POLICIES: list[dict[str, list[int]]] = []
OPTIONS: dict[str, int] = {}


class _Tree:
    """A checkpoint of blocks and checkpoints; with `keeps` that of one block under an option."""

    def __init__(self, first: int, last: int, keeps: dict[str, list[int]] | None) -> None:
        self.first, self.last, self.keeps = first, last, keeps
        self.inner: list[_Tree] = []

    def depth(self) -> int:
        """How deep checkpoints nest."""
        deepest, level = 0, [self]
        while level:
            deepest, level = deepest + 1, [inner for tree in level for inner in tree.inner]
        return deepest

    def parts(self) -> list[int | _Tree]:
        """What it runs again: blocks by their numbers, and checkpoints."""
        found: list[int | _Tree] = []
        at = self.first
        for inner in self.inner:
            found += [*range(at, inner.first), inner]
            at = inner.last + 1
        return [*found, *range(at, self.last + 1)]

    def stopping(self) -> AbstractContextManager[Any]:
        """Whether its recomputation may end early. A block under an option saves its own."""
        ending = self.parts()[-1]
        whole = isinstance(ending, _Tree) and ending.keeps is not None
        return of_torch.set_checkpoint_early_stop(False) if whole else nullcontext()


def _trees(spans: list[tuple[int, int, Any]]) -> list[_Tree]:
    """The outermost checkpoints, with those inside them."""
    roots: list[_Tree] = []
    open_: list[_Tree] = []
    for first, last, keeps in sorted(spans, key=lambda span: (span[0], -span[1])):
        while open_ and first > open_[-1].last:
            open_.pop()
        tree = _Tree(first, last, keeps)
        (open_[-1].inner if open_ else roots).append(tree)
        open_.append(tree)
    return roots
