"""Every nested plan of a small chain: the oracle that the other chain solvers are held to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from solvers.chain.problem import Chain
from solvers.schedule import Checkpoint, Item, Items, Keep
from solvers.solution import Infeasible, Solution, Unsuitable

MOST_PLANS = 2_000_000
"""Chains with more nested plans are refused: replaying them would take minutes and more."""


def count_plans(chain: Chain, most: int = MOST_PLANS) -> int:
    """How many plans `every_plan` makes: exactly, or some number beyond `most`."""
    n = len(chain)
    # Of span s..t: the plans of a level, and those that may be a body (see `_proper`). A longer
    # span has no fewer plans, so one span beyond `most` settles it before numbers grow.
    level: dict[tuple[int, int], int] = {}
    bodies: dict[tuple[int, int], int] = {}
    for s, t in _spans(chain):
        count = (1 + len(chain.layers[s].options)) * level.get((s + 1, t), 1)
        count += sum(bodies[s, j] * level[j + 1, t] for j in range(s, t) if (s, j) in bodies)
        if _recomputable(chain, s, t):
            bodies[s, t] = count
            count *= 2
        level[s, t] = count
        if count > most:
            return count
    return level[0, n - 1]


def every_plan(chain: Chain) -> Iterable[tuple[Item, ...]]:
    """Every nested plan of `chain`, each once, in no particular order.

    Not among them: a body that is one checkpoint of the very same span, which does its work once
    more for nothing and could go on for ever.

    Raises
    ------
    Unsuitable
        There are more than `MOST_PLANS`.
    """
    if count_plans(chain) > MOST_PLANS:
        raise Unsuitable(
            f"brute force tries every plan, and this chain of {len(chain)} layers has more than "
            f"{MOST_PLANS:,}"
        )
    return _every_plan(chain)


def frontier(chain: Chain) -> list[tuple[int, int]]:
    """All Pareto-optimal pairs (peak bytes, time) of `every_plan`, peaks ascending."""
    results = (chain.replay(Items(items)) for items in every_plan(chain))
    points: list[tuple[int, int]] = []
    for peak, time in sorted({(result.peak_bytes, result.time) for result in results}):
        if not points or time < points[-1][1]:
            points.append((peak, time))
    return points


def solve(chain: Chain, budget: int) -> Solution[Items]:
    """The fastest of `every_plan` that fits `budget` bytes, ties to the smaller peak.

    Its bound is its own time: nothing was left untried.

    Raises
    ------
    Infeasible
        No plan fits; carries the plan with the smallest peak.
    """
    best: tuple[int, int, tuple[Item, ...]] | None = None
    smallest: tuple[int, int, tuple[Item, ...]] | None = None
    for items in every_plan(chain):
        result = chain.replay(Items(items))
        peak, time = result.peak_bytes, result.time
        if smallest is None or (peak, time) < smallest[:2]:
            smallest = (peak, time, items)
        if peak <= budget and (best is None or (time, peak) < best[:2]):
            best = (time, peak, items)
    if best is None:
        assert smallest is not None  # a chain has a layer, so there is a plan
        raise Infeasible.of(chain, Items(smallest[2]))
    time, peak, items = best
    return Solution(Items(items), peak, time, time)


def _recomputable(chain: Chain, first: int, last: int) -> bool:
    return all(layer.recomputable for layer in chain.layers[first : last + 1])


def _spans(chain: Chain) -> Iterator[tuple[int, int]]:
    """Spans whose plans are needed, shorter ones first: those of bodies and the ends of a level.

    Made one by one: of a long chain the first few settle that there are too many plans.
    """
    n = len(chain)
    ends = [n] * n  # of the recomputable layers from each one on
    for i in reversed(range(n)):
        if not chain.layers[i].recomputable:
            ends[i] = i
        elif i + 1 < n:
            ends[i] = ends[i + 1]
    longest = max(end - start for start, end in enumerate(ends))
    for length in range(1, n + 1):
        for s in range(n - length + 1) if length <= longest else (n - length,):
            if s + length == n or s + length <= ends[s]:
                yield s, s + length - 1


def _every_plan(chain: Chain) -> Iterator[tuple[Item, ...]]:
    level: dict[tuple[int, int], list[tuple[Item, ...]]] = {}
    bodies: dict[tuple[int, int], list[tuple[Item, ...]]] = {}
    *parts, whole = _spans(chain)  # the whole is not stored: it holds nearly all the plans
    for s, t in parts:
        plans = list(_proper(chain, s, t, level, bodies))
        if _recomputable(chain, s, t):
            bodies[s, t] = plans
            plans = plans + [(Checkpoint(s, t, body),) for body in plans]
        level[s, t] = plans
    alone = _recomputable(chain, *whole)
    for items in _proper(chain, *whole, level, bodies):
        yield items
        if alone:
            yield (Checkpoint(*whole, items),)


def _proper(
    chain: Chain,
    s: int,
    t: int,
    level: dict[tuple[int, int], list[tuple[Item, ...]]],
    bodies: dict[tuple[int, int], list[tuple[Item, ...]]],
) -> Iterator[tuple[Item, ...]]:
    """Plans of s..t, except those that are one checkpoint of s..t: these may be its bodies."""
    nothing: list[tuple[Item, ...]] = [()]
    names = [None, *(option.name for option in chain.layers[s].options)]
    for rest in level.get((s + 1, t), nothing):
        for name in names:
            yield (Keep(s, name), *rest)
    for j in range(s, t):
        for body in bodies.get((s, j), ()):
            head = Checkpoint(s, j, body)
            for rest in level[j + 1, t]:
                yield (head, *rest)
