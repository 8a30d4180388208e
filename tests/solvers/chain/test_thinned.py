"""Thinned sets: plans that are never worse than those of the quick methods, and true bounds."""

from __future__ import annotations

import random
from functools import partial

import pytest

from solvers.chain.exact.arrays import least_memory
from solvers.chain.exact.frontier import Frontier
from solvers.chain.exact.optimum import solve
from solvers.chain.methods import METHODS
from solvers.chain.problem import Chain
from solvers.problem import Layer
from solvers.solution import Infeasible, Progress, Status, Unsuitable

QUICK = ("every-layer", "uniform-sqrt", "uniform", "greedy", "single-level", "binomial")


def uneven(seed: int, length: int) -> Chain:
    draw = random.Random(seed)

    def time() -> int:
        return draw.randint(10**3, 10**6)

    layers = (
        Layer(f"{i}", time(), 2 * time(), draw.randint(1, 10**6), draw.randint(1, 10**7), time())
        for i in range(length)
    )
    return Chain(tuple(layers), draw.randint(1, 10**6))


ALIKE = Chain(tuple(Layer(f"{i}", 10**3, 2 * 10**3, 10, 10, 10**3) for i in range(40)), 10)


@pytest.mark.parametrize("chain", [uneven(0, 30), uneven(9, 30), ALIKE], ids=["0", "9", "alike"])
def test_thinned_plans_are_no_worse_than_quick_ones(chain: Chain) -> None:
    whole = Frontier(chain)
    few = Frontier(chain, max_points=16)
    little = least_memory(len(chain), len(chain) ** 2 // 2 + len(chain))
    tight = Frontier(chain, memory_limit=little)
    assert not few.exact
    top = chain.replay(chain.keep_all()).peak_bytes
    for share in (0.35, 0.5, 0.7, 1):
        budget = max(whole.points[0][0], int(top * share))
        best = whole.solution(budget).time
        known = []
        for name in QUICK:
            try:
                known.append(METHODS[name].solve(chain, budget).time)
            except (Infeasible, Unsuitable):
                continue
        solved = partial(solve, chain, max_points=16), partial(solve, chain, memory_limit=little)
        for by in (*solved, few.solution, tight.solution):
            found = by(budget)
            assert chain.replay(found.schedule).peak_bytes == found.peak_bytes <= budget
            assert found.lower_bound_time <= best <= found.time <= min(known, default=found.time)
            assert found.status is not Status.OPTIMAL or found.time == best
    pairs = [chain.replay(few.solution(peak).schedule) for peak, _ in few.points]
    assert all(
        done.peak_bytes <= peak and done.time <= time
        for done, (peak, time) in zip(pairs, few.points, strict=True)
    )


@pytest.mark.parametrize("seed", range(4))
def test_a_search_that_is_ended_has_a_plan_and_a_true_bound(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solvers.methods.PAUSE", 1e-4)
    chain = uneven(seed, 120)
    top = chain.replay(chain.keep_all()).peak_bytes
    budget = top * (6 if seed % 2 else 8) // 10
    best = solve(chain, budget).time
    gaps = []
    for calls in (0, 1, 2, 4, 8, 16, 10**6):
        left = iter(range(calls))
        found = solve(chain, budget, interrupted=lambda left=left: next(left, None) is None)
        assert chain.replay(found.schedule).peak_bytes == found.peak_bytes <= budget
        assert found.lower_bound_time <= best <= found.time
        gaps.append(found.time - found.lower_bound_time)
    assert gaps[-1] == 0 < gaps[0]
    ended = solve(chain, budget, time_limit=1e-9)
    assert ended.lower_bound_time <= best <= ended.time
    assert ended.peak_bytes <= budget


def test_equal_layers_have_a_good_plan_long_before_all_sets() -> None:
    block = Layer("block", 10**3, 2 * 10**3, 10, 150, 10**3)
    chain = Chain((block,) * 600, 10)
    budget = chain.replay(chain.keep_all()).peak_bytes // 2
    coarse: list[Progress] = []
    solve(chain, budget, time_limit=60, report=coarse.append, interrupted=lambda: ended(coarse))
    first = next(each for each in reversed(coarse) if each.stage == "coarse sets")
    assert first.time is not None
    assert first.time <= 1.001 * first.lower_bound_time


def ended(told: list[Progress]) -> bool:
    """Whether the search is past its coarse sets."""
    return told[-1].stage == "sets"
