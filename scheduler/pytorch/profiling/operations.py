"""Write down the operations inside a block, forward and backward, as they run in torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch
import torch.utils.checkpoint as of_torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.weak import WeakIdKeyDictionary

from scheduler.common.errors import UnsupportedModel
from scheduler.costs.options.inside import Inside, Operation
from scheduler.pytorch.observe.autograd import Sink, gate
from scheduler.pytorch.observe.buffers import norms_of
from scheduler.pytorch.observe.clock import Clock
from scheduler.pytorch.observe.dispatch import OperationMode, is_random, tensors_of, written
from scheduler.pytorch.observe.layer import IsolatedLayer
from scheduler.pytorch.observe.tracker import storage_bytes

__all__ = ["Inside", "Operation", "look_inside"]

_LIFT = torch.ops.aten.lift_fresh.default


def look_inside(layer: IsolatedLayer, clock: Clock) -> Inside:
    """Run a layer by itself, forward and backward, and write its operations down.

    Raises
    ------
    UnsupportedModel
        Its operations are not the same each time that it runs: none can be told from another.
    """
    door = gate(layer.template.device)
    attempts = [_look(layer, door, clock) for _ in range(1 + clock.repeats)][-clock.repeats :]
    first = attempts[0]
    for other in attempts[1:]:
        if [o.name for o in other.forward] != [o.name for o in first.forward]:
            raise UnsupportedModel(
                "its operations change from run to run, so that none can be chosen to be kept"
            )
    return replace(
        first,
        forward=_timed([a.forward for a in attempts]),
        backward=_timed([a.backward for a in attempts]),
    )


def _timed(attempts: Sequence[Sequence[Operation]]) -> tuple[Operation, ...]:
    """The operations of the first attempt, with the medians of all times."""
    return tuple(
        replace(same[0], time=median(o.time for o in same)) for same in zip(*attempts, strict=False)
    )


def _look(layer: IsolatedLayer, door: torch.Tensor, clock: Clock) -> Inside:
    layer.clear()
    counted = {
        id(norm.num_batches_tracked.untyped_storage())
        for norm in norms_of([layer.module])
        if norm.num_batches_tracked is not None
    }
    recorder = _OperationLog(clock, counted)
    saved: set[int] = set()
    stop = 0

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal stop
        saved.add(recorder.storage(tensor))
        stop = len(recorder.operations)
        # As it is, an output that is saved would hold its own graph, which holds it: a cycle.
        return tensor.detach()

    box: list[Any] = []
    with clock.running():
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
    )


class _OperationLog(OperationMode):
    """Writes down operations; storages get an index when they are first seen."""

    def __init__(self, clock: Clock, counted: set[int]) -> None:
        super().__init__()
        self.operations: list[Any] = []
        self.sizes: list[int] = []
        self.given: set[int] = set()
        self._clock = clock
        # Counters of batches: a recomputation leaves them alone.
        self._counted = counted
        self._calls: Counter[str] = Counter()
        # Held weakly, so that memory is freed as it is without a recorder.
        self._known: Any = WeakIdKeyDictionary()

    def _operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in of_torch.SAC_IGNORED_OPS:
            return func(*args, **kwargs)
        # What Python makes a tensor of is seen here first, and made anew in each run.
        reads = () if func is _LIFT else self._seen((args, kwargs))
        changed = tensors_of(written(func, args, kwargs))
        changes = self._seen([t for t in changed if id(t.untyped_storage()) not in self._counted])
        before = len(self.sizes)
        start = self._clock.mark()
        result = func(*args, **kwargs)
        end = self._clock.mark()
        results = self._seen(result, made=True)
        name = str(func)
        self.operations.append(
            (
                name,
                self._calls[name],
                reads,
                tuple(i for i in results if i >= before),
                changes,
                tuple(i for i in results if i < before),
                (start, end),
                is_random(func),
            )
        )
        self._calls[name] += 1
        return result

    def finish(self) -> list[Operation]:
        """The operations so far; what comes after them is counted anew."""
        operations = [
            Operation(name, call, reads, makes, changes, views, self._clock.between(*marks), random)
            for name, call, reads, makes, changes, views, marks, random in self.operations
        ]
        self.operations.clear()
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
