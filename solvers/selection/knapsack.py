"""The knapsack with dependencies: Pareto sets of closed sets of items.

Nemhauser and Ullmann, "Discrete dynamic programming and capital allocation" (1969): item after
item, the Pareto set of the sets so far is joined with itself shifted by the item. Here one such
set is kept for every state, and a state is what the items decided so far mean for those still to
come: which must be taken (something taken needs them) and which may not (they need something left
out). Items that need nothing and that nothing needs leave one state only.

Sets of one size and time are one point, so that equal items are counted, not enumerated: of n of
them n + 1 points are made, not 2**n.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from solvers.selection.items import Item

MOST_STATES = 64
"""Beyond this many states at once, items that need others are given up, and the loss is told."""

_Points: TypeAlias = NDArray[np.int64]
"""A Pareto set, shape (MEMBERS + words, points): sizes ascending, times ascending."""

_Key: TypeAlias = tuple[int, int]
"""A state: bit masks of the items still to come that must be taken, and that may not."""

SIZE, TIME, COUNT, MEMBERS = range(4)
_BITS = 62  # of a word; the earliest member is the highest bit


def closed_sets(
    items: Sequence[Item], labels: int, most: int
) -> tuple[list[tuple[tuple[int, ...], int, int]], int]:
    """The closed sets of items that no other beats: fewer bytes, more time.

    Of equal sets the one with fewest operations, then the lexicographically first.

    Barred items are left out, and what needs them. Operations are below `labels`. `most` points are
    kept at once, over all states; each state has at least two.

    Returns
    -------
    sets
        Operations, bytes and time of each, bytes and time ascending.
    loss
        No closed set has more time than the best of these within its bytes by more than this.
    """
    graph = _Graph(items)
    loss = graph.narrow()
    sets: dict[_Key, _Points] = {(0, 0): np.zeros((MEMBERS + -(-labels // _BITS), 1), np.int64)}
    left = graph.left
    for index in graph.order:
        left &= ~(1 << index)
        made: dict[_Key, _Points] = {}
        for key, points in sets.items():
            for after, taken in graph.decide(key, index, left):
                branch = _with(points, items[index]) if taken else points
                made[after] = _best(made[after], branch) if after in made else branch
        # A set goes through one state a step, so of the states' losses only the largest counts.
        share = max(most // len(made), 2)
        losses = [0]
        for key, points in made.items():
            if points.shape[1] > share:
                made[key], lost = _thin(points, share)
                losses.append(lost)
        loss += max(losses)
        sets = made
    (points,) = sets.values()
    sizes, times = points[SIZE].tolist(), points[TIME].tolist()
    return list(zip(_members(points, labels), sizes, times, strict=True)), loss


class _Graph:
    """What needs what, transitively, as bit masks; and the order in which items are decided.

    Attributes
    ----------
    left
        Mask of the items that can be taken at all.
    order
        Those worth deciding. What hangs together first, while the sets are small; then the rest
        from large to small, so that few sums of sizes differ for long.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        self.items = items
        self.needs = [sum(1 << j for j in item.needs) for item in items]
        tied = [k for k, item in enumerate(items) if item.needs]
        for k in tied:  # Warshall
            for j in tied:
                if self.needs[j] >> k & 1:
                    self.needs[j] |= self.needs[k]
        self.needed_by = [0] * len(items)
        for j in tied:
            for k in _indices(self.needs[j]):
                self.needed_by[k] |= 1 << j
        self.left = (1 << len(items)) - 1
        for k, item in enumerate(items):
            if item.bar:
                self.left &= ~self._up(k)
        self.order = self._order()

    def decide(self, key: _Key, index: int, left: int) -> Iterator[tuple[_Key, bool]]:
        """The states after item `index`, with whether it is taken; `left` comes after it."""
        must, never = key
        if not must >> index & 1:
            yield (must & left, (never | self.needed_by[index]) & left), False
        if not never >> index & 1:
            yield ((must | self.needs[index]) & left, never & left), True

    def narrow(self) -> int:
        """Give up items until no more than `MOST_STATES` arise; return the time that may cost.

        Without an item and what needs it, a set is still closed, smaller, and its time less by no
        more than theirs.
        """
        loss = 0
        while not self._is_narrow():
            costs = [
                (sum(self.items[j].time for j in _indices(self._up(k) & self.left)), k)
                for k in self.order
                if self.needs[k] & ~(1 << k)
            ]
            least, k = min(costs)
            loss += least
            self.left &= ~self._up(k)
            self.order = self._order()
        return loss

    def _up(self, index: int) -> int:
        return self.needed_by[index] | 1 << index

    def _is_narrow(self) -> bool:
        keys: set[_Key] = {(0, 0)}
        left = self.left
        for index in self.order:
            left &= ~(1 << index)
            keys = {after for key in keys for after, _ in self.decide(key, index, left)}
            if len(keys) > MOST_STATES:
                return False
        return True

    def _order(self) -> list[int]:
        joined: list[int] = []
        single: list[int] = []
        seen = 0
        for k in _indices(self.left):
            part, wanted = 0, 1 << k & ~seen
            while wanted:
                part |= wanted
                for j in _indices(wanted):
                    wanted |= self.needs[j] | self.needed_by[j]
                wanted &= self.left & ~part
            seen |= part
            if part.bit_count() > 1:
                joined += _indices(part)
            elif part and self.items[k].time:
                single.append(k)
        single.sort(key=lambda k: (-self.items[k].bytes, -self.items[k].time))
        return joined + single


