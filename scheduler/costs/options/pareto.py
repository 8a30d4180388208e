"""The options of a block: which sets of its results are worth keeping, and what each one costs.

The sets are the Pareto set of bytes kept against time to make the rest again, and those that people
choose by hand. What each holds and needs is then seen by running it that way: in torch
(`scheduler.pytorch.profiling.options`) or on paper (`scheduler.memory.simulate.options`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from scheduler.costs.keeps import Keeps
from scheduler.costs.layer import OptionCost
from scheduler.costs.options.inside import Inside
from scheduler.costs.options.policies import POLICIES
from scheduler.costs.peaks import Peaks
from solvers.problem import InvalidProblem
from solvers.selection.pareto import Choice, Pareto, Thinned, choice, convex, pareto, thin
from solvers.selection.problem import Block
from solvers.selection.problem import Operation as Work

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


@dataclass(frozen=True, slots=True)
class SeenOption:
    """One way to keep a block, and its bytes while it runs that way; those times are not used."""

    want: Wanted
    peaks: Peaks

    def cost(self, whole: Peaks, before: int, root: int) -> OptionCost:
        """What it costs, for the block kept whole as `whole`; the rest as `Peaks.cost` takes it.

        Its peaks are as the cost model has them, above what the replay counts.
        """
        option = whole.option(self.want.name, self.peaks, self.want.recompute_time)
        assert option.forward_transient_bytes is not None
        # Where it ends what runs again it does not stop early.
        more = max(whole.again_peak - whole.forward_peak, before) + root
        ending = option.forward_transient_bytes + more
        return replace(option, ending_transient_bytes=ending, keeps=self.want.keeps)


def wanted(
    inside: Inside,
    recompute_time: float,
    saved_bytes: int,
    most: int = MOST_OPTIONS,
    *,
    by_hand: bool = True,
) -> tuple[tuple[Wanted, ...], float]:
    """The sets of results that may be worth keeping, each once; and what thinning them may lose.

    They are at most `most` of the Pareto set, after those that people choose by hand; there are
    none for a block that changes what it is given. Half of them are the best for many blocks of one
    kind, that is at some price of a byte. What is lost is the most, in ms, that the best of the
    Pareto set that is left takes longer than the best of all of it, at any budget.

    Parameters
    ----------
    recompute_time
        Of the block's forward up to `Inside.stop`, in ms.
    saved_bytes
        Of its whole saved set.
    """
    if any(inside.given.intersection(operation.changes) for operation in inside.forward):
        return (), 0.0
    own = sum(_times(inside)[: inside.stop])
    tiled = recompute_time * inside.tiled_time / (own + inside.tiled_time or 1.0)
    block, whole = problem(inside, recompute_time - tiled), saved_bytes
    if inside.output in inside.saved - inside.given:
        whole += inside.storage_bytes[inside.output]
    best = pareto(block)
    # Results that take as much as the whole saved set are no option, and are to take no place.
    best = Pareto((each for each in best if each.saved_bytes < whole), best.gap_time)
    if not best:  # it saves nothing, or makes nothing that it saves
        return (), 0.0
    thinned = _thinned(best, most + 1)  # one keeps nothing: a checkpoint of the block
    found = tuple(
        Wanted(
            name,
            each.kept,
            tuple((inside.forward[i].name, inside.forward[i].call) for i in each.kept),
            each.recompute_time / _TICKS + tiled,
        )
        for name, each in _named(inside, block, thinned.choices, whole, by_hand=by_hand)
    )
    return found, thinned.gap_time / _TICKS


def _thinned(best: Pareto, most: int) -> Thinned:
    """At most so many of the choices, half of them of those that are best at some price."""
    if len(best) <= most or most < 4:
        return thin(best, most)
    half = thin(convex(best), most // 2).choices
    for rest in range(most - len(half) + 2, 2, -1):  # the first and the last are in both
        found = thin(best, rest)
        both = sorted({*half, *found.choices}, key=lambda each: each.saved_bytes)
        if len(both) <= most:
            break
    return Thinned(tuple(both), found.gap_time)


def _times(inside: Inside) -> list[float]:
    """Of each operation of the forward; a view takes none."""
    return [0.0 if o.views and not (o.makes or o.changes) else o.time for o in inside.forward]


def problem(inside: Inside, recompute_time: float) -> Block:
    """A block's forward as the solver takes it, its operations taking `recompute_time` ms in all.

    The clock reads more when each operation is timed by itself: the shares are taken from that,
    and the sum from the whole.
    """
    times = _times(inside)
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


def _named(
    inside: Inside, block: Block, choices: Sequence[Choice], whole: int, *, by_hand: bool
) -> Iterator[tuple[str, Choice]]:
    """Sets with names, each once; none is the empty one, or saves more than the whole block."""
    seen: set[tuple[int, ...]] = {()}
    labels: set[str] = set()
    for label, policy in POLICIES.items() if by_hand else ():
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
