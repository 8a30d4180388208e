"""What to keep in each of many layers that follow each other, within one budget.

A layer is kept in one of several ways. Way o of layer l holds h bytes from its forward to its
backward, needs p bytes while it runs either, beside what the layers before it hold, and costs c:

    peak  max over l of  h_0 + ... + h_(l-1) + p_l
    cost  c_0 + ... + c_L

Ways may be linked: each says in which state it leaves the boundary below it and the one above it,
and neighbours must agree. All budgets are answered at once, on a grid of `unit` bytes, from the
last layer down:

    best(l, s, b) = min over ways o of l with state s below and p <= b of
                    c_o + best(l + 1, state above, b - h_o)

Sizes that are no multiples of the unit are rounded up, so that what is found holds; or down, so
that no choice within a budget costs less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from solvers.problem import LIMIT

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Way(NamedTuple):
    """A way to keep a layer.

    Attributes
    ----------
    held, peak, cost
        h, p and c as at the top of this file, integers.
    below, above
        States of the boundaries, small integers.
    """

    held: int
    peak: int
    cost: int
    below: int = 0
    above: int = 0


class Layers:
    """The least cost of each budget up to `most` bytes.

    Parameters
    ----------
    layers
        The ways of each layer, one at least. Below the first and above the last the state is 0.
    most
        Largest budget asked for.
    unit
        Bytes.
    down
        Round sizes down, for a bound; then there are no `ways`.
    """

    def __init__(
        self, layers: Sequence[Sequence[Way]], most: int, unit: int, *, down: bool = False
    ) -> None:
        import numpy as np

        self.unit, self._layers, self._down = unit, layers, down
        count = most // unit + 1
        best = {0: np.zeros(count, np.int64)}
        self._taken: list[dict[int, NDArray[np.int16]]] = []
        for ways in reversed(layers):
            best = self._add(ways, best, count)
        self._taken.reverse()
        self._best = best[0]

    def _add(
        self, ways: Sequence[Way], after: dict[int, NDArray[np.int64]], count: int
    ) -> dict[int, NDArray[np.int64]]:
        import numpy as np

        best = {way.below: np.full(count, LIMIT) for way in ways}
        taken = {} if self._down else {state: np.full(count, -1, np.int16) for state in best}
        costs = np.empty(count, np.int64)
        for index, way in enumerate(ways):
            held, peak = self._units(way.held), self._units(max(way.peak, way.held))
            if way.above not in after or peak >= count:
                continue
            now, cost = best[way.below][peak:], costs[peak:]
            np.add(after[way.above][peak - held : count - held], way.cost, out=cost)
            if taken:
                taken[way.below][peak:][cost < now] = index
            np.minimum(now, cost, out=now)
        self._taken.append(taken)
        return best

    def _units(self, size: int) -> int:
        return size // self.unit if self._down else -(-size // self.unit)

    def cost(self, budget: int) -> int | None:
        """The least cost within `budget` bytes, or a bound of it; None: there is none."""
        at = budget // self.unit
        return int(self._best[at]) if at >= 0 and self._best[at] < LIMIT else None

    def budgets(self) -> list[int]:
        """The budgets from which on the cost is less than before, ascending."""
        import numpy as np

        falls = np.flatnonzero(np.diff(self._best, prepend=LIMIT) < 0)
        return [int(at) * self.unit for at in falls]

    def ways(self, budget: int) -> list[int]:
        """Which way of each layer has the least cost within `budget` bytes."""
        at, state, found = budget // self.unit, 0, []
        for ways, taken in zip(self._layers, self._taken, strict=True):
            index = int(taken[state][at])
            found.append(index)
            at -= self._units(ways[index].held)
            state = ways[index].above
        return found
