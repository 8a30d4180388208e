"""The options of a block: which sets of its results are worth keeping, and what each one costs.

The sets are the Pareto set of bytes kept against time to make the rest again, and those that people
choose by hand. What each holds and needs is then seen by running it that way: in torch
(`scheduler.pytorch.profiling.options`) or on paper (`scheduler.memory.simulate.options`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from scheduler.costs.keeps import Keeps
from scheduler.costs.layer import OptionCost
from scheduler.costs.options.inside import Inside
from scheduler.costs.options.policies import POLICIES
from solvers.problem import InvalidProblem
from solvers.selection.pareto import Choice, Pareto, choice, pareto, thin
from solvers.selection.problem import Block
from solvers.selection.problem import Operation as Work

__all__ = ["MOST_OPTIONS", "Sizes", "Wanted", "option_cost", "problem", "wanted"]

MOST_OPTIONS = 10
"""Options of a block from its Pareto set; those that people choose by hand come beside them."""

_TICKS = 1e6
"""Ticks of the solver in one ms: nanoseconds."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A set of a block's results to keep.

    Attributes
    ----------
    name
        "save-35%" of the bytes of the whole saved set, the output among them where it is saved; or
        the name of a policy.
    kept
        Positions in `Inside.forward`, ascending.
    keeps
        The same as calls of operations.
    recompute_time
        Of all else up to `Inside.stop`, once; in ms.
    """

    name: str
    kept: tuple[int, ...]
    keeps: Keeps
    recompute_time: float


class Sizes(Protocol):
    """Bytes of a block that was run by itself, whole or under an option.

    The peaks are of what the block makes: its forward's holds what stays and the output, its
    backward's the gradient of the output too.
    """

    @property
    def input_bytes(self) -> int:
        """Of the activation that it reads."""

    @property
    def output_bytes(self) -> int:
        """Of the activation that it hands on."""

    @property
    def saved_bytes(self) -> int:
        """What stays for its backward, without its input and output."""

    @property
    def input_saved(self) -> bool:
        """Whether what stays holds the input."""

    @property
    def output_saved(self) -> bool:
        """Whether it holds the output."""

    @property
    def forward_peak(self) -> int:
        """Most that was live in the forward."""

    @property
    def backward_peak(self) -> int:
        """Most that was live in the backward, the recomputation that begins it included."""

    @property
    def gradient_bytes(self) -> int:
        """Gradients that stay when it is over."""


def wanted(
    inside: Inside, recompute_time: float, saved_bytes: int
) -> tuple[tuple[Wanted, ...], float]:
    """The sets of results that may be worth keeping, each once; and what thinning them may lose.

    Parameters
    ----------
    inside
        The block's operations.
    recompute_time
        Of its forward up to `Inside.stop`, in ms.
    saved_bytes
        Of its whole saved set.

    Returns
    -------
    tuple
        At most `MOST_OPTIONS` of the Pareto set, after those that people choose by hand; and the
        most, in ms, that the best of the Pareto set that is left takes longer than the best of all
        of it, at any budget of bytes. There are none for a block that changes what it is given.
    """
    if any(inside.given.intersection(operation.changes) for operation in inside.forward):
        return (), 0.0
    block = problem(inside, recompute_time)
    whole = saved_bytes
    if inside.output in inside.saved - inside.given:
        whole += inside.storage_bytes[inside.output]
    best = pareto(block)
    # Results that take as much as the whole saved set are no option, and are to take no place.
    best = Pareto((each for each in best if each.saved_bytes < whole), best.gap_time)
    if not best:  # it saves nothing, or makes nothing that it saves
        return (), 0.0
    thinned = thin(best, MOST_OPTIONS + 1)  # one keeps nothing: a checkpoint of the block
    found = tuple(
        Wanted(
            name,
            each.kept,
            tuple((inside.forward[i].name, inside.forward[i].call) for i in each.kept),
            each.recompute_time / _TICKS,
        )
        for name, each in _named(inside, block, thinned.choices, whole)
    )
    return found, thinned.gap_time / _TICKS


def problem(inside: Inside, recompute_time: float) -> Block:
    """A block's forward as the solver takes it, its operations taking `recompute_time` ms in all.

    The clock reads more when each operation is timed by itself: the shares are taken from that,
    and the sum from the whole.
    """
    views = [bool(o.views) and not (o.makes or o.changes) for o in inside.forward]
    times = [0.0 if view else o.time for o, view in zip(inside.forward, views, strict=True)]
    total = sum(times[: inside.stop])
    scale = recompute_time / total * _TICKS if total else 0.0
    return Block(
        tuple(
            Work(
                o.name,
                round(time * scale),
                o.reads,
                (*o.makes, *o.changes),
                tuple(storage for storage in o.views if storage not in o.changes),
            )
            for o, time in zip(inside.forward, times, strict=True)
        ),
        inside.storage_bytes,
        inside.given,
        inside.stop,
    )


def option_cost(want: Wanted, way: Sizes, whole: Sizes, more: int = 0) -> OptionCost:
    """What an option costs: its peaks as the cost model has them, above what the replay counts.

    Parameters
    ----------
    want
        The option.
    way, whole
        The block as it runs under it, and as it is kept whole.
    more
        Bytes live beside every forward.
    """
    x, w = whole.output_bytes, way.saved_bytes
    # What the replay counts during the backward, the whole saved set being live again.
    outputs = 2 if whole.output_saved or way.output_saved else 1
    held = whole.saved_bytes + outputs * x
    made = whole.input_bytes + whole.gradient_bytes
    above = way.backward_peak - held - made
    return OptionCost(
        want.name,
        w,
        want.recompute_time,
        forward_transient_bytes=max(way.forward_peak + more - x - w, 0),
        backward_transient_bytes=max(above, 0),
        backward_overlap_bytes=min(max(-above, 0), held, made),
        input_saved=way.input_saved,
        output_saved=way.output_saved,
        keeps=want.keeps,
    )


def _named(
    inside: Inside, block: Block, choices: Sequence[Choice], whole: int
) -> Iterator[tuple[str, Choice]]:
    """Sets with names, each once; none is the empty one, or saves more than the whole block."""
    seen: set[tuple[int, ...]] = {()}
    labels: set[str] = set()
    for label, policy in POLICIES.items():
        try:
            made = choice(block, policy(inside))
        except InvalidProblem:
            continue  # it needs a result that cannot be kept
        if made.kept not in seen:
            seen.add(made.kept)
            yield label, made
    for each in choices:
        if each.kept in seen:
            continue
        seen.add(each.kept)
        share = each.saved_bytes / whole if whole else 0.0
        label = f"save-{share:.0%}"
        if label in labels:
            label = f"save-{share:.2%}"
        while label in labels:
            label += "+"
        labels.add(label)
        yield label, each