def _indices(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _with(points: _Points, item: Item) -> _Points:
    """The points, each with the item."""
    more = np.zeros((len(points), 1), np.int64)
    more[SIZE], more[TIME], more[COUNT] = item.bytes, item.time, len(item.operations)
    for i in item.operations:
        more[MEMBERS + i // _BITS] |= 1 << (_BITS - 1 - i % _BITS)
    return points + more  # the item is in none of them: adding sets its bits


def _best(p: _Points, q: _Points) -> _Points:
    """The Pareto set of both."""
    both = np.concatenate((p, q), axis=1)
    order = np.argsort(both[SIZE], kind="stable")
    # Each has a size once, so that equal ones are pairs: put the better first.
    sizes = both[SIZE, order]
    pairs = np.flatnonzero(sizes[1:] == sizes[:-1])
    first, second = order[pairs], order[pairs + 1]
    swap = _better(both[:, second], both[:, first])
    order[pairs] = np.where(swap, second, first)
    order[pairs + 1] = np.where(swap, first, second)
    most = np.maximum.accumulate(both[TIME, order])
    gains = np.append(True, most[1:] > most[:-1])
    return both[:, order[gains]]


def _better(p: _Points, q: _Points) -> NDArray[np.bool_]:
    """Where p comes before q of the same size: more time, fewer members, earlier ones."""
    better = np.zeros(p.shape[1], np.bool_)
    for row in range(len(p) - 1, SIZE, -1):
        a, b = (q, p) if row == COUNT else (p, q)
        better = (a[row] > b[row]) | (a[row] == b[row]) & better
    return better


def _thin(points: _Points, most: int) -> tuple[_Points, int]:
    """At most `most` of the points, evenly in time, and the most time lost at any size.

    Evenly, and not with the least loss as `selection.thin` does: that takes a search, and here it
    would be made at every step.
    """
    times = points[TIME]
    step = (times[-1] - times[0]) // (most - 1) + 1
    part = (times - times[0]) // step
    stays = np.append(True, part[1:] > part[:-1])
    stays[-1] = True
    kept = np.flatnonzero(stays)
    return points[:, kept], int((times[kept[1:] - 1] - times[kept[:-1]]).max())


def _members(points: _Points, labels: int) -> list[tuple[int, ...]]:
    """The members of each point, ascending."""
    at = np.arange(labels)
    bits = points[MEMBERS + at // _BITS] >> (_BITS - 1 - at % _BITS)[:, None] & 1
    members = np.nonzero(bits.T)[1].tolist()
    ends = [0, *np.cumsum(points[COUNT]).tolist()]
    return [tuple(members[start:end]) for start, end in pairwise(ends)]
