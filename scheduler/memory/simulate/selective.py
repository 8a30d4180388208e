"""A forward on paper under a selective checkpoint, as torch runs one.

The first forward saves nothing for the backward but the results of chosen operations. When the
backward asks for the first tensor that should have been saved, the forward runs again from its
input: chosen operations hand back what they made, without time, and all others run, up to the last
tensor to be saved. From there the backward goes on with what is there now.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from enum import Enum, auto

from scheduler.memory.gpus import Gpu
from scheduler.memory.simulate.tensors import Paper, Saved, Value


class _Stage(Enum):
    FIRST = auto()
    BACKWARD = auto()
    AGAIN = auto()


class _Stop(Exception):  # no error: the last tensor to be saved is there
    """Ends the second run."""


class _Later(Saved):
    """Tensors that will be saved when the forward runs again."""

    __slots__ = ("_paper", "_place")

    def __init__(self, paper: Selective, place: int) -> None:
        super().__init__(())
        self._paper, self._place = paper, place

    def take(self) -> tuple[Value, ...]:
        """Give the tensors, made again if they are not yet."""
        return self._paper.found(self._place)


class Selective(Paper):
    """Runs one forward, and its backward, as a checkpoint that keeps some of its results.

    `kept` are the operations whose results are kept, as positions in the forward from 0;
    `again_peak` is the most bytes that were live while the forward ran again, `early_bytes` those
    that were when it began.
    """

    def __init__(self, gpu: Gpu, kept: Collection[int], *, flops_share: float = 1.0) -> None:
        super().__init__(gpu, flops_share=flops_share)
        self._kept = frozenset(kept)
        self._stage = _Stage.BACKWARD
        self._rerun: Callable[[], object] = lambda: None
        self._position = self._saves = self.again_peak = self.early_bytes = 0
        self._results: dict[int, list[Value]] = {}
        # Weakly, as torch does: what a node saved that is gone is not made again for it.
        self._places: list[weakref.ref[_Later]] = []
        self._found: dict[int, Saved] = {}

    def checkpoint(self, forward: Callable[[Paper, Value], Value], x: Value) -> Value:
        """Run the forward for the first time."""
        self._rerun = lambda: forward(self, x)
        self._position, self._stage = 0, _Stage.FIRST
        made = forward(self, x)
        self._stage = _Stage.BACKWARD
        return made

    def found(self, place: int) -> tuple[Value, ...]:
        """What was to be saved in this place; let go of here."""
        if place not in self._found:
            self._position, self._stage = 0, _Stage.AGAIN
            before = self.ledger.peak
            self.early_bytes = self.ledger.live
            self.ledger.reset_peak()
            try:
                self._rerun()
            except _Stop:
                self._stage = _Stage.BACKWARD
            self.again_peak = self.ledger.peak
            self.ledger.peak = max(before, self.again_peak)
        return self._found.pop(place).take()

    def run(
        self, op: str, reads: Sequence[Value], makes: Sequence[tuple[int, int]], flops: float = 0
    ) -> list[Value]:
        """Run a kernel, or hand back what it made."""
        if not self._is_kept():
            return super().run(op, reads, makes, flops)
        if self._stage is _Stage.AGAIN:
            return self._results.pop(self._position - 1)
        made = super().run(op, reads, makes, flops)
        self._results[self._position - 1] = [value.view() for value in made]
        return made

    def change(self, op: str, value: Value, *reads: Value) -> None:
        """Run a kernel in place, unless what it changed is handed back."""
        if not self._is_kept():
            super().change(op, value, *reads)
        elif self._stage is _Stage.AGAIN:
            del self._results[self._position - 1]
        else:
            super().change(op, value, *reads)
            self._results[self._position - 1] = [value.view()]

    def save(self, *values: Value) -> Saved:
        """Save for the backward: in the second run."""
        if self._stage is _Stage.BACKWARD or self._noted is not None:
            return super().save(*values)
        if self._stage is _Stage.FIRST:
            later = _Later(self, len(self._places))
            self._places.append(weakref.ref(later))
            return later
        saved = super().save(*values)
        if self._places[self._saves]() is not None:
            self._found[self._saves] = saved
        self._saves += 1
        if self._saves == len(self._places):
            raise _Stop
        return saved

    def _is_kept(self) -> bool:
        """Whether the next operation of the forward is kept; goes on to the one after."""
        if self._stage is _Stage.BACKWARD or self._noted is not None:  # or in tiles
            return False
        self._position += 1
        return self._position - 1 in self._kept
