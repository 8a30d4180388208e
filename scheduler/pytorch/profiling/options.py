"""Cheaper ways to keep a block: each is run as it will be run, and what it holds is read off.

They are chosen among the operations inside it, which are written down, forward and backward, as
they run in torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
import torch.utils.checkpoint as of_torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.weak import WeakIdKeyDictionary

from scheduler.common.errors import UnsupportedModel
from scheduler.costs.keeps import Keeps
from scheduler.costs.options.both import wanted_around
from scheduler.costs.options.inside import Inside, Operation
from scheduler.costs.options.pareto import SeenOption, Wanted, wanted
from scheduler.costs.peaks import Peaks
from scheduler.export.standalone.state import Snapshot
from scheduler.pytorch.checkpointing.selective import HandedBack, Selection, Together, check_torch
from scheduler.pytorch.observe.autograd import Sink, gate
from scheduler.pytorch.observe.clock import Clock
from scheduler.pytorch.observe.dispatch import OperationMode, is_random, tensors_of, written
from scheduler.pytorch.observe.layer import IsolatedLayer, keeps_output, see_bytes
from scheduler.pytorch.observe.tracker import storage_bytes
from scheduler.pytorch.tiles.modules import in_tiles

_LIFT = torch.ops.aten.lift_fresh.default


@dataclass(frozen=True)
class SeenOptions:
    """All options of a block, and the operations that they choose among.

    `gap`: at any budget of bytes, the best of the Pareto set that is left takes at most this much
    longer, in ms, than the best of all of it.
    """

    inside: Inside
    ways: tuple[SeenOption, ...]
    gap: float


def see_options(name: str, layer: IsolatedLayer, peaks: Peaks, clock: Clock) -> SeenOptions:
    """Find the options of the block `name`, which costs `peaks` when it is kept whole.

    Raises `UnsupportedModel` where its operations are not the same each time that it runs, or torch
    cannot keep their results.
    """
    check_torch()
    inside = _look_inside(layer, clock)
    if not peaks.repeatable:
        return SeenOptions(inside, (), 0.0)
    found, gap = wanted(inside, peaks.recompute_time, peaks.saved_bytes)
    return SeenOptions(inside, tuple(_ways(name, layer, peaks, found)), gap)


def see_tiled_options(
    name: str, layer: IsolatedLayer, tiled: Peaks, clock: Clock
) -> tuple[SeenOption, ...]:
    """Options of the block with a module in tiles, as it was seen to be `tiled`."""
    inside = _look_inside(layer, clock)
    return tuple(_ways(name, layer, tiled, wanted_around(inside, tiled)))


def _ways(
    name: str, layer: IsolatedLayer, peaks: Peaks, found: Iterable[Wanted]
) -> Iterator[SeenOption]:
    """The block run with each of the sets kept."""
    # While it runs again it holds what it has changed on its module, to put that back: an output
    # left there, too.
    more = peaks.state_bytes + (peaks.output_bytes if keeps_output(layer) else 0)
    for want in found:
        seen, _ = see_bytes(replace(layer, run=_selective(name, layer, want.keeps)), plain=False)
        if seen.saved_bytes <= peaks.saved_bytes:
            seen = replace(seen, backward_peak=seen.backward_peak + more)
            # Before it runs there are copies of all that it may change.
            yield SeenOption(want, seen.with_more_in_forward(layer.state.copied_bytes))


class _From(AbstractContextManager[None]):
    """A context for a run that begins with a state."""

    def __init__(self, state: Snapshot) -> None:
        self._state = state

    def __enter__(self) -> None:
        self._state.put()

    def __exit__(self, *error: object) -> None:
        pass


def _selective(name: str, layer: IsolatedLayer, keeps: Keeps) -> Any:
    def contexts() -> tuple[Any, Any]:
        selections = {0: Selection(name, keeps)}
        return selections[0].forward, Together(_From(layer.state), HandedBack(selections, 0))

    def run(activation: torch.Tensor, sides: list[torch.Tensor]) -> Any:
        return of_torch.checkpoint(
            lambda given: layer.run(given, sides),
            activation,
            use_reentrant=False,
            context_fn=contexts,
        )

    return run


def _look_inside(layer: IsolatedLayer, clock: Clock) -> Inside:
    """Run a layer by itself, forward and backward, and write its operations down.

    Raises `UnsupportedModel` where they are not the same each time: none can be told from another.
    """
    attempts = clock.repeated(lambda: _look(layer, clock))
    first = attempts[0]
    for other in attempts[1:]:
        if [o.name for o in other.forward] != [o.name for o in first.forward]:
            raise UnsupportedModel(
                "its operations change from run to run, so that none can be chosen to be kept"
            )
    return replace(
        first,
        tiled_time=median(a.tiled_time for a in attempts),
        forward=_timed([a.forward for a in attempts]),
        backward=_timed([a.backward for a in attempts]),
    )


def _timed(attempts: Sequence[Sequence[Operation]]) -> tuple[Operation, ...]:
    """The operations of the first attempt, with the medians of all times."""
    return tuple(
        replace(same[0], time=median(o.time for o in same)) for same in zip(*attempts, strict=False)
    )


def _look(layer: IsolatedLayer, clock: Clock) -> Inside:
    layer.clear()
    door = gate(layer.template.device)  # anew, or adding to its gradient would be written down
    state = {id(tensor.untyped_storage()) for tensor, _, _ in layer.state.tensors}
    recorder = _OperationLog(clock, state)
    saved: set[int] = set()
    stop = 0

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal stop
        saved.add(recorder.storage(tensor))
        stop, recorder.tiled_before = len(recorder.operations), recorder.tiled_time
        # As it is, an output that is saved would hold its own graph, which holds it: a cycle.
        return tensor.detach()

    box: list[Any] = []
    with recorder, saved_tensors_hooks(pack, lambda tensor: tensor):
        out = layer.forward(door, [layer.template])
    output = recorder.storage(out)
    forward = recorder.finish()
    if out.requires_grad:
        box.append(layer.gradient(out))
    scalar = Sink.apply(out, box)
    del out
    if scalar.requires_grad:
        with recorder:
            scalar.backward()
    backward = recorder.finish()
    layer.clear()
    return Inside(
        tuple(forward),
        tuple(backward),
        tuple(recorder.sizes),
        frozenset(recorder.given),
        output,
        frozenset(saved),
        stop,
        recorder.tiled_before,
    )


class _OperationLog(OperationMode):
    """Writes down operations; storages get an index when they are first seen."""

    def __init__(self, clock: Clock, state: set[int]) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.sizes: list[int] = []
        self.given: set[int] = set()
        # Of what ran in tiles so far, and of that what ran before autograd saved something.
        self.tiled_time = self.tiled_before = 0.0
        self._clock = clock
        self._marks: list[tuple[Any, Any]] = []
        # What the block changes on its module: a recomputation starts from it as it was.
        self._state = state
        self._calls: Counter[str] = Counter()
        # Held weakly, so that memory is freed as it is without a recorder.
        self._known: Any = WeakIdKeyDictionary()

    def _operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in of_torch.SAC_IGNORED_OPS:
            return func(*args, **kwargs)
        if in_tiles():
            start = self._clock.mark()
            result = func(*args, **kwargs)
            self.tiled_time += self._clock.between(start, self._clock.mark())
            return result
        # What Python makes a tensor of is seen here first, and made anew in each run.
        reads = () if func is _LIFT else self._seen((args, kwargs))
        changed = tensors_of(written(func, args, kwargs))
        changes = self._seen([t for t in changed if id(t.untyped_storage()) not in self._state])
        before = len(self.sizes)
        start = self._clock.mark()
        result = func(*args, **kwargs)
        end = self._clock.mark()
        results = self._seen(result, made=True)
        name = str(func)
        makes = tuple(i for i in results if i >= before)
        views = tuple(i for i in results if i < before)
        call = self._calls[name]
        self.operations.append(
            Operation(name, call, reads, makes, changes, views, 0.0, is_random(func))
        )
        self._marks.append((start, end))
        self._calls[name] += 1
        return result

    def finish(self) -> list[Operation]:
        """The operations so far; what comes after them is counted anew."""
        operations = [
            replace(operation, time=self._clock.between(*marks))
            for operation, marks in zip(self.operations, self._marks, strict=True)
        ]
        self.operations.clear()
        self._marks.clear()
        self._calls.clear()
        return operations

    def storage(self, tensor: torch.Tensor, *, made: bool = False) -> int:
        """Index of a tensor's storage."""
        storage = tensor.untyped_storage()
        if (known := self._known.get(storage)) is not None:
            return int(known)
        index = len(self.sizes)
        self.sizes.append(storage_bytes(tensor))
        if not made:
            self.given.add(index)
        self._known[storage] = index
        return index

    def _seen(self, values: Any, *, made: bool = False) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.storage(t, made=made) for t in tensors_of(values)))
