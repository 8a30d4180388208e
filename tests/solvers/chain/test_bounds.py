"""Bounds of the time and bytes of plans: against every plan of small chains, and by hand."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.chain import brute
from solvers.chain.exact.bounds import ROOMS, Bounds
from solvers.chain.exact.kernel import OWN
from solvers.chain.exact.optimum import solve
from solvers.chain.problem import Chain
from solvers.problem import Layer
from solvers.schedule import Checkpoint, Item
from tests.oracles.oracle import simulate
from tests.oracles.strategies import chains

# Each layer reads 10 bytes and leaves 100; to run it again takes 10. The last one is kept.
CHAIN = Chain((Layer("", 10, 20, 10, 90, 10, output_saved=False),) * 11, 10)


def examples(count: int) -> settings:
    return settings(max_examples=count, deadline=None, derandomize=True)


def spans(chain: Chain, items: tuple[Item, ...]) -> Iterator[tuple[int, int]]:
    """First layer and length of whatever lies in one checkpoint of the highest level."""
    for item in items:
        if isinstance(item, Checkpoint) and item.last < len(chain) - 1:
            for first in range(item.first, item.last + 1):
                for last in range(first, item.last + 1):
                    yield first, last - first + 1


@examples(150)
@given(chains(min_layers=2, max_layers=4, max_plans=400), st.data())
def test_no_plan_is_below_the_bound(chain: Chain, data: st.DataObject) -> None:
    plans = [(*simulate(chain, items)[:2], items) for items in brute.every_plan(chain)]
    budget, time, items = data.draw(st.sampled_from(plans))
    bounds = Bounds(chain, budget - chain.input_bytes)
    lost = time - chain.least_time
    assert bounds.least_excess <= lost
    # Whatever a plan has in one checkpoint may be there, within the time that it loses.
    slack, whole = bounds.slack(lost, len(chain))
    for first, count in spans(chain, items):
        assert count <= len(slack)
        assert slack[count - 1, first] >= 0
    assert whole


def test_rooms_shrink_with_every_layer_below_and_grow_with_time() -> None:
    bounds = Bounds(CHAIN, 700)
    rooms = bounds.rooms(60)
    assert rooms.shape == (4, len(CHAIN), ROOMS + 1)
    assert (np.diff(rooms, axis=2) >= 0).all()
    assert (np.diff(rooms, axis=1) <= 0).all()
    # Nothing is below the first layer. Below the last are 1,000 bytes, or 90 less for the first 10
    # of time and 100 for each 10 more.
    assert (abs(rooms[OWN, 0] - 700) <= 1).all()
    assert rooms[OWN, -1, 0] == -1
    assert 90 <= rooms[OWN, -1, 40] <= 110


def test_a_bound_by_hand() -> None:
    top = CHAIN.replay(CHAIN.keep_all()).peak_bytes
    # One layer that runs again frees 90 bytes, as its input stays; each beside it all 100.
    for missing, lost in ((0, 0), (1, 10), (90, 10), (91, 20), (190, 20), (290, 30)):
        budget = top - missing
        least = Bounds(CHAIN, budget - CHAIN.input_bytes).least_excess
        best = solve(CHAIN, budget).time - CHAIN.least_time
        assert best == lost
        assert 0.09 * missing - 1 <= least <= lost
