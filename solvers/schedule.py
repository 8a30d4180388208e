"""What a plan is made of, and the stream of actions it means.

A plan is a tuple of items that covers the layers in order. `actions` spells it out as forwards,
backwards, holds and drops of activations: nothing is left for a replay to guess.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias


class IllegalPlan(ValueError):
    """Items that do not cover the layers in order, or actions that cannot run."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Run the forward of `layer` and let autograd save what it wants, or what `option` says."""

    layer: int
    option: str | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Keep only the input of layers `first` .. `last`; on backward, run `body` from it."""

    first: int
    last: int
    body: tuple[Item, ...]


Item: TypeAlias = "Keep | Checkpoint"


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


Action: TypeAlias = Forward | Backward | Hold | Drop


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


def depth(items: Sequence[Item]) -> int:
    """How deep checkpoints nest in `items`; 0 when nothing is checkpointed."""
    deepest = 0
    todo = [(item, 1) for item in items if isinstance(item, Checkpoint)]
    while todo:
        item, level = todo.pop()
        deepest = max(deepest, level)
        todo.extend((inner, level + 1) for inner in item.body if isinstance(inner, Checkpoint))
    return deepest


def forward_counts(items: Sequence[Item], length: int) -> list[int]:
    """How often each layer's forward is entered in one step.

    Once more for a layer kept under an option: at its backward it runs again, in part.
    """
    counts = [0] * length
    for action in actions(items, length):
        if isinstance(action, Forward):
            counts[action.layer] += 1 if action.option is None else 2
    return counts


def options_of(items: Sequence[Item]) -> dict[int, str]:
    """The option of each layer that is kept under one, at any depth; layers ascending."""
    found: dict[int, str] = {}
    todo: list[Item] = list(items)
    while todo:
        item = todo.pop()
        if isinstance(item, Checkpoint):
            todo.extend(item.body)
        elif item.option is not None:
            found[item.layer] = item.option
    return dict(sorted(found.items()))


def keep_all(length: int) -> tuple[Item, ...]:
    """The plan that recomputes nothing."""
    return tuple(Keep(i) for i in range(length))
