"""Costs of one model's step by the length of its sequences."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from scheduler.common.errors import InvalidCosts, InvalidPlan
from scheduler.common.text import shown
from scheduler.costs.costgraph import CostGraph


class CostsByLength(dict[int, CostGraph]):
    """A dict from lengths, in tokens, to costs; `batch`: sequences in each step."""

    def __init__(self, costs: Mapping[int, CostGraph], batch: int) -> None:
        super().__init__(costs)
        self.batch = batch


def check_lengths(lengths: Iterable[object]) -> tuple[int, ...]:
    """Lengths of sequences, in tokens; `InvalidCosts` where they are none or do not increase."""
    found: list[int] = []
    for length in lengths:
        if not isinstance(length, int) or isinstance(length, bool) or length < 1:
            raise InvalidCosts(f"a length is a whole number of tokens from 1, got {shown(length)}")
        found.append(length)
    if not found:
        raise InvalidCosts("no lengths given; name some in tokens, as in 1024, 2048, 4096")
    for before, length in pairwise(found):
        if length <= before:
            raise InvalidCosts(
                f"the lengths must increase, but {length} stands after {before}; sort them, each "
                "once"
            )
    return tuple(found)


def next_length(lengths: Sequence[int], batch: int, length: int, sequences: int = 1) -> int:
    """The first of the lengths, which increase, at which a batch has room for a step.

    Sequences are at least as long there, and the batch has at least as many tokens; `InvalidPlan`
    where there is none.
    """
    needed = max(length, -(-length * sequences // batch))
    place = bisect_left(lengths, needed)
    if place < len(lengths):
        return lengths[place]
    raise InvalidPlan(
        f"a step of {sequences} × {length} tokens is larger than the longest that is planned for, "
        f"{batch} × {lengths[-1]}, so nobody knows whether it fits; shorten it, or plan for a "
        "longer one, too"
    )
