"""Blocks and what is around them, as they were seen, as the layers of a chain."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from scheduler.costs.layer import LayerCost
from scheduler.costs.options.tiles import with_tiled_drops, with_tiles
from scheduler.costs.waiting import Waiting, with_waiting
from scheduler.pytorch.model.call import before
from scheduler.pytorch.model.calls import CalledBlock
from scheduler.pytorch.profiling.blocks import SeenBlock
from scheduler.pytorch.profiling.marks import Parts
from scheduler.pytorch.profiling.tiles import Tiles


@dataclass(frozen=True)
class Sight:
    """All that was seen of a step: what is around the blocks, the blocks, the head in tiles.

    `casts`: bytes of what autocast has cast, and keeps until the forward is over.
    """

    model: nn.Module
    blocks: list[CalledBlock]
    parts: Parts
    seen: list[SeenBlock]
    casts: int
    tiles: Tiles

    def layers(self) -> tuple[LayerCost, ...]:
        """Blocks and parts in the order in which they run."""
        # A block that holds its input as it is kept holds it in a checkpoint, too.
        both = reversed(list(zip(self.blocks, self.seen, strict=True)))
        first = {block.run: seen.kinds for block, seen in both}
        free = {run for run, kinds in first.items() if not all(k.input_saved for k in kinds)}
        local = [each.nbytes + _not_held(each.inputs, free) for each in self.parts.local]
        nothing = self._with_local(free, [[0] * len(seen.kinds) for seen in self.seen])
        return self._with_local(free, self._that_count(local, nothing))

    def _with_local(self, free: set[int], local_bytes: list[list[int]]) -> tuple[LayerCost, ...]:
        """The layers with so much more in each block's forward, whole and in tiles."""
        parts, layers = self.parts, list[LayerCost]()
        places: list[int] = []  # of the parts

        def add_part(name: str) -> None:
            peaks = parts.peaks[len(places)]
            more = self.casts if places else 0
            more += _not_held(parts.inputs[len(places)], free)
            places.append(len(layers))
            if peaks is not None:
                name = f"({name})" if name in dict(self.model.named_modules()) else name
                cost = peaks.with_more_in_forward(more).cost(name, recomputable=False)
                if len(places) == len(parts.peaks):
                    cost = with_tiles(cost, peaks, self.tiles.of_head, more)
                layers.append(cost)

        last_use: dict[int, int] = {}  # of each side: the last block that it is handed to
        drops: dict[str, dict[str, int]] = {}
        kinds = {peaks for seen in self.seen for peaks in seen.kinds}
        for block, seen, local in zip(self.blocks, self.seen, local_bytes, strict=True):
            peaks, ways = seen.peaks, seen.ways
            if block.run == len(places):
                add_part(before(block.name) if places else "embedding")
            more = local[0] + self.casts + max(peaks.more_before(last) for last in kinds)
            more += parts.loss_bytes  # what the backward began with is there while it runs again
            layer = peaks.with_more_in_forward(more).cost(block.name)
            if ways is not None:
                layer = replace(layer, options=tuple(way.cost(peaks, more) for way in ways.ways))
            tiles = [
                replace(tile, peaks=tile.peaks.with_more_in_forward(own - local[0]))
                for tile, own in zip(seen.tiles.tiles, local[1:], strict=True)
            ]
            layer = with_tiles(layer, peaks, tiles, more, seen.tiles.modules)
            drops[block.name] = {
                f"tiles-{tile.count}": (tile.peaks.drop_peak or 0) + more - layer.output_bytes
                for tile in tiles
            }
            last_use |= dict.fromkeys(block.sides.values(), len(layers))
            layers.append(layer)
        add_part("loss" if isinstance(self.model, nn.Sequential) else "head")
        waiting = [Waiting(places[a], places[b], size) for a, b, size in parts.freed]
        made_by = [(maker, *parts.sides[side]) for side, maker in last_use.items()]
        waiting += [Waiting(maker, places[part], size) for maker, part, size in made_by if part]
        costs = with_waiting(layers, parts.held_bytes, waiting)
        return with_tiled_drops(costs, parts.held_bytes, drops)

    def _that_count(self, local_bytes: list[int], layers: tuple[LayerCost, ...]) -> list[list[int]]:
        """By how much each block's forward is higher for what the model's own code still refers to.

        That is there only while the blocks run forward for the first time, and matters only where
        that forward could set the peak: the backward of the same block comes with the gradients
        that those above it have left. Where it could, it is on top of every forward of the block:
        the safe side. `layers` are those without.
        """
        above, left = 0, {}
        for layer in reversed(layers):
            left[layer.name] = above
            above += layer.gradient_bytes
        loss = self.parts.loss_bytes
        return [
            [
                0 if peaks.spare_bytes + left[block.name] >= local + loss else local
                for peaks in seen.kinds
            ]
            for block, seen, local in zip(self.blocks, self.seen, local_bytes, strict=True)
        ]


def _not_held(inputs: list[tuple[int, int]], free: set[int]) -> int:
    return sum(size for run, size in inputs if run in free)
