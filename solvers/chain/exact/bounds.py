"""What the layers below a layer must hold for the time that they may lose: Lagrangian bounds.

A relaxation of plans: each layer is kept in one of its ways or lies in a checkpoint, whose body
takes the time of keeping everything and no memory. For a price p of a byte, a dynamic program over
the layers finds the least of (time lost) + p * (bytes held); over many prices that bounds the bytes
held from below for any time lost, and the time for any bytes. Three states in front of a layer:

    HELD    what it reads is held by a layer below it
    FREE    it is not
    INSIDE  a checkpoint has begun below it, and goes on
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from solvers.chain.exact.arrays import arrays
from solvers.chain.problem import Chain
from solvers.problem import LIMIT

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]

ROOMS = 128
"""Times for which `room` is tabulated, besides none."""

_PRICES, _NEAR, _ROUNDS = 48, 8, 4
_ROUNDING = 1e-9
"""More than what sums of floats lose, relative to their largest term."""


class Bounds:
    """Bounds of one chain within a number of bytes.

    Parameters
    ----------
    chain
        The problem.
    cap
        Bytes, without the chain's input.

    Attributes
    ----------
    cap
        As given.
    least_excess
        No plan within `cap` bytes takes less time than this beyond keep-all's.
    """

    def __init__(self, chain: Chain, cap: int) -> None:
        import numpy as np

        from solvers.chain.exact import kernel as k

        self._chain, self.cap = chain, cap
        self._costs, self._ways = a, ways = arrays(chain)
        self._read = a[k.INPUT].astype(float)
        self._read[0] = 0  # its user's
        self._needs = _needs(a, ways, self._read)
        sizes = a[k.OUTPUT] + ways[k.SAVED, a[k.FIRST_WAY]]
        fair = max(float(a[k.FORWARD].sum()), 1.0) / max(int(sizes.sum()), 1)
        dear = max(int(a[k.FORWARD].max()), 1) / max(int(sizes[sizes > 0].min(initial=2**62)), 1)
        prices = near = np.geomspace(fair / 1e3, max(fair, dear) * 2, _PRICES)
        for _ in range(_ROUNDS):  # the bound is concave in the price: the best is beside the best
            self._price(near)
            best = int(self._excesses().max(axis=0).argmax())
            least, most = near[max(best - 1, 0)], near[min(best + 1, len(near) - 1)]
            near = np.geomspace(least, most, _NEAR)
            prices = np.union1d(prices, near)
        self._price(prices)
        self.least_excess = max(int(np.ceil(self._excesses().max())), 0)

    def _price(self, prices: Floats) -> None:
        """Find, of each layer and price, the least time and priced bytes below it."""
        import numpy as np

        from solvers.chain.exact import kernel as k

        a, ways = self._costs, self._ways
        length = a.shape[1]
        held, free, inside = np.full((3, length + 1, len(prices)), np.inf)
        held[0] = 0
        for i in range(length):
            begin = np.minimum(held[i], free[i] + prices * self._read[i])
            either = np.minimum(held[i], free[i])
            for way in range(a[k.FIRST_WAY, i], a[k.LAST_WAY, i] + 1):
                cost = begin if ways[k.HOLDS_INPUT, way] else either
                cost = cost + ways[k.AGAIN, way] + prices * ways[k.SAVED, way]
                if ways[k.HOLDS_OUTPUT, way]:
                    np.minimum(held[i + 1], cost + prices * a[k.OUTPUT, i], out=held[i + 1])
                else:
                    np.minimum(free[i + 1], cost, out=free[i + 1])
            if a[k.RECOMPUTABLE, i]:
                begin = np.minimum(begin, inside[i])
                inside[i + 1] = begin + a[k.FORWARD, i]
                np.minimum(free[i + 1], begin + a[k.ENDING, i], out=free[i + 1])
        self._prices, self._below = prices, (held[:-1], free[:-1], inside[:-1])

    def _spans(self) -> tuple[Floats, ...]:
        """The same for spans from each layer, by the kernel's kinds of rooms."""
        import numpy as np

        held, free, inside = self._below
        read = self._prices * self._read[:, None]
        own = np.minimum(held, free + read)
        rest = np.minimum(held, free)
        return own, rest, np.minimum(own, inside + read), np.minimum(rest, inside)

    def _excesses(self) -> Floats:
        """Of each layer and price a bound of the time lost, from what that layer needs."""
        import numpy as np

        held, free, inside = self._below
        apart = np.minimum(free, inside)
        apart[-1] = free[-1]  # it is in no checkpoint
        needs_held, needs_free = (self._prices * needs[:, None] for needs in self._needs)
        found: Floats = np.minimum(held + needs_held, apart + needs_free)
        return found - self._prices * self.cap - self._margin()

    def _margin(self) -> Floats:
        """More than rounding hides, in time, for each price."""
        margin: Floats = 1 + _ROUNDING * self._prices * (abs(self.cap) + int(self._needs[1].max()))
        return margin

    def rooms(self, excess: int) -> NDArray[np.int64]:
        """How high the peak of a span may be where layers below it may lose so much time.

        Returns
        -------
        NDArray
            Shape (4, L, ROOMS + 1): [kind, s, q] in bytes without the chain's input, where they
            lose at most q times ``excess // ROOMS + 1``. Of equal spans the first one's room is
            the largest.
        """
        import numpy as np

        from solvers.chain.exact import kernel

        step = excess // ROOMS + 1
        rooms = [
            kernel.room(lost, self._prices, step, ROOMS, self.cap, _ROUNDING)
            for lost in self._spans()
        ]
        return np.stack(rooms)

    def slack(self, excess: int, width: int) -> tuple[NDArray[np.int64], bool]:
        """Time left for the bodies of checkpoints, beyond keeping everything there.

        Returns
        -------
        slack
            Shape (W, L), W at most `width`: [n - 1, s] of a plan that loses at most `excess`, and
            has the n layers from s in one checkpoint; negative where there is none.
        whole
            Of longer spans than W there is none.
        """
        import numpy as np

        before, behind = self._one_checkpoint
        length = len(self._chain)

        def left(n: int) -> Floats:
            found: Floats = excess - (before[: length - n] + behind[n - 1 : -1]).max(axis=1)
            return found

        # Where n layers may be in one checkpoint, fewer may be.
        low, high = 1, min(width, length - 1)
        whole = high >= length - 1 or not (left(high + 1) >= 0).any()
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if (left(middle) >= 0).any() else (low, middle - 1)
        slack = np.full((low, length), -1, np.int64)
        for n in range(1, low + 1):
            slack[n - 1, : length - n] = np.floor(np.clip(left(n), -1, LIMIT // 4))
        return slack, whole

    @cached_property
    def _one_checkpoint(self) -> tuple[Floats, Floats]:
        """Time lost where layers s .. t are in one checkpoint: a part of s, and one of t."""
        import numpy as np

        from solvers.chain.exact import kernel as k

        a, ways, prices = self._costs, self._ways, self._prices
        length = a.shape[1]
        # Of the layers from i on, as in `_price`, but read from the end; the last layer is kept.
        held, free, inside = np.full((3, length, len(prices)), np.inf)
        held[-1], free[-1] = (prices * needs[-1] for needs in self._needs)
        for i in reversed(range(length - 1)):
            if a[k.RECOMPUTABLE, i]:
                inside[i] = np.minimum(
                    a[k.FORWARD, i] + inside[i + 1], a[k.ENDING, i] + free[i + 1]
                )
            held[i], free[i] = inside[i], inside[i] + prices * self._read[i]
            for way in range(a[k.FIRST_WAY, i], a[k.LAST_WAY, i] + 1):
                after = free[i + 1]
                if ways[k.HOLDS_OUTPUT, way]:
                    after = held[i + 1] + prices * a[k.OUTPUT, i]
                cost = after + ways[k.AGAIN, way] + prices * ways[k.SAVED, way]
                np.minimum(held[i], cost, out=held[i])
                if ways[k.HOLDS_INPUT, way]:
                    cost = cost + prices * self._read[i]
                np.minimum(free[i], cost, out=free[i])
        forward = np.concatenate([[0], np.cumsum(a[k.FORWARD])])[:-1, None]
        begun, going = self._spans()[0], self._below[2]
        before = np.minimum(begun, going) - forward - prices * self.cap - self._margin()
        return before, inside + forward


def _needs(
    a: NDArray[np.int64], ways: NDArray[np.int64], read: Floats
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Bytes that each layer needs where it runs, kept in the way that needs least.

    Beside what is held below it, its input with that; or the same where nobody holds its input.
    """
    import numpy as np

    from solvers.chain.exact import kernel as k

    counts = a[k.LAST_WAY] - a[k.FIRST_WAY] + 1
    behind = ways[k.BEHIND] + np.repeat(a[k.GRADIENT], counts)
    ahead, last = np.minimum(ways[k.AHEAD], ways[k.ENDS]), a[k.FIRST_WAY, -1]
    # It ends no body, and the gradient of the last output is there.
    ahead[last:] = ways[k.AHEAD, last:] + a[k.OUTPUT, -1]
    own = np.repeat(read.astype(np.int64), counts)  # its input, for the forward or until it is over
    apart = np.maximum(ahead + own, behind + own * ways[k.HOLDS_INPUT])
    return (
        np.minimum.reduceat(np.maximum(ahead, behind), a[k.FIRST_WAY]),
        np.minimum.reduceat(apart, a[k.FIRST_WAY]),
    )
