"""Single stages: the least time of every span of layers on every device, and the plan of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from solvers.chain.exact.arrays import MEMORY_LIMIT, arrays, same_spans
from solvers.chain.exact.tables import Tables
from solvers.chain.problem import Chain
from solvers.pipeline.problem import BEHIND, Pipeline
from solvers.problem import LIMIT
from solvers.schedule import Checkpoint, Item, Keep
from solvers.solution import Unsuitable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]

_POINT_BYTES = 24


class Stages:
    """Of one pipeline: what each span of layers takes as a stage, where that is within `time_cap`.

    Attributes
    ----------
    times
        Shape (P, N, L): of stage p, and the n + 1 layers from s, the least time that a backward
        takes within the budget, its recomputation with it; 2**62 where nothing fits.

    Raises
    ------
    Unsuitable
        There are too many layers for `memory_limit`, or `stop` was set.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        memory_limit: int | None,
        stop: NDArray[np.bool_],
        cap: int | None = None,
        time_cap: int = LIMIT,
    ) -> None:
        import numpy as np

        from solvers.pipeline import kernel

        limit = MEMORY_LIMIT if memory_limit is None else memory_limit
        self._pipeline, chain = pipeline, pipeline.accumulating
        self._chain = Chain((*chain.layers, BEHIND), chain.input_bytes)
        self._tables = Tables(self._chain, True, limit // 2)
        self._tables.stop = stop
        bodies = self._tables.build()
        if bodies is None:
            raise _too_many(chain, limit)
        self._bodies = bodies
        self._costs, self._ways = arrays(self._chain)
        length, stages = len(chain), pipeline.stages
        longest = length - stages + 1
        runtime = pipeline.runtime
        complete, self._table, self._pool = kernel.stage_sets(
            self._costs,
            self._ways,
            *bodies,
            same_spans(self._chain, longest),
            runtime.output_held,
            runtime.gradient_buffer_in_forward,
            max(pipeline.budgets) if cap is None else cap,
            time_cap,
            limit // 2 // _POINT_BYTES,
            stop,
        )
        if not complete:
            raise _too_many(chain, limit)
        self.forward = np.concatenate([[0], np.cumsum(self._costs[kernel.FORWARD, :-1])])
        self._fixed = np.zeros((stages, longest, length), np.int64)
        for p in range(stages):
            for n in range(longest):
                for s in range(length - n):
                    self._fixed[p, n, s] = pipeline.outside(p, s, s + n)
        self.times = kernel.least_times(
            self._table,
            self._pool,
            self._fixed,
            np.array(pipeline.in_flight),
            np.array(pipeline.budgets),
            self.forward,
        )

    def least_bytes(self) -> Ints:
        """Of each stage and span as `times` the least bytes that a plan takes, without a budget."""
        import numpy as np

        from solvers.pipeline import kernel

        in_flight = np.array(self._pipeline.in_flight)
        return kernel.least_bytes(self._table, self._pool, self._fixed, in_flight)

    def plan(self, stage: int, first: int, last: int) -> tuple[Item, ...]:
        """The plan of the least time, of a chain that has only these layers."""
        room = self._pipeline.budgets[stage] - int(self._fixed[stage, last - first, first])
        held, peak, time = self._points(first, last, rest=False)
        fits = (self._pipeline.in_flight[stage] - 1) * held + peak <= room
        at = int(fits.argmax())  # times ascend
        target = int(held[at]), int(peak[at]), int(time[at])
        return tuple(_moved(item, -first) for item in self._items(first, last, target))

    def _points(self, first: int, last: int, *, rest: bool) -> Ints:
        """H of a span, or R of it (`rest`), as rows of K, W and time."""
        from solvers.pipeline import kernel as k

        shift = 0
        if rest and self._costs[k.INPUT_SAVED, first]:
            shift, rest = int(self._costs[k.INPUT, first]), False
        start, count = self._table[2 * rest : 2 * rest + 2, last - first, first]
        points = self._pool[:, start : start + count].copy()
        points[:2] += shift
        return points

    def _items(self, s: int, t: int, target: tuple[int, int, int]) -> Iterator[Item]:
        """A plan of layers s .. t no worse than a point of H, by finding every split again."""
        rest = False
        while s <= t:
            item, s, target, rest = self._split(s, t, target, rest)
            yield item

    def _split(
        self, s: int, t: int, target: tuple[int, int, int], rest: bool
    ) -> tuple[Item, int, tuple[int, int, int], bool]:
        """The first item, the layer behind it, what is left of the target, whether of R."""
        import numpy as np

        from solvers.pipeline import kernel as k

        a, ways, runtime = self._costs, self._ways, self._pipeline.runtime
        held, peak, time = target
        x = int(a[k.OUTPUT, t])
        output, buffer = x * runtime.output_held, x * runtime.gradient_buffer_in_forward
        hold = int(a[k.INPUT, s]) if rest else 0
        for way in range(a[k.FIRST_WAY, s], a[k.LAST_WAY, s] + 1):
            saves, lets_go = bool(ways[k.HOLDS_OUTPUT, way]), rest and not ways[k.HOLDS_INPUT, way]
            apart = 0 if lets_go else hold  # held by this layer until the end
            ahead = buffer + ways[k.AHEAD, way] + a[k.FIRST_MORE, s] + hold
            behind = ways[k.BEHIND, way] + (0 if saves and s == t else output) + apart
            left = time - int(a[k.FORWARD, s] + a[k.BACKWARD, s] + ways[k.AGAIN, way])
            if max(ahead, behind) > peak:
                continue
            more = int(ways[k.SAVED, way]) + apart
            option = way - int(a[k.FIRST_WAY, s])
            item = Keep(s, self._chain.layers[s].options[option - 1].name if option else None)
            if s == t:
                own = x * (saves or runtime.output_held)
                if more + own <= held and left >= 0:
                    return item, s + 1, (0, 0, 0), False
                continue
            more += int(a[k.OUTPUT, s]) * saves
            points = self._points(s + 1, t, rest=not saves)
            good = (points[0] + more <= held) & (points[1] + more <= peak) & (points[2] <= left)
            if good.any():
                at = int(good.argmax())
                return item, s + 1, tuple(points[:, at].tolist()), not saves
        held, peak = held - hold, peak - hold
        sweep = 0
        for j in range(s, t + 1):
            before = int(a[k.OUTPUT, j - 1]) if j > s else 0
            here = int(a[k.OUTPUT, j] + a[k.DROP_TRANSIENT, j] + a[k.FIRST_MORE, j])
            sweep = max(sweep, here + before)
            if buffer + sweep > peak or not a[k.RECOMPUTABLE, j]:
                break
            left = time - int(self.forward[j + 1] - self.forward[s])
            start, count = self._bodies[0][k.H_START : k.H_COUNT + 1, s, j - s]
            bodies = self._bodies[1][:, start : start + count]
            fits = bodies[0] + output <= peak
            if not fits.any():
                continue
            within, takes = bodies[:, fits][:, -1].tolist()
            end = np.array([[output], [output], [0]])
            points = end if j == t else self._points(j + 1, t, rest=True)
            good = (points[0] <= held) & (points[1] <= peak) & (points[2] + takes <= left)
            if good.any():
                body = self._tables.items(self._bodies, s, j, within)
                at = int(good.argmax())
                return Checkpoint(s, j, body), j + 1, tuple(points[:, at].tolist()), True
        raise AssertionError(f"a point of layers {s} to {t} has no plan")


def _moved(item: Item, by: int) -> Item:
    """The same of layers that stand `by` further on."""
    if isinstance(item, Keep):
        return replace(item, layer=item.layer + by)
    body = tuple(_moved(each, by) for each in item.body)
    return Checkpoint(item.first + by, item.last + by, body)


def _too_many(chain: Chain, limit: int) -> Unsuitable:
    return Unsuitable(
        f"the sets of the stages of {len(chain):,} layers take more than the memory_limit of "
        f"{limit} bytes; give more, or make fewer and larger layers of these"
    )
