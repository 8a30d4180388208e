"""The head in tiles: the step around the blocks is seen once for each number of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from scheduler.common.errors import UnsupportedModel
from scheduler.costs.options.tiles import Tile, find_tiles
from scheduler.costs.peaks import Peaks
from scheduler.pytorch.tiles.head import chunked_head


@dataclass(frozen=True)
class Tiles:
    """The head in tiles; `refused` is why it must run whole, where it must."""

    of_head: tuple[Tile, ...] = ()
    refused: str = ""


def see_tiles(
    model: nn.Module, tokens: int, least: int | None, whole: Peaks, see: Callable[[], Peaks]
) -> Tiles:
    """See the head of a model in tiles; `see` runs a step around the blocks, as for `whole`."""

    def tiled(count: int) -> Peaks:
        with chunked_head(model, count):
            return see()

    try:
        return Tiles(find_tiles(tokens, least, whole, tiled))
    except UnsupportedModel as error:
        return Tiles(refused=str(error))
