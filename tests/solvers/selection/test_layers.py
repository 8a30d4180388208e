"""Ways to keep layers that follow each other, against every combination."""

from __future__ import annotations

import itertools
import random

import pytest

from solvers.selection.layers import Layers, Way


@pytest.mark.parametrize("seed", range(30))
def test_the_least_of_every_combination(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(1, 4)
    layers = [
        [
            Way(
                draw.randint(0, 9),
                draw.randint(9, 20),
                draw.randint(0, 30),
                draw.randint(0, 1) if k else 0,
                draw.randint(0, 1) if k < count - 1 else 0,
            )
            for _ in range(4)
        ]
        for k in range(count)
    ]
    every = []
    for ways in itertools.product(*layers):
        if all(a.above == b.below for a, b in itertools.pairwise(ways)):
            held = itertools.accumulate((way.held for way in ways), initial=0)
            peak = max(h + way.peak for h, way in zip(held, ways, strict=False))
            every.append((peak, sum(way.cost for way in ways)))
    exact, above, below = (
        Layers(layers, 80, 1),
        Layers(layers, 80, 3),
        Layers(layers, 80, 3, down=True),
    )
    previous = None
    for budget in range(81):
        best = min((cost for peak, cost in every if peak <= budget), default=None)
        assert exact.cost(budget) == best
        if (bound := below.cost(budget)) is not None and best is not None:
            assert bound <= best
        assert best is None or bound is not None
        rounded = above.cost(budget)
        assert rounded is None or (best is not None and rounded >= best)
        if best is not None:
            chosen = [layers[k][way] for k, way in enumerate(exact.ways(budget))]
            assert sum(way.cost for way in chosen) == best
            assert (budget in exact.budgets()) == (best != previous)
        previous = best
