"""The sets of a chain's spans: what the kernel is given, and plans read back from what it makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from solvers.chain.exact.arrays import (
    LAYER_BYTES,
    MEMORY_LIMIT,
    POINT_BYTES,
    SPAN_BYTES,
    arrays,
    check_memory,
    least_memory,
    same_spans,
)
from solvers.chain.exact.bounds import Bounds
from solvers.chain.problem import Chain
from solvers.problem import LIMIT
from solvers.schedule import Checkpoint, Item, Keep

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Sets: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]  # the kernel's table and pool

FIT = -1
"""Thin as much as it takes to stay within the memory limit (to the kernel: any negative)."""


class Tables:
    """A chain as arrays, and what the kernel makes of them.

    Attributes
    ----------
    thinned
        The sets that were made last are not exact.
    whole
        They have every body that a plan within their caps can have.
    stop
        One flag, which another thread may set: what is being built is given up.

    Raises
    ------
    Unsuitable
        There are too many layers for `memory_limit`.
    """

    def __init__(self, chain: Chain, nested: bool, memory_limit: int | None) -> None:
        import numpy as np

        self.chain, self._nested = chain, nested
        self._limit = MEMORY_LIMIT if memory_limit is None else memory_limit
        self._least = LAYER_BYTES * len(chain)
        check_memory(len(chain), self._least, self._limit)
        self._costs, self._ways = arrays(chain)
        self.most = 0
        self.thinned, self.whole = False, True
        self.stop = np.zeros(1, np.bool_)

    def build(self, *, most: int = 0, down: bool = False) -> Sets | None:
        """All sets of all spans, or None when they take more points than there is memory for.

        `most`, `down`: how they are thinned; see the kernel.

        Raises
        ------
        Unsuitable
            There are too many layers for `memory_limit`.
        """
        import numpy as np

        from solvers.chain.exact import kernel

        length = len(self.chain)
        width = max(length - 1, 1)
        check_memory(length, least_memory(length), self._limit)
        same = same_spans(self.chain, width)
        sets = kernel.count_sets(self._costs, same)
        check_memory(length, least_memory(length, sets), self._limit)
        slack = np.full((width, length), LIMIT, np.int64)
        rooms = np.empty((4, length, 2), np.int64)
        self.whole = True
        return self._build(LIMIT, LIMIT, same, slack, rooms, most, down, False)

    def build_within(
        self,
        bounds: Bounds,
        excess: int,
        *,
        width: int = LIMIT,
        most: int = 0,
        down: bool = False,
        sparse: bool = False,
    ) -> Sets | None:
        """The same of what plans within the bytes of `bounds` and so much time lost can use.

        Of bodies of more layers than `width`, or than there is memory for, there is nothing: then
        they are not `whole`; nor where bodies of a few lengths alone are looked at (`sparse`).
        """
        import numpy as np

        slack, self.whole = bounds.slack(excess, min(width, self.widest))
        same = same_spans(self.chain, len(slack))
        for row, first in zip(slack, same, strict=True):
            # Sets are made for the first of equal spans, and serve all.
            np.maximum.at(row, first[first >= 0], row[first >= 0])
        self.whole &= not sparse
        rooms = bounds.rooms(excess)
        return self._build(bounds.cap, excess, same, slack, rooms, most, down, sparse)

    @property
    def kinds(self) -> int:
        """How many layers differ from all before them, the last one left out."""
        return len(set(same_spans(self.chain, 1)[0].tolist()) - {-1})

    @property
    def widest(self) -> int:
        """The longest body that half of the memory has tables for."""
        length = len(self.chain)
        fits = (self._limit - self._least) // (2 * SPAN_BYTES * length)
        return max(min(fits, length - 1), 1)

    def _build(
        self,
        cap: int,
        excess: int,
        same: NDArray[np.int64],
        slack: NDArray[np.int64],
        rooms: NDArray[np.int64],
        most: int,
        down: bool,
        sparse: bool,
    ) -> Sets | None:
        from solvers.chain.exact import kernel

        pool = (self._limit - self._least - SPAN_BYTES * slack.size) // POINT_BYTES
        complete, self.thinned, *sets = kernel.build(
            self._costs,
            self._ways,
            same,
            self._nested,
            cap,
            excess,
            slack,
            rooms,
            most,
            down,
            sparse,
            pool,
            self.stop,
        )
        self.most = most
        return (sets[0], sets[1]) if complete else None

    def points(self, sets: Sets) -> list[tuple[int, int]]:
        """The answer of `sets`: pairs (peak bytes with the chain's input, time)."""
        from solvers.chain.exact import kernel

        table, pool = sets
        start, count = table[kernel.H_START, 0, -1], table[kernel.H_COUNT, 0, -1]
        peaks, times = pool[:, start : start + count]
        return list(zip((peaks + self.chain.input_bytes).tolist(), times.tolist(), strict=True))

    def plan(self, sets: Sets, budget: int) -> tuple[Item, ...]:
        """The fastest plan of `sets` within `budget` bytes; empty when there is none."""
        within = [peak for peak, _ in self.points(sets) if peak <= budget]
        if not within:
            return ()
        # Not the budget: the least peak of that time.
        return self.items(sets, 0, len(self.chain), within[-1] - self.chain.input_bytes)

    def items(self, sets: Sets, first: int, last: int, limit: int) -> tuple[Item, ...]:
        """The fastest plan of layers `first` .. `last` with a peak of `limit` bytes at most.

        Their input is not counted. `last` is the chain's length for the end of the chain, and
        below its last layer for the body of a checkpoint. Empty when there is none.
        """
        from solvers.chain.exact import kernel

        levels: list[list[Item]] = [[]]
        opened: list[tuple[int, int]] = []
        for kind, one, two, _ in kernel.read_back(
            self._costs, self._ways, *sets, first, last, limit
        ).tolist():
            if kind == kernel.KEEP:
                options = self.chain.layers[one].options
                levels[-1].append(Keep(one, options[two - 1].name if two else None))
            elif kind == kernel.OPEN:
                opened.append((one, two))
                levels.append([])
            else:
                body = tuple(levels.pop())
                levels[-1].append(Checkpoint(*opened.pop(), body))
        return tuple(levels[0])
