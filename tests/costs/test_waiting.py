"""Gradients that wait: what each layer counts of them."""

from __future__ import annotations

from dataclasses import replace

from scheduler.costs.costgraph import CostGraph
from scheduler.costs.layer import LayerCost
from scheduler.costs.waiting import Waiting, with_waiting
from solvers.schedule import Checkpoint, Items, Keep

PLAIN = LayerCost(
    "a", forward_time=1, backward_time=1, output_bytes=8, saved_bytes=16, gradient_bytes=100
)
LAYERS = (
    replace(PLAIN, name="taker", recomputable=False, gradient_bytes=0),
    replace(PLAIN, name="between", gradient_bytes=0),
    replace(PLAIN, name="maker", recomputable=False),
)


def moments(layers: tuple[LayerCost, ...], *items: Keep | Checkpoint) -> list[int]:
    replay = CostGraph(layers, input_bytes=8).to_chain().replay(Items(items))
    return [moment.during_bytes for moment in replay.moments if moment.role]


def test_what_waits_is_there_from_its_making_to_its_use() -> None:
    items = Keep(0), Checkpoint(1, 1, (Keep(1),)), Keep(2)
    waiting = with_waiting(LAYERS, 8, [Waiting(2, 0, 60)])
    # Forwards, and the backward that makes it, need what they needed; up to its use all is as when
    # it was one of the gradients that stay.
    assert moments(waiting, *items) == moments(LAYERS, *items)
    assert moments(LAYERS, *items)[:4] == [40, 48, 72, 180]
    assert CostGraph(waiting, 8).to_chain().replay(Items(items)).moments[-1].after_bytes == 16 + 40


def test_what_the_user_frees_of_its_own() -> None:
    layers = (replace(LAYERS[0], gradient_bytes=60), *LAYERS[1:])
    taker, between, maker = with_waiting(layers, 8, [Waiting(2, 0, 60)])
    assert (taker.gradient_bytes, taker.backward_transient_bytes) == (0, 60)
    assert (between, maker) == layers[1:]
