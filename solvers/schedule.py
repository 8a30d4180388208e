"""What schedules are made of: the actions of a training step, and the items of a chain's plan.

A schedule spells itself out as actions: nothing is left for a replay to guess. That of a chain is
a tuple of items that covers the layers in order; those of graphs are in `solvers.graph.schedule`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias


class IllegalPlan(ValueError):
    """Items that do not cover the layers in order, or actions that cannot run."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Run the forward of `layer` and let autograd save what it wants, or what `option` says."""

    layer: int
    option: str | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Checkpoint:
    """Keep only the input of layers `first` .. `last`; on backward, run `body` from it.

    Bodies may nest as deep as a chain is long, so comparing, hashing and printing do not recurse.
    """

    first: int
    last: int
    body: tuple[Item, ...]

    def __eq__(self, other: object) -> bool:
        return _flat(self) == _flat(other) if isinstance(other, Checkpoint) else NotImplemented

    def __hash__(self) -> int:
        return hash(_flat(self))

    def __repr__(self) -> str:
        parts: list[str] = []
        todo: list[Item | str] = [self]
        while todo:
            work = todo.pop()
            if not isinstance(work, Checkpoint):
                parts.append(str(work))
                continue
            parts.append(f"Checkpoint(first={work.first}, last={work.last}, body=(")
            todo.append(",))" if len(work.body) == 1 else "))")
            for i, inner in enumerate(reversed(work.body)):
                todo += [", ", inner] if i else [inner]
        return "".join(parts)


Item: TypeAlias = "Keep | Checkpoint"


def _flat(item: Checkpoint) -> tuple[object, ...]:
    """An item and all inside it, each checkpoint with the length of its body."""
    flat: list[object] = []
    todo: list[Item] = [item]
    while todo:
        work = todo.pop()
        if isinstance(work, Checkpoint):
            flat += [work.first, work.last, len(work.body)]
            todo.extend(reversed(work.body))
        else:
            flat.append(work)
    return tuple(flat)


@dataclass(frozen=True, slots=True)
class Forward:
    """Run the forward of `layer`; `keep` its saved set (under `option`) or nothing.

    `ends_body`: it is the last forward of a recomputed body, which may stop early.
    """

    layer: int
    keep: bool
    option: str | None = None
    ends_body: bool = False


@dataclass(frozen=True, slots=True)
class Backward:
    """Run the backward of `layer`."""

    layer: int


@dataclass(frozen=True, slots=True)
class Hold:
    """A segment takes a hold on the output of `layer` (-1: the chain's input)."""

    layer: int


@dataclass(frozen=True, slots=True)
class Drop:
    """A sweep or a segment lets go of the output of `layer`."""

    layer: int


@dataclass(frozen=True, slots=True)
class Compute:
    """Compute the node at position `layer` of a compute graph."""

    layer: int


Action: TypeAlias = Forward | Backward | Hold | Drop | Compute


class Schedule(Protocol):
    """What runs in one training step, and in which order; equal ones do the same."""

    def actions(self, length: int) -> Iterable[Action]:
        """Every action in order, for a problem of `length` layers or nodes.

        Raises
        ------
        IllegalPlan
            It is no schedule of so many.
        """

    def counts(self, length: int) -> list[int]:
        """How often each layer's forward is entered, or each node computed."""

    def options(self) -> dict[int, str]:
        """The option of each layer that is kept under one; layers ascending."""

    @property
    def order(self) -> tuple[object, ...]:
        """In which order operations first run; equal for schedules of the same order."""

    def has_own_order(self, length: int) -> bool:
        """Whether that is another order than that of the costs."""


def first_of(item: Item) -> int:
    """Index of the first layer that `item` covers."""
    return item.layer if isinstance(item, Keep) else item.first


def last_of(item: Item) -> int:
    """Index of the last layer that `item` covers."""
    return item.layer if isinstance(item, Keep) else item.last


