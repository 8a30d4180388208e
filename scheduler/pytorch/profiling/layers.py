"""Blocks and what is around them, as they were seen, as the layers of a chain."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from scheduler.costs.layer import LayerCost
from scheduler.costs.options.both import drops_of_both, with_both
from scheduler.costs.options.tiles import Drops, drops_of, with_tiled_drops, with_tiles
from scheduler.costs.waiting import Waiting, with_waiting
from scheduler.pytorch.model.call import before
from scheduler.pytorch.model.calls import CalledBlock
from scheduler.pytorch.profiling.blocks import SeenBlock
from scheduler.pytorch.profiling.marks import Parts
from scheduler.pytorch.profiling.tiles import Tiles


@dataclass(frozen=True)
class Sight:
    """All that was seen of a step: what is around the blocks, the blocks, the head in tiles.

    `held`: bytes that are there throughout; `casts`: of what autocast has cast, and keeps until the
    forward is over.
    """

    model: nn.Module
    blocks: list[CalledBlock]
    parts: Parts
    seen: list[SeenBlock]
    held: int
    casts: int
    tiles: Tiles

    def layers(self) -> tuple[LayerCost, ...]:
        """Blocks and parts in the order in which they run."""
        # A block that holds its input as it is kept holds it in a checkpoint, too.
        both = reversed(list(zip(self.blocks, self.seen, strict=True)))
        first = {block.run: seen.kinds for block, seen in both}
        free = {run for run, kinds in first.items() if not all(k.input_saved for k in kinds)}
        parts, layers = self.parts, list[LayerCost]()
        places: list[int] = []  # of the parts

        def add_part(name: str) -> None:
            peaks = parts.peaks[len(places)]
            more = self.casts if places else 0
            more += _not_held(parts.inputs[len(places)], free)
            places.append(len(layers))
            if peaks is not None:
                number = len(places) - 1
                if number in parts.again and parts.again[number] not in free:
                    # There already; only its gradient is made, as the peaks of its backward say.
                    peaks = replace(peaks, output_bytes=0, output_saved=False)
                elif number in parts.passed and number not in free:
                    # One tensor, which the layers on both sides may hold.
                    peaks = replace(peaks, output_bytes=0, output_saved=False, input_saved=True)
                name = f"({name})" if name in dict(self.model.named_modules()) else name
                if not layers:
                    peaks = replace(peaks, input_bytes=self.held)
                peaks = peaks.with_more_in_forward(more)
                cost = peaks.cost(name, is_first=not layers, recomputable=False)
                if len(places) == len(parts.peaks):
                    cost = with_tiles(cost, peaks, self.tiles.of_head, more=more)
                layers.append(cost)

        last_use: dict[int, int] = {}  # of each side: the last block that it is handed to
        drops: dict[str, Drops] = {}
        kinds = {peaks for seen in self.seen for peaks in seen.kinds}
        for block, seen, local, beside in zip(
            self.blocks, self.seen, parts.local, parts.beside, strict=True
        ):
            if block.run == len(places):
                add_part(before(block.name) if places else "embedding")
            first_bytes = local.nbytes + _not_held(local.inputs, free) + self.casts
            again = max(seen.peaks.more_before(last) for last in kinds), parts.loss_bytes
            # It may be expanded: then its gradient, and the block's own copy, are more than it is.
            read = layers[-1].output_bytes if layers else self.held
            peaks = replace(seen.peaks, input_bytes=read)
            layer = peaks.cost(block.name, first_bytes, *again)
            layer = replace(layer, beside_bytes=beside)
            if seen.ways is not None:
                options = tuple(way.cost(peaks, *again) for way in seen.ways.ways)
                layer = replace(layer, options=options)
            tiles = seen.tiles
            layer = with_tiles(layer, peaks, tiles.tiles, tiles.modules, *again)
            layer = with_both(layer, peaks, tiles.both, *again)
            drops[block.name] = {**drops_of(tiles.tiles), **drops_of_both(tiles.both)}
            last_use |= dict.fromkeys(block.sides.values(), len(layers))
            layers.append(layer)
        add_part("loss" if isinstance(self.model, nn.Sequential) else "head")
        waiting = [Waiting(places[a], places[b], size) for a, b, size in parts.freed]
        made_by = [(maker, *parts.sides[side]) for side, maker in last_use.items()]
        waiting += [Waiting(maker, places[part], size) for maker, part, size in made_by if part]
        costs = with_waiting(layers, self.held, waiting)
        return with_tiled_drops(costs, self.held, drops)


def _not_held(inputs: list[tuple[int, int]], free: set[int]) -> int:
    return sum(size for run, size in inputs if run in free)
