"""What layers free for time lost: bounds against every choice, and figures done by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.chain.problem import Chain
from solvers.chain.savings import ROOMS, guess, room
from solvers.problem import LIMIT, Layer, Option, Way
from solvers.schedule import Items, keep_all
from tests.oracles.strategies import chains

Choice = tuple[int, Way | None]
"""Time lost, and how a layer is kept; None: it is dropped."""

#           f   b   x   w   r
A = Layer("a", 10, 20, 10, 100, 9, options=(Option("o", 40, 2),), input_saved=False)
CHAIN = Chain(tuple(replace(A, name=name) for name in "abcd"), 10)


def choices(layer: Layer) -> list[Choice]:
    kept: list[Choice] = [(way.recompute_time, way) for way in layer.ways]
    least = min(layer.forward_time, layer.recompute_time)
    return [*kept, (least, None)] if layer.recomputable else kept


def held(chain: Chain, chosen: tuple[Choice, ...]) -> int:
    """Bytes that the first layers hold, each activation once; the user's input is not theirs."""
    total, outputs = 0, [False]
    for i, (_, way) in enumerate(chosen):
        outputs.append(way is not None and way.output_saved)
        if way is None:
            continue
        total += way.saved_bytes
        total += chain.layers[i].output_bytes * way.output_saved
        total += chain.input_of(i) * (way.input_saved and i > 0 and not outputs[i])
    return total


@settings(max_examples=75, deadline=None, derandomize=True)
@given(chains(min_layers=2, max_layers=4, max_options=3), st.integers(1, 80), st.data())
def test_layers_free_no_more_than_room_allows(
    chain: Chain, excess: int, data: st.DataObject
) -> None:
    cap = 10**12
    allowed = excess // ROOMS + 1
    s = data.draw(st.integers(1, len(chain) - 1))
    every = list(product(*(choices(layer) for layer in chain.layers[:s])))
    rooms = room(chain, cap, excess)
    for q in range(ROOMS + 1):
        within = [c for c in every if sum(time for time, _ in c) <= q * allowed]
        assert rooms[s, q] >= cap - min(held(chain, c) for c in within)


def test_room_by_hand() -> None:
    # Each layer holds w 100 and x 10. Steps: 60 bytes for 2 (the option), then 50 more for 7.
    rooms = room(CHAIN, 1000, ROOMS - 1)
    assert rooms[0].tolist() == [1000] * (ROOMS + 1)
    # Below the third layer are 220 bytes; what fits whole, and one step more.
    assert rooms[2, :5].tolist() == [840, 840, 900, 900, 950]
    assert rooms[2, 11:].tolist() == [1000] * (ROOMS - 10)
    assert (room(CHAIN, 1000, LIMIT) == LIMIT).all()


def test_inputs_count_where_no_layer_before_holds_them() -> None:
    layer = replace(A, input_saved=True, output_saved=False, options=())
    chain = Chain(tuple(replace(layer, name=name) for name in "abcd"), 10)
    # The first layer's input is its user's; the others hold 110 bytes. One step more is free.
    held_below = [1000 - int(bytes_) for bytes_ in room(chain, 1000, 1)[:, 0]]
    assert held_below == [0, 0, 210 - 110, 320 - 110]


def test_a_guess_by_hand() -> None:
    everything = CHAIN.replay(Items(keep_all(4))).peak_bytes
    # Of three layers each frees 60 bytes for 2, then 50 more for 8 (a whole forward).
    losses = [guess(CHAIN, everything - missing) for missing in (-1, 0, 1, 60, 61, 180, 181, 330)]
    assert losses == [0, 0, 2, 2, 4, 6, 14, 30]
    assert guess(CHAIN, everything - 331) == LIMIT
