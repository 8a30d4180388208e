"""Every choice of a small step at once: what each holds, peaks at, and runs again.

`scheduler.pytorch.compile.choice.play` for all sets of kept operations, as arrays: index `n` of
each is the choice that keeps the free operations whose bits are set in `n`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from scheduler.pytorch.compile.choice import JointOperation, StepGraph

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bits: TypeAlias = NDArray[np.bool_]
    Bytes: TypeAlias = NDArray[np.int64]

MOST_FREE = 17
"""Free operations of a step whose choices are all tried."""


class Every(NamedTuple):
    """Costs of all choices.

    Attributes
    ----------
    held_bytes
        Kept in the forward and read in the backward, without outputs that the caller holds.
    forward_bytes, backward_bytes
        Peaks.
    again_time
        As in `StepChoice`.
    """

    held_bytes: Bytes
    forward_bytes: Bytes
    backward_bytes: Bytes
    again_time: Bytes


def every(graph: StepGraph, unseen: int = 0) -> Every:
    """All choices of `graph`; the first `unseen` late operations do not count for the peak."""
    return _Every(graph).costs(unseen)


class _Every:
    def __init__(self, graph: StepGraph) -> None:
        import numpy as np

        self.graph = graph
        index = np.arange(1 << len(graph.free))
        self.nothing = np.zeros(len(index), np.bool_)
        bit = {i: index >> k & 1 == 1 for k, i in enumerate(graph.free)}
        self.kept = [
            bit[i] if i in bit else self.nothing | (op.fixed != "again")
            for i, op in enumerate(graph.early)
        ]
        self.free = graph.outputs if graph.outputs_held else frozenset()  # of charge, where kept
        self.late = {b for op in graph.late for b in op.makes}

    def costs(self, unseen: int) -> Every:
        import numpy as np

        time = np.zeros(len(self.nothing), np.int64)
        ran = self._run()
        for op, i, _, runs in ran:
            if i >= 0 and op.forward:
                time += op.time * runs
        backward, alive = self._backward(ran, unseen)
        held = {
            b: alive[b] & self.kept[i]
            for b, i in self.graph.maker.items()
            if b in alive and b not in self.free
        }
        total = sum((self.graph.sizes[b] * where for b, where in held.items()), time * 0)
        return Every(total, self._forward(held), backward, time)

    def _run(self) -> list[tuple[JointOperation, int, int, Bits]]:
        """The backward: operations, index of an early one or -1, for which late one, and where."""
        graph = self.graph
        ran: list[tuple[JointOperation, int, int, Bits]] = []
        done = [kept.copy() for kept in self.kept]
        for t, late in enumerate(graph.late):
            needed: dict[int, Bits] = {}
            wanted = {graph.maker[b]: ~self.nothing for b in late.reads if b in graph.maker}
            while wanted:
                i = max(wanted)
                runs = wanted.pop(i) & ~done[i]
                if not runs.any():
                    continue
                needed[i] = runs
                done[i] |= runs
                for b in graph.early[i].reads:
                    if b in graph.maker:
                        j = graph.maker[b]
                        wanted[j] = wanted.get(j, self.nothing) | runs
            ran += [(graph.early[i], i, t, needed[i]) for i in sorted(needed)]
            ran.append((late, -1, t, ~self.nothing))
        return ran

    def _backward(
        self, ran: list[tuple[JointOperation, int, int, Bits]], unseen: int
    ) -> tuple[Bytes, dict[int, Bits]]:
        """The peak, and which buffers live when the backward begins."""
        import numpy as np

        graph, sizes = self.graph, self.graph.sizes
        alive = dict.fromkeys(graph.gradients, ~self.nothing)
        outputs = sum(sizes[b] for b in self.free)
        live = np.full(len(self.nothing), graph.held + graph.held_backward + outputs, np.int64)
        for b in graph.gradients:
            live += sizes[b] * ~self._of_charge(b)
        peak = live * 0
        for op, _, t, runs in reversed(ran):
            for b in op.reads:
                if sizes[b] and (b in graph.maker or b in self.late):
                    new = runs & ~alive.get(b, self.nothing)
                    live += sizes[b] * (new & ~self._of_charge(b))
                    alive[b] = alive.get(b, self.nothing) | new
            more = sum(sizes[b] * ~alive.get(b, self.nothing) for b in op.makes)
            if t >= unseen:
                peak = np.maximum(peak, np.where(runs, live + more, 0))
            for b in op.makes:
                gone = runs & alive.get(b, self.nothing)
                live -= sizes[b] * (gone & ~self._of_charge(b))
                alive[b] = alive.get(b, self.nothing) & ~gone
        return peak, alive

    def _of_charge(self, buffer: int) -> Bits:
        return self.kept[self.graph.maker[buffer]] if buffer in self.free else self.nothing

    def _forward(self, held: dict[int, Bits]) -> Bytes:
        import numpy as np

        graph, sizes = self.graph, self.graph.sizes
        order = [op for op in graph.early if op.forward]
        last = {b: at for at, op in enumerate(order) for b in (*op.reads, *op.makes)}
        last |= dict.fromkeys(graph.outputs, len(order))
        peak = live = np.full(len(self.nothing), graph.held, np.int64)
        for at, op in enumerate(order):
            live = live + sum(sizes[b] for b in op.makes)
            peak = np.maximum(peak, live)
            for b in {b for b in (*op.reads, *op.makes) if last[b] == at}:
                if b in graph.maker:
                    live = live - sizes[b] * ~held.get(b, self.nothing)
        return peak
