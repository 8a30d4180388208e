"""A joint graph taken apart where one value is all that goes from layer to layer.

A cut is an early operation behind which the forward reads nothing made before it but its own output
(tables that layers share aside). Between two cuts lies a part: its forward, and the backward
operations that read what it makes, which must follow each other. While the cuts are kept, nothing
of a part runs again or dies outside its own backward, so that it is a step of its own: what it
holds, peaks at and runs again depends on its own choice alone. All of this is looked up on the
graph, nothing is taken from the names of modules.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from scheduler.pytorch.compile.choice import JointOperation, StepGraph

_REACH = 4  # what is read farther away than this part of the forward is a table that layers share


@dataclass(frozen=True)
class Part:
    """One part.

    Attributes
    ----------
    step
        Its problem, `held` and `held_backward` aside.
    early
        Which operation of the whole each early one of `step` is.
    below
        Is there a cut below it?
    above
        Which of `step.early` is the cut above it; -1: there is none.
    beside_forward, beside_backward
        Bytes that are there besides, in the forward and in the backward, whatever is chosen.
    """

    step: StepGraph
    early: tuple[int, ...]
    below: bool
    above: int
    beside_forward: int
    beside_backward: int

    @property
    def key(self) -> object:
        """Parts with equal keys have equal choices."""
        early, late = (
            tuple(replace(op, name="") for op in ops) for ops in (self.step.early, self.step.late)
        )
        return replace(self.step, early=early, late=late), self.below, self.above


class Parts:
    """A step, taken apart.

    Attributes
    ----------
    graph
        The whole.
    shared
        Early operations that parts share; they are taken for kept.
    shared_bytes
        Of what those make.
    cuts
        Early operations, ascending.
    parts
        From the first forward operations on, one more than there are cuts.
    """

    def __init__(self, graph: StepGraph, most_free: int) -> None:
        self.graph = graph
        self.shared = self._shared()
        self.shared_bytes = sum(map(self._bytes, self.shared))
        self._last = {b: t for t, op in enumerate(graph.late) for b in (*op.makes, *op.reads)}
        self._last |= dict.fromkeys(graph.gradients, len(graph.late))
        self.cuts = self._merged(self._find(), most_free)
        while (spoilt := self._spoilt()) is not None:
            self.cuts = [cut for k, cut in enumerate(self.cuts) if k not in spoilt]
        bounds = list(pairwise([*self._starts, len(graph.late)]))
        windows = [range(*bound) for bound in reversed(bounds)]
        self.parts = [self._part(k, window) for k, window in enumerate(windows)]

    def _bytes(self, i: int) -> int:
        return sum(self.graph.sizes[b] for b in self.graph.early[i].makes)

    def _shared(self) -> frozenset[int]:
        """Operations of the forward that are read far away, with all that they are made of."""
        graph = self.graph
        reach = len(graph.early) // _REACH
        stack = [
            i
            for j, op in enumerate(graph.early)
            for i in self._made(op)
            if op.forward and j - i > reach
        ]
        found: set[int] = set()
        while stack:
            i = stack.pop()
            if i not in found:
                found.add(i)
                stack += self._made(graph.early[i])
        return frozenset(found)

    def _made(self, op: JointOperation) -> set[int]:
        """The early operations that an operation reads from."""
        maker = self.graph.maker
        return {maker[b] for b in op.reads if b in maker}

    def _find(self) -> list[int]:
        """Cuts that the forward reads more than once, as a layer's input is."""
        readers: dict[int, list[int]] = {}
        for j, op in enumerate(self.graph.early):
            for i in self._made(op) - self.shared if op.forward else ():
                readers.setdefault(i, []).append(j)
        cuts: list[int] = []
        read: set[int] = set()  # made up to here, and read from here on
        for i, op in enumerate(self.graph.early):
            read = {j for j in read if readers[j][-1] > i}
            if i in readers and i not in self.shared:
                read.add(i)
                if read == {i} and len(readers[i]) > 1 and op.forward:
                    cuts.append(i)
        return cuts

    def _merged(self, cuts: list[int], most_free: int) -> list[int]:
        """Without cuts at both ends whose parts are small enough together."""
        before = [bisect_left(self.graph.free, cut + 1) for cut in cuts]
        while len(cuts) > 1 and before[1] <= most_free:
            cuts, before = cuts[1:], before[1:]
        while len(cuts) > 1 and len(self.graph.free) - before[-2] <= most_free:
            cuts, before = cuts[:-1], before[:-1]
        return cuts

    def _spoilt(self) -> set[int] | None:
        """Positions of cuts that the backward does not respect, some of them; None: of none.

        Notes on the way where the backward of each part begins, from the last part on, and which
        operations that are not of the forward belong to it.
        """
        graph, now = self.graph, len(self.cuts)
        self._starts = [0]
        self._part_of = [bisect_left(self.cuts, i) for i in range(len(graph.early))]
        placed: dict[int, int] = {}
        for t, op in enumerate(graph.late):
            reads, extra = self._reads_late(op)
            wanted = {self._part_of[i] + (i in self.cuts) for i in reads}
            wanted |= {placed[i] for i in extra if i in placed}
            if not wanted:
                continue
            if len(wanted) > 1 or max(wanted) > now:
                return set(range(min(now, *wanted), max(wanted)))
            (part,) = wanted
            self._starts += [t] * (now - part)
            now = part
            placed |= dict.fromkeys(extra, part)
        self._starts += [len(graph.late)] * now
        for i, part in placed.items():
            self._part_of[i] = part
        return None

    def _reads_late(self, op: JointOperation) -> tuple[set[int], set[int]]:
        """Forward operations that one of the backward reads, and others on the way to them."""
        reads: set[int] = set()
        extra: set[int] = set()
        stack = self._made(op) - self.shared
        while stack:
            i = stack.pop()
            if self.graph.early[i].forward:
                reads.add(i)
            elif i not in extra:
                extra.add(i)
                stack |= self._made(self.graph.early[i]) - self.shared
        return reads, extra

    def _part(self, k: int, window: range) -> Part:
        """Part k, whose backward operations are those of `window`."""
        graph, last = self.graph, self._last
        mine = [i for i, part in enumerate(self._part_of) if part == k and i not in self.shared]
        below = self.cuts[k - 1 : k] if k else []
        inside = {b for i in mine for b in graph.early[i].makes}
        others = graph.outputs - inside if graph.outputs_held else frozenset()
        local = _Local(graph, others)
        early = [local.op(graph.early[i], fixed="keep") for i in below]
        for i in mine:
            fixed = "keep" if i in self.cuts else graph.early[i].fixed
            early.append(local.op(graph.early[i], fixed=fixed))
        made = {b: t for t, op in enumerate(graph.late) for b in op.makes}
        handed = [b for b, t in made.items() if t < window.start and last[b] in window]
        passing = [b for b, t in made.items() if t < window.start and last[b] >= window.stop]
        late = [local.op(JointOperation("above", 1, (), tuple(handed)))] if handed else []
        late += [local.op(graph.late[t]) for t in window]
        left = [b for b, t in made.items() if t in window and last[b] >= window.stop]
        step = StepGraph(
            tuple(early),
            tuple(late),
            tuple(local.sizes),
            frozenset(local.ids(graph.outputs & inside)),
            frozenset(local.ids(left)),
            outputs_held=graph.outputs_held,
        )
        earlier = [b for b in graph.outputs if self._part_of[graph.maker[b]] < k]
        sizes = graph.sizes
        return Part(
            step,
            (*below, *mine),
            bool(below),
            mine.index(self.cuts[k]) + len(below) if k < len(self.cuts) else -1,
            graph.held + sum(sizes[b] for b in earlier),
            graph.held + graph.held_backward + sum(sizes[b] for b in (*passing, *others)),
        )


class _Local:
    """Buffers of a part, numbered as they come up; what it reads from elsewhere is left out."""

    def __init__(self, graph: StepGraph, of_charge: frozenset[int]) -> None:
        self._graph, self._of_charge = graph, of_charge
        self._ids: dict[int, int] = {}
        self.sizes: list[int] = []

    def ids(self, buffers: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(self._ids[b] for b in buffers if b in self._ids))

    def op(self, op: JointOperation, **changes: Any) -> JointOperation:
        reads = self.ids(op.reads)
        for b in op.makes:
            self._ids[b] = len(self.sizes)
            self.sizes.append(0 if b in self._of_charge else self._graph.sizes[b])
        return replace(op, **{"reads": reads, "makes": self.ids(op.makes), **changes})
