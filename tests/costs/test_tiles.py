"""Layers in tiles: what a forward that keeps nothing needs, whichever way a layer is kept."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from scheduler import InvalidCosts
from scheduler.costs.costgraph import CostGraph
from scheduler.costs.layer import LayerCost, OptionCost
from scheduler.costs.options.tiles import with_tiled_drops
from solvers.chain.brute import every_plan
from solvers.schedule import Items


def random_layer(draw: random.Random, i: int) -> tuple[LayerCost, dict[str, int]]:
    saved = draw.randrange(20, 200)
    options = tuple(
        OptionCost(
            f"tiles-{2**k}",
            saved_bytes=draw.randrange(saved),
            recompute_time=1.0,
            backward_transient_bytes=draw.randrange(40),
            backward_overlap_bytes=0,
            input_saved=True,
            output_saved=draw.random() < 0.3,
            tiles=2**k,
        )
        for k in range(1, draw.randrange(1, 4))
    )
    layer = LayerCost(
        f"b{i}",
        forward_time=1.0,
        backward_time=2.0,
        output_bytes=draw.randrange(1, 60),
        saved_bytes=saved,
        gradient_bytes=draw.randrange(30),
        backward_transient_bytes=draw.randrange(60),
        drop_transient_bytes=draw.randrange(200),
        first_transient_bytes=draw.randrange(30),
        again_transient_bytes=draw.randrange(30),
        beside_bytes=draw.randrange(30),
        output_saved=draw.random() < 0.3,
        options=options,
    )
    whole = layer.drop_transient_bytes or 0
    return layer, {option.name: draw.randrange(whole + 1) for option in options}


def test_one_figure_for_dropped_forwards_will_do() -> None:
    """No plan needs more than with it, though each way of keeping has a figure of its own."""
    draw = random.Random(15)
    lowered = exact = plans = 0
    for _ in range(12):
        drawn = [random_layer(draw, i) for i in range(3)]
        head, _ = random_layer(draw, 3)
        drawn.append((replace(head, recomputable=False, options=()), {}))
        layers = tuple(layer for layer, _ in drawn)
        drops = {layer.name: own for layer, own in drawn if own}
        given = draw.randrange(60)
        one = with_tiled_drops(layers, given, drops)
        least = [min([layer.drop_transient_bytes or 0, *own.values()]) for layer, own in drawn]
        is_least = [each.drop_transient_bytes for each in one] == least
        lowered += one != layers
        chain = CostGraph(one, input_bytes=given).to_chain()
        every = list(every_plan(chain))
        for items in draw.sample(every, min(len(every), 60)):
            schedule = Items(items)
            kept = schedule.options()
            true = [
                replace(
                    layer, drop_transient_bytes=own.get(kept.get(i, ""), layer.drop_transient_bytes)
                )
                for i, (layer, own) in enumerate(drawn)
            ]
            needed = CostGraph(tuple(true), input_bytes=given).to_chain().replay(schedule)
            said = chain.replay(schedule)
            assert said.peak_bytes >= needed.peak_bytes
            assert not is_least or said.peak_bytes == needed.peak_bytes
            exact += is_least
            plans += 1
    assert lowered >= 6
    assert exact > plans / 10


def test_an_input_that_is_not_held_leaves_it_as_it_is() -> None:
    layer, _ = random_layer(random.Random(1), 0)
    option = OptionCost("tiles-2", 1, 1.0, input_saved=False, tiles=2)
    layers = (replace(layer, options=(option,)),)
    assert with_tiled_drops(layers, 5, {"b0": {"tiles-2": 0}}) == layers


def test_names_of_modules() -> None:
    option = OptionCost("tiles-2", 1, 1.0, tiles=2, tiled=["mlp", "norm"])  # type: ignore[arg-type]
    assert option.tiled == ("mlp", "norm")
    wrong: Any
    for wrong in ("mlp", ["mlp", "mlp"], [""], [3]):
        with pytest.raises(InvalidCosts, match=r"tiled must be .*names of modules"):
            replace(option, tiled=wrong)
