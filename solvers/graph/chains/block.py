"""One block of a layer graph: what it costs as a layer of a chain, and its options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from solvers.graph.problem import Edges, LayerGraph
from solvers.graph.schedule import Actions, LayerAction
from solvers.problem import Layer, Option
from solvers.schedule import Backward, Forward

MOST_CHOICES = 10
"""Options of a block of so many recomputable layers are a full enumeration. In larger blocks
neighbours run again together: as many runs of layers, of equal length but for one."""

MOST_OPTIONS = 16
"""Of more options, those that are the fastest within each of as many equal steps of bytes stay."""


class Block:
    """One block, its layers numbered from 0; sets of layers are bit masks.

    Parameters
    ----------
    layers, edges
        What it is made of; layer -1 is the cut before it.
    input_bytes
        Of that cut, or of the graph's input.
    first, last
        Is it the first, the last of the graph? The input of the first costs nothing to hold; the
        backward of the last comes right after its forward, so it needs no options.
    """

    def __init__(
        self, layers: tuple[Layer, ...], edges: Edges, input_bytes: int, first: bool, last: bool
    ) -> None:
        self.layers, self.input_bytes, self.first, self.last = layers, input_bytes, first, last
        # The block alone. What it reads is the output of a layer of its own, live to the end.
        free = [replace(layer, recomputable=True) for layer in layers]
        if first:
            self.shift, self.alone = 0, LayerGraph(tuple(free), edges, input_bytes)
        else:
            shifted = tuple((u + 1, v + 1) for u, v in edges)
            self.shift, self.alone = 1, LayerGraph((_source(input_bytes), *free), shifted)
        count, consumers = len(layers), self.alone.consumers[self.shift :]
        self.consumers = [sum(1 << (v - self.shift) for v in row) for row in consumers]
        self.inputs = [[u - self.shift for u in row] for row in self.alone.inputs[self.shift :]]
        self.readers = sum(1 << i for i, row in enumerate(self.inputs) if not row or -1 in row)
        self.saving = sum(1 << i for i in range(count) if layers[i].input_saved)
        self.sinks = [i for i in range(count) if not self.consumers[i]]
        self.output_bytes = sum(layers[i].output_bytes for i in self.sinks)
        self.input_saved = bool(self.readers & self.saving)
        # Of several last outputs none is handed on: a saved one is held as if inside the block.
        self.output_saved = len(self.sinks) == 1 and layers[-1].output_saved
        self.backwards: dict[int, tuple[LayerAction, ...]] = {}

    def kept(self, again: int) -> tuple[LayerAction, ...]:
        """The forward that leaves the layers of `again` to be run once more."""
        return tuple(Forward(i, not again >> i & 1) for i in range(len(self.layers)))

    def dropped(self) -> tuple[LayerAction, ...]:
        """The forward that keeps nothing."""
        return tuple(Forward(i, False) for i in range(len(self.layers)))

    def layer(self, with_options: bool) -> Layer:
        """The block as a layer of a chain; the names of its options are sets as numbers."""
        if len(self.layers) == 1:
            return replace(self.layers[0], recompute_time=self.layers[0].forward_time)
        x, w = self.output_bytes, self.held(0)
        options = self._options() if with_options and not self.last else []
        forward, backward = self._measure(0)
        level = backward
        if options:
            # A kept forward right before its own backward is made whole, and may be: see
            # `BlockChain.actions`. This keeps what the chain counts there above what it takes.
            level = max(level, forward + x + self._uncounted(self.readers))
        excess = forward - x - w
        for held, _, again in options:
            forward, backward = self._measure(again)
            excess = max(excess, forward - x - held)
            level = max(level, backward + self._uncounted(again))
        gradient = sum(layer.gradient_bytes for layer in self.layers)
        before = w + x * (2 if self.output_saved else 1)
        after = self.input_bytes + gradient
        time = sum(layer.forward_time for layer in self.layers)
        return Layer(
            name="",
            forward_time=time,
            backward_time=sum(layer.backward_time for layer in self.layers),
            output_bytes=x,
            saved_bytes=w,
            recompute_time=time,
            forward_transient_bytes=max(0, excess),
            drop_transient_bytes=max(0, self._drop_peak() - x),
            backward_transient_bytes=max(0, level - before - after),
            backward_overlap_bytes=max(0, min(before + after - level, before, after)),
            gradient_bytes=gradient,
            input_saved=self.input_saved,
            output_saved=self.output_saved,
            recomputable=all(layer.recomputable for layer in self.layers),
            options=tuple(Option(str(again), held, spent) for held, spent, again in options),
        )

    def held(self, again: int) -> int:
        """Bytes held from the block's forward to its backward, without what the chain counts.

        That is the input, if keeping everything holds it too, and the output.
        """
        total = self._uncounted(again)
        for i, layer in enumerate(self.layers):
            if again >> i & 1:
                continue
            total += layer.saved_bytes
            mine = layer.output_saved and not (self.output_saved and i == len(self.layers) - 1)
            if mine or self.consumers[i] & (self.saving | again):
                total += layer.output_bytes
        return total

    def _uncounted(self, again: int) -> int:
        """Bytes of input that `again` reads and that the chain does not know to be held."""
        known = self.first or self.input_saved
        return self.input_bytes if self.readers & again and not known else 0

    def backward(self, again: int) -> tuple[LayerAction, ...]:
        """The block's backward, in which the layers of `again` run once more.

        Each right before a backward needs it, or all of them at the beginning: what peaks lower.
        """
        if again not in self.backwards:
            late = self._late(again)
            early = [step for step in late if isinstance(step, Forward)]
            early.sort(key=lambda step: step.layer)
            rest = [step for step in late if isinstance(step, Backward)]
            ways: list[tuple[LayerAction, ...]] = [late, (*early, *rest)]
            self.backwards[again] = min(ways, key=lambda way: self._replay(again, way)[1])
        return self.backwards[again]

    def _late(self, again: int) -> tuple[LayerAction, ...]:
        steps: list[LayerAction] = []
        for i in reversed(range(len(self.layers))):
            layer = self.layers[i]
            wanted = [i, *(self.inputs[i] if layer.input_saved else ())]
            needed = 0
            while wanted:
                j = wanted.pop()
                if j >= 0 and again >> j & 1:
                    again ^= 1 << j
                    needed |= 1 << j
                    wanted += self.inputs[j]
            steps += [Forward(j, True) for j in _members(needed)]
            steps.append(Backward(i))
        return tuple(steps)

    def _options(self) -> list[tuple[int, int, int]]:
        """The Pareto set of bytes held and time to make the rest again, with the layers it takes.

        Without all layers, for that is a checkpoint, and without none, which keeps everything.
        """
        movable = [i for i, layer in enumerate(self.layers) if layer.recomputable]
        parts = min(len(movable), MOST_CHOICES)
        bounds = [len(movable) * k // parts for k in range(parts + 1)] if parts else [0]
        runs = [sum(1 << i for i in movable[a:b]) for a, b in pairwise(bounds)]
        sets = [0]
        for run in runs:
            sets += [again | run for again in sets]
        everything = (1 << len(self.layers)) - 1
        times = [layer.forward_time for layer in self.layers]
        points = sorted(
            (self.held(again), sum(times[i] for i in _members(again)), again)
            for again in sets
            if again != everything
        )
        best: list[tuple[int, int, int]] = []
        for point in points:
            if not best or point[1] < best[-1][1]:
                best.append(point)
        return _thinned([point for point in best if point[2]])

    def _drop_peak(self) -> int:
        """The most that a forward that keeps nothing needs, on top of the block's input."""
        return self._replay(0, self.backward(0), self.dropped())[0]

    def _measure(self, again: int) -> tuple[int, int]:
        return self._replay(again, self.backward(again))

    def _replay(
        self,
        again: int,
        backward: Sequence[LayerAction],
        before: Sequence[LayerAction] = (),
    ) -> tuple[int, int]:
        """Peaks of the block alone, on top of its input: of the first forward, of the backward.

        In the forward without the gradient of the output, which is not there yet.
        """
        inner = [*before, *self.kept(again), *backward]
        steps = [replace(step, layer=step.layer + self.shift) for step in inner]
        if self.shift:
            steps = [Forward(0, True), *steps, Backward(0)]
        moments = self.alone.replay(Actions(tuple(steps))).moments
        peaks = [moment.during_bytes - self.input_bytes for moment in moments]
        first = self.shift + len(self.layers)
        return max(peaks[self.shift : first]) - self.output_bytes, max(peaks[first:])


def _source(output_bytes: int) -> Layer:
    return Layer("", 0, 0, output_bytes, 0, 0, input_saved=False, output_saved=True)


def _members(layers: int) -> Iterator[int]:
    while layers:
        lowest = layers & -layers
        yield lowest.bit_length() - 1
        layers ^= lowest


def _thinned(points: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """See `MOST_OPTIONS`; bytes ascend, times descend."""
    if len(points) <= MOST_OPTIONS:
        return points
    least, most = points[0][0], points[-1][0]
    result = [points[0]]
    for k in range(1, MOST_OPTIONS):
        limit = least + (most - least) * k // (MOST_OPTIONS - 1)
        fastest = max(point for point in points if point[0] <= limit)
        if fastest != result[-1]:
            result.append(fastest)
    return result
