"""Options that keep some results of a block while a module inside it runs in tiles.

In tiles is the module that holds most, an MLP: what is around it is kept or made again as under
other options, and its own part of the working memory is a tile's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from operator import le

from scheduler.costs.layer import LayerCost, OptionCost
from scheduler.costs.options.inside import Inside
from scheduler.costs.options.pareto import SeenOption, Wanted, wanted
from scheduler.costs.options.tiles import Drops, Tile, drops_of, named
from scheduler.costs.peaks import Peaks

MOST = 4
"""Sets of results for each number of tiles."""


@dataclass(frozen=True, slots=True)
class TiledOptions:
    """A block with `module` in tiles, and the ways to keep some of its results then."""

    module: str
    tile: Tile
    ways: tuple[SeenOption, ...]


def wanted_around(inside: Inside, peaks: Peaks) -> tuple[Wanted, ...]:
    """The sets of results worth keeping in a block that was seen with a module in tiles."""
    return wanted(inside, peaks.recompute_time, peaks.saved_bytes, MOST, by_hand=False)[0]


def with_both(
    layer: LayerCost, whole: Peaks, both: Iterable[TiledOptions], before: int, root: int
) -> LayerCost:
    """A layer with these as options, too, but those that another option is no worse than."""
    options = list(layer.options)
    for one in both:
        for option in _costs(one, whole, before, root):
            if option.saved_bytes <= layer.saved_bytes and not _is_beaten(option, options):
                options.append(option)
    return replace(layer, options=tuple(options))


def drops_of_both(both: Iterable[TiledOptions]) -> Drops:
    """For `with_tiled_drops`."""
    each = [(way.want.name, one.tile) for one in both for way in one.ways]
    return {
        named(tile.count, name): size for name, tile in each for size in drops_of([tile]).values()
    }


def _costs(one: TiledOptions, whole: Peaks, before: int, root: int) -> Iterator[OptionCost]:
    seen, count = one.tile.peaks, one.tile.count
    before = max(before, seen.again_peak - seen.forward_peak)
    for way in one.ways:
        option = way.cost(whole, before, root)
        yield replace(
            option,
            name=named(count, option.name),
            recompute_time=option.recompute_time + one.tile.more_time,
            tiles=count,
            tiled=(one.module,),
        )


def _is_beaten(option: OptionCost, others: Iterable[OptionCost]) -> bool:
    mine = _prices(option)
    return any(all(map(le, _prices(other), mine)) for other in others)


def _prices(option: OptionCost) -> tuple[float, ...]:
    backward = (option.backward_transient_bytes or 0) - (option.backward_overlap_bytes or 0)
    forward = option.forward_transient_bytes or 0, option.ending_transient_bytes or 0
    held = bool(option.input_saved), bool(option.output_saved)
    return option.saved_bytes, option.recompute_time, backward, *forward, *held
