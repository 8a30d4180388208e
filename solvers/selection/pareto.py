"""What to keep inside one block, exactly (selective checkpointing).

A block's forward is a sequence of operations. A policy keeps some of them: the forward stores their
outputs (a storage once, however many outputs view it). At the block's backward the forward runs
again in the same order: a kept operation hands back what it stored, every other one is run, needed
or not, until the last tensor that the backward reads is there (`Block.stop`). This is what
`torch.utils.checkpoint.create_selective_checkpoint_contexts` does (where a kept operation writes in
place, only with ``allow_cache_entry_mutation=True``).

    saved_bytes     sizes of the distinct storages that kept outputs view, but the given ones
    recompute_time  times of the operations before `stop` that are not kept

Which sets are legal is told in `solvers.selection.items`, how the best are found in
`solvers.selection.knapsack`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from solvers.problem import InvalidProblem, check_quantity
from solvers.selection.items import closure, items
from solvers.selection.problem import Block

MOST_POINTS = 20_000
"""Choices that `pareto` keeps at once when it is not told how many."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A legal set of operations to keep, and its price.

    Attributes
    ----------
    kept
        Indices of the operations, ascending.
    saved_bytes, recompute_time
        As at the top of `solvers.selection.pareto`.
    """

    kept: tuple[int, ...]
    saved_bytes: int
    recompute_time: int

    def __post_init__(self) -> None:
        check_quantity("a choice", "saved_bytes", self.saved_bytes)
        check_quantity("a choice", "recompute_time", self.recompute_time)
        if list(self.kept) != sorted(set(self.kept)):
            raise InvalidProblem(f"a choice: kept must ascend, got {self.kept}")


class Pareto(tuple[Choice, ...]):
    """Choices, saved_bytes ascending and recompute_time descending.

    Attributes
    ----------
    gap_time
        No choice of the block, whatever its bytes, recomputes less than the best of these within
        the same bytes by more than this. 0: this is the whole Pareto set.
    """

    gap_time: int

    def __new__(cls, choices: Iterable[Choice], gap_time: int = 0) -> Pareto:
        """As a tuple, with its gap."""
        check_quantity("a Pareto set", "gap_time", gap_time)
        made = super().__new__(cls, choices)
        made.gap_time = gap_time
        return made


@dataclass(frozen=True, slots=True)
class Thinned:
    """Some of many choices.

    Attributes
    ----------
    choices
        Those that stay, in order.
    gap_time
        The most that leaving out the others costs at any limit of bytes; with what the `Pareto`
        they come from may lack already.
    """

    choices: tuple[Choice, ...]
    gap_time: int

    def __post_init__(self) -> None:
        check_quantity("thinned choices", "gap_time", self.gap_time)


def choice(block: Block, kept: Iterable[int]) -> Choice:
    """The price of a set made by hand, with whatever must be kept with it.

    Views and operations that are not run again are left out: keeping them is of no use.

    Raises
    ------
    InvalidProblem
        An index is no operation, or the set needs an operation that cannot be kept.
    """
    wanted = set(kept)
    if strange := wanted - set(range(len(block.operations))):
        raise InvalidProblem(
            f"kept: {min(strange)} is no operation of a block of {len(block.operations)}"
        )
    parts = items(block)
    wished = (k for k, part in enumerate(parts) if wanted & set(part.operations))
    chosen = [parts[k] for k in closure(parts, wished)]
    for part in chosen:
        if part.bar:
            storage, late = part.bar
            first = part.operations[0]
            raise InvalidProblem(
                f"operation {first} ({block.operations[first].name!r}) cannot be kept: operation "
                f"{late} ({block.operations[late].name!r}), which is not run again, changes "
                f"storage {storage} in place; leave it out of kept"
            )
    return Choice(
        tuple(sorted(i for part in chosen for i in part.operations)),
        sum(part.bytes for part in chosen),
        block.run_again_time - sum(part.time for part in chosen),
    )


def pareto(block: Block, most_points: int | None = None) -> Pareto:
    """Every choice that no other beats in bytes and time, saved_bytes ascending.

    The first saves 0 bytes: it keeps nothing, as a plain checkpoint does, but what is stored for
    nothing (a number read from a tensor, an empty tensor). The last recomputes least. Of choices
    of one price the one with fewest operations is taken, then the lexicographically first.

    `most_points` are choices that may be kept at once, at least 2; None: `MOST_POINTS`. Where there
    are more, some are left out on the way, and `Pareto.gap_time` says what that may cost.
    """
    from solvers.selection.knapsack import closed_sets

    most = MOST_POINTS if most_points is None else most_points
    _check_most("most_points", most)
    sets, loss = closed_sets(items(block), len(block.operations), most)
    whole = block.run_again_time
    return Pareto((Choice(kept, size, whole - time) for kept, size, time in sets), loss)


def convex(choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """The choices that are best at some price of a byte; the first and the last among them.

    `choices` are in order, as `pareto` returns them. Many equal blocks, each of which may be kept
    by another choice, do best with mixtures of these.
    """
    found: list[Choice] = []
    for last in choices:
        while len(found) > 1 and _above(found[-2], found[-1], last):
            found.pop()
        found.append(last)
    return tuple(found)


def _above(first: Choice, middle: Choice, last: Choice) -> bool:
    """Whether a choice takes no less than a mixture of its neighbours."""
    saved = middle.saved_bytes - first.saved_bytes, last.saved_bytes - first.saved_bytes
    gained = (
        first.recompute_time - middle.recompute_time,
        first.recompute_time - last.recompute_time,
    )
    return gained[0] * saved[1] <= gained[1] * saved[0]


def thin(choices: Sequence[Choice], most: int) -> Thinned:
    """At most `most` of the choices, so that the largest loss at any limit of bytes is least.

    The loss at a limit is the recompute_time of the best choice within it that stays, less that of
    the best of all. Exact: for a given loss it is best to go from each choice that stays to the
    farthest that the loss allows, and the least loss that suffices is found by bisection.

    Of `choices` as `pareto` returns them the first and the last stay, so `most` is at least 2.

    Raises
    ------
    InvalidProblem
        There is no choice, the choices are not in order, or `most` is too small.
    """
    _check_most("most", most)
    if not choices:
        raise InvalidProblem("choices: there is none to thin; pass what pareto returns")
    for i, (a, b) in enumerate(pairwise(choices), 1):
        if a.saved_bytes >= b.saved_bytes or a.recompute_time <= b.recompute_time:
            raise InvalidProblem(
                f"choices: number {i} is out of order; saved_bytes must ascend and recompute_time "
                "descend, as pareto returns them"
            )
    gained = [choices[0].recompute_time - choice.recompute_time for choice in choices]
    low, high = 0, gained[-1]
    while low < high:
        middle = (low + high) // 2
        if len(_staying(gained, middle, most)) <= most:
            high = middle
        else:
            low = middle + 1
    already = choices.gap_time if isinstance(choices, Pareto) else 0
    return Thinned(tuple(choices[i] for i in _staying(gained, low, most)), low + already)


def _staying(gained: list[int], loss: int, most: int) -> list[int]:
    """Fewest indices with no more than `loss` lost before the next; stops above `most`."""
    last = len(gained) - 1
    result = [0]
    while result[-1] < last and len(result) <= most:
        here = result[-1]
        result.append(bisect_right(gained, gained[here] + loss, here, last))
    return result


def _check_most(field: str, most: int) -> None:
    check_quantity("the choices", field, most)
    if most < 2:
        raise InvalidProblem(f"{field} must be at least 2, for the first and the last, got {most}")
