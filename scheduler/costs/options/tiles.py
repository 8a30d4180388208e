"""The options of a head that runs in tiles: how many tiles are tried, and what each costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from scheduler.common.errors import InvalidCosts
from scheduler.common.text import shown
from scheduler.costs.layer import LayerCost, OptionCost
from scheduler.costs.peaks import Peaks

LEAST_TOKENS = 1024
"""Of a tile: the products of fewer are too thin to keep a large GPU busy."""

_WORTH = 0.99
"""More tiles are tried as long as they lower the head's peak by a hundredth."""


@dataclass(frozen=True)
class Tile:
    """The head in so many tiles, as it was seen, and the time that this takes more, in ms."""

    count: int
    peaks: Peaks
    more_time: float


def least_tokens(tiles: bool | int) -> int | None:
    """What `tiles` asks for: the least tokens of a tile; None: no tiles."""
    if isinstance(tiles, bool):
        return LEAST_TOKENS if tiles else None
    if not isinstance(tiles, int) or tiles < 1:
        raise InvalidCosts(
            f"tiles must be True, False or the least tokens of a tile, got {shown(tiles)}"
        )
    return tiles


def find_tiles(
    tokens: int, least: int | None, whole: Peaks, see: Callable[[int], Peaks]
) -> tuple[Tile, ...]:
    """The head, which is seen `whole`, in 2, 4, … tiles of at least so many of its tokens."""
    found: list[Tile] = []
    count, before = 2, _highest(whole)
    while least is not None and tokens // count >= least:
        peaks = see(count)
        if _highest(peaks) > _WORTH * before:
            break
        more = peaks.forward_time + peaks.backward_time - whole.forward_time - whole.backward_time
        found.append(Tile(count, peaks, max(more, 0.0)))
        count, before = 2 * count, _highest(peaks)
    return tuple(found)


def with_tiles(layer: LayerCost, whole: Peaks, tiles: Iterable[Tile], more: int) -> LayerCost:
    """The head with its tiles as options, with `more` bytes in every forward."""
    return replace(layer, options=tuple(_options(layer, whole, tiles, more)))


def _options(
    layer: LayerCost, whole: Peaks, tiles: Iterable[Tile], more: int
) -> Iterator[OptionCost]:
    for tile in tiles:
        seen = tile.peaks.with_more_in_forward(more)
        if seen.saved_bytes <= layer.saved_bytes:
            option = whole.option(f"tiles-{tile.count}", seen, tile.more_time)
            yield replace(option, tiles=tile.count)


def _highest(peaks: Peaks) -> int:
    return max(peaks.forward_peak, peaks.backward_peak)