def check_cover(items: Sequence[Item], first: int, last: int) -> None:
    """Raise `IllegalPlan` unless `items` cover `first` .. `last` in order, at every depth."""
    todo: list[tuple[Sequence[Item], int, int, str]] = [(items, first, last, "the plan")]
    while todo:
        level, start, end, where = todo.pop()
        expected = start
        for item in level:
            if first_of(item) != expected or last_of(item) < expected:
                raise IllegalPlan(
                    f"{where} covers layers {start} to {end} in order, so an item must start at "
                    f"layer {expected}; found one for layers {first_of(item)} to {last_of(item)}"
                )
            expected = last_of(item) + 1
            if isinstance(item, Checkpoint):
                name = f"the body of the checkpoint of layers {item.first} to {item.last}"
                todo.append((item.body, item.first, item.last, name))
        if expected != end + 1:
            raise IllegalPlan(f"{where} stops before layer {expected}; it must reach layer {end}")


def actions(items: Sequence[Item], length: int) -> Iterator[Action]:
    """The actions of one training step under the plan `items` of a chain of `length` layers.

    Yields
    ------
    Action
        In order. The caller of the step holds the chain's input throughout.

    Raises
    ------
    IllegalPlan
        The items do not cover layers 0 .. length - 1 in order.
    """
    check_cover(items, 0, length - 1)
    # A stack of pending work, not recursion: a plan may nest as deep as the chain is long.
    stack: list[Checkpoint | Keep | Drop | tuple[Sequence[Item], bool]] = [(items, False)]
    while stack:
        work = stack.pop()
        if isinstance(work, tuple):
            level, is_body = work
            yield from _sweep(level, is_body)
            stack.extend(level)  # popped from the end: backward runs in reverse
        elif isinstance(work, Keep):
            yield Backward(work.layer)
        elif isinstance(work, Checkpoint):
            stack.append(Drop(work.first - 1))
            stack.append((work.body, True))
        else:
            yield work


def _sweep(level: Sequence[Item], is_body: bool) -> Iterator[Action]:
    """The forward sweep over one level; the input of its first layer is held by somebody else."""
    start, end = first_of(level[0]), last_of(level[-1])
    for item in level:
        if isinstance(item, Keep):
            ends_body = is_body and item.layer == end
            yield Forward(item.layer, True, item.option, ends_body)
            if item.layer > start:
                yield Drop(item.layer - 1)
        else:
            yield Hold(item.first - 1)
            for layer in range(item.first, item.last + 1):
                yield Forward(layer, False)
                if layer > start:
                    yield Drop(layer - 1)
    yield Drop(end)


@dataclass(frozen=True, slots=True)
class Items:
    """The schedule of a chain: `items` cover its layers in order."""

    items: tuple[Item, ...]

    def actions(self, length: int) -> Iterator[Action]:
        """See `actions`; the caller of the step holds the chain's input throughout."""
        return actions(self.items, length)

    def counts(self, length: int) -> list[int]:
        """How often each layer's forward is entered in one step.

        Once more for a layer kept under an option: at its backward it runs again, in part.
        """
        counts = [0] * length
        for action in self.actions(length):
            if isinstance(action, Forward):
                counts[action.layer] += 1 if action.option is None else 2
        return counts

    def options(self) -> dict[int, str]:
        """The option of each layer that is kept under one, at any depth; layers ascending."""
        found: dict[int, str] = {}
        todo: list[Item] = list(self.items)
        while todo:
            item = todo.pop()
            if isinstance(item, Checkpoint):
                todo.extend(item.body)
            elif item.option is not None:
                found[item.layer] = item.option
        return dict(sorted(found.items()))

    @property
    def order(self) -> tuple[object, ...]:
        """Nothing to tell apart: a chain has one order."""
        return ()

    def has_own_order(self, length: int) -> bool:
        """Never: a chain has one order."""
        return False

    @property
    def depth(self) -> int:
        """How deep checkpoints nest; 0 when nothing is checkpointed."""
        return depth(self.items)


def depth(items: Sequence[Item]) -> int:
    """How deep checkpoints nest in `items`; 0 when nothing is checkpointed."""
    deepest = 0
    todo = [(item, 1) for item in items if isinstance(item, Checkpoint)]
    while todo:
        item, level = todo.pop()
        deepest = max(deepest, level)
        todo.extend((inner, level + 1) for inner in item.body if isinstance(inner, Checkpoint))
    return deepest


def keep_all(length: int) -> tuple[Item, ...]:
    """The plan that recomputes nothing."""
    return tuple(Keep(i) for i in range(length))
