"""Options of the head that run it in tiles: the step around the blocks is seen once for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from torch import nn

from scheduler.common.errors import UnsupportedModel
from scheduler.costs.layer import LayerCost, OptionCost
from scheduler.costs.peaks import Peaks
from scheduler.pytorch.tiles.head import chunked_head

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


@dataclass(frozen=True)
class Tiles:
    """The head in tiles; `refused` is why it must run whole, where it must."""

    of_head: tuple[Tile, ...] = ()
    refused: str = ""

    def options(self, whole: Peaks, layer: LayerCost, more: int) -> Iterator[OptionCost]:
        """Of a head that costs `layer`, with `more` bytes in every forward."""
        for tile in self.of_head:
            seen = tile.peaks.with_more_in_forward(more)
            if seen.saved_bytes <= layer.saved_bytes:
                option = whole.option(f"tiles-{tile.count}", seen, tile.more_time)
                yield replace(option, tiles=tile.count)


def see_tiles(
    model: nn.Module, tokens: int, least: int, whole: Peaks, see: Callable[[], Peaks]
) -> Tiles:
    """See the head of a model in 2, 4, … tiles of at least so many of its tokens.

    `see` runs a step around the blocks, as it ran for `whole`.
    """
    found: list[Tile] = []
    count, before = 2, max(whole.forward_peak, whole.backward_peak)
    while tokens // count >= least:
        try:
            with chunked_head(model, count):
                peaks = see()
        except UnsupportedModel as error:
            return Tiles(refused=str(error))
        peak = max(peaks.forward_peak, peaks.backward_peak)
        if peak > _WORTH * before:
            break
        time = peaks.forward_time + peaks.backward_time
        more = max(time - whole.forward_time - whole.backward_time, 0.0)
        found.append(Tile(count, peaks, more))
        count, before = 2 * count, peak
    return Tiles(tuple(found))
