"""The options of what runs in tiles: how many tiles are tried, and what each costs.

A block in tiles runs so in every forward of it, also in one that keeps nothing. So how much such a
forward needs depends on how the block is kept in the end, which the cost model does not know when
it drops it. `with_tiled_drops` says why one figure will do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from scheduler.common.errors import InvalidCosts
from scheduler.common.text import shown
from scheduler.costs.layer import LayerCost, OptionCost
from scheduler.costs.peaks import Peaks

LEAST_TOKENS = 1024
"""Of a tile: the products of fewer are too thin to keep a large GPU busy."""

Drops: TypeAlias = Mapping[str, int]
"""By an option's name: bytes that a forward needs that keeps nothing, above its output."""

_WORTH = 0.99
"""More tiles are tried as long as they lower the peak, or what is saved, by a hundredth."""


@dataclass(frozen=True)
class Tile:
    """A layer in so many tiles, as it was seen, and the time that this takes more, in ms."""

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
    """A layer, which is seen `whole`, in 2, 4, … tiles of at least so many of its tokens."""
    found: list[Tile] = []
    count, before = 2, whole
    while least is not None and tokens // count >= least:
        peaks = see(count)
        saves = peaks.saved_bytes < _WORTH * before.saved_bytes
        if not saves and _highest(peaks) > _WORTH * _highest(before):
            break
        more = peaks.forward_time + peaks.backward_time - whole.forward_time - whole.backward_time
        found.append(Tile(count, peaks, max(more, 0.0)))
        count, before = 2 * count, peaks
    return tuple(found)


def named(count: int, name: str = "") -> str:
    """The name of an option in so many tiles, that else has this one."""
    return f"{name}-tiles-{count}" if name else f"tiles-{count}"


def tiled_alone(layer: LayerCost) -> dict[str, int]:
    """The options of a layer that run it in tiles and do nothing else, with their numbers."""
    return {each.name: each.tiles for each in layer.options if each.tiles and not each.keeps}


def with_tiles(
    layer: LayerCost,
    whole: Peaks,
    tiles: Iterable[Tile],
    tiled: tuple[str, ...] = (),
    before: int = 0,
    root: int = 0,
    *,
    more: int = 0,
) -> LayerCost:
    """A layer with its tiles as options, too.

    `tiled`: of a block, the modules that run so. `more`: bytes that are live besides in every
    forward; `before`, `root`: see `Peaks.cost`.
    """
    mine = []
    for tile in tiles:
        seen = tile.peaks.with_more_in_forward(more)
        if seen.saved_bytes <= layer.saved_bytes:
            option = whole.option(named(tile.count), seen, tile.more_time)
            ending = seen.ending_bytes(before, root) if layer.recomputable else None
            mine.append(
                replace(option, tiles=tile.count, tiled=tiled, ending_transient_bytes=ending)
            )
    return replace(layer, options=(*layer.options, *mine))


def drops_of(tiles: Iterable[Tile]) -> Drops:
    """For `with_tiled_drops`."""
    return {named(tile.count): tile.peaks.drop_bytes or 0 for tile in tiles}


def with_tiled_drops(
    layers: Sequence[LayerCost], input_bytes: int, drops: Mapping[str, Drops]
) -> tuple[LayerCost, ...]:
    """The layers, whose forwards that keep nothing need what they need in their finest tiles.

    `drops` says for layers, and options of theirs, what such a forward needs above its output where
    the layer will be kept so; under its other options it needs what the layer itself says.

    It is there that a plan sets its peak that makes this exact, though a layer may be kept in
    coarser tiles, or whole. Let layer i be dropped in a run of a segment from s on, and t be the
    layer whose output's gradient is there: t >= i. Live are what is held for layers before s, the
    outputs of s-1, i-1 and i, what the forward needs, and that gradient. At the backward of i, kept
    as the plan keeps it, all that is held for layers before s is still there, and the outputs of
    s-1 and i-1, if whatever way of keeping holds the layer's input; and more gradients of
    parameters. So where the rest of that backward takes no less than the output of i, what the
    forward needs, and the largest output from i on, the backward is not below the forward, which
    then sets no peak. Where it does take less, the layer's forward counts as much as it needs.
    """
    saving = [layer.input_saved and _save_input(layer) for layer in layers if layer.recomputable]
    if not drops or not all(saving):
        return tuple(layers)
    inputs = [input_bytes, *(layer.output_bytes for layer in layers)]
    made: list[LayerCost] = []
    largest = 0
    for layer, given in zip(reversed(layers), reversed(inputs[:-1]), strict=True):
        largest = max(largest, layer.output_bytes)
        made.append(_with_drop(layer, given, largest, drops.get(layer.name, {})))
    return tuple(reversed(made))


def _save_input(layer: LayerCost) -> bool:
    return all(option.input_saved is not False for option in layer.options)


def _with_drop(layer: LayerCost, input_bytes: int, largest: int, drops: Drops) -> LayerCost:
    if not drops:
        return layer
    whole = layer.drop_transient_bytes
    assert whole is not None
    more = max(layer.first_transient_bytes, layer.again_transient_bytes)
    needed = [min(whole, *drops.values())]
    for option in (None, *layer.options):
        drop = whole if option is None else drops.get(option.name, whole)
        forward = layer.output_bytes + drop + more + largest
        if forward > _backward_bytes(layer, option, input_bytes):
            needed.append(drop)
    return replace(layer, drop_transient_bytes=max(needed))


def _backward_bytes(layer: LayerCost, option: OptionCost | None, input_bytes: int) -> int:
    """What is live in a backward beside what is held for other layers, and the layer's input."""

    def of_way(name: str) -> int:
        own = getattr(option, name, None)
        return int(getattr(layer, name) if own is None else own)

    outputs = 2 if layer.output_saved or of_way("output_saved") else 1
    held = layer.saved_bytes + outputs * layer.output_bytes + input_bytes + layer.gradient_bytes
    return held + of_way("backward_transient_bytes") - of_way("backward_overlap_bytes")


def _highest(peaks: Peaks) -> int:
    return max(peaks.forward_peak, peaks.backward_peak)
