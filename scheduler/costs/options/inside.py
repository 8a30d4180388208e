"""The operations inside a block: what each reads, makes and takes, and what its backward needs.

Everything is told by storages. A view is tied to the storage that it looks into, an operation in
place to the one that it changes; what autograd keeps for the backward is a set of storages.
Written down from torch by `scheduler.pytorch.profiling.options`, from a model's sizes by
`scheduler.memory`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of the dispatcher.

    Attributes
    ----------
    name, call
        Such as ``aten.mm.default``, and which call of it this is in the forward (or the backward),
        from 0: what a policy of selective checkpointing knows an operation by.
    reads, makes, changes, views
        Storages, by their index in `Inside.storage_bytes`: of what it is given; new ones that it
        returns; given ones that it changes in place; given ones that its results look into.
    time
        In ms.
    random
        Does it draw random numbers?
    """

    name: str
    call: int
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    changes: tuple[int, ...]
    views: tuple[int, ...]
    time: float
    random: bool


@dataclass(frozen=True, slots=True)
class Inside:
    """A block's forward and backward as operations.

    Attributes
    ----------
    forward, backward
        The operations in order.
    storage_bytes
        Size of each storage.
    given
        Storages that were there before: the block's input, parameters, other arguments.
    output
        The storage of the block's output.
    saved
        Storages that autograd keeps from the forward for the backward, given ones among them.
    stop
        Operations of the forward before the last tensor that autograd saves: a recomputation runs
        these, and stops.
    tiled_time
        Of what runs in tiles before that, in ms: no operation of it can be kept, and none is here.
    """

    forward: tuple[Operation, ...]
    backward: tuple[Operation, ...]
    storage_bytes: tuple[int, ...]
    given: frozenset[int]
    output: int
    saved: frozenset[int]
    stop: int
    tiled_time: float = 0.0
