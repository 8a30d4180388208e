"""Costs of a model of two stacks, an encoder's and a decoder's, in one chain.

What runs between the stacks is a layer of its own. The first block of each makes what the others
are handed beside their input, and is part of what comes before them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from scheduler.costs.costgraph import CostGraph
from scheduler.costs.layer import LayerCost
from scheduler.costs.options.pareto import SeenOption
from scheduler.costs.options.tiles import with_tiles
from scheduler.costs.peaks import Peaks
from scheduler.costs.waiting import Waiting, with_waiting
from scheduler.memory.gpus import Gpu
from scheduler.memory.simulate.options import block_options
from scheduler.memory.simulate.setting import Setting
from scheduler.memory.simulate.step import block, head, rehearse, run_once
from scheduler.memory.simulate.t5 import t5_between, t5_embed
from scheduler.memory.simulate.tiles import head_tiles


def stacked(at: Setting, machine: Gpu, *, options: bool, least: int | None) -> CostGraph:
    """The chain: both stacks but for their first blocks, and what is around them."""
    shape = at.shape
    below = sum(not kind.causal for kind in shape.blocks)
    encoder, decoder = at.of(shape.blocks[0]), at.of(shape.blocks[-1])
    end = run_once(head, decoder, machine, scalar=True)
    bias = shape.heads * at.sequence**2 * at.stream
    held = _held(at) + end.output_bytes + bias
    start = run_once(t5_embed, encoder, machine)
    start = replace(
        start,
        input_bytes=held,
        input_saved=True,
        # What all blocks are handed is there throughout, with the chain's input.
        saved_bytes=start.saved_bytes - bias,
        forward_peak=start.forward_peak - bias,
    )
    between = run_once(t5_between, decoder, machine)
    kinds = {
        (one.shape, last): _Kind.of(replace(one, last=last), machine, options=options)
        for one in (encoder, decoder)
        for last in (False, True)
    }
    early = max(a.peaks.more_before(b.peaks) for a in kinds.values() for b in kinds.values())
    # What the tables gave, which a stack's own code refers to, where that is dropped at once.
    local = at.tokens * shape.width * at.stream * bool(shape.dropout)
    last = end.cost("head", recomputable=False)
    layers = [with_tiles(last, end, head_tiles(decoder, machine, least, end))]
    for i, kind in reversed(list(enumerate(shape.blocks))):
        if i in (0, below):
            name, peaks = ("before decoder.block.1", between) if i else ("embedding", start)
            layers.append(peaks.cost(name, is_first=not i, recomputable=False))
            continue
        name = f"decoder.block.{i - below}" if kind.causal else f"encoder.block.{i}"
        one = kinds[kind, i in (below - 1, shape.layers - 1)]
        layers.append(one.cost(name, local, early, end.output_bytes))
    # The last block of a stack is the first to make gradients of what all of them are handed: of
    # the bias, and in decoder blocks of what the encoder has made.
    waiting = [
        Waiting(below - 1, 0, bias),
        Waiting(shape.layers - 1, below, bias + start.output_bytes),
    ]
    return CostGraph(
        with_waiting(layers[::-1], held, waiting),
        input_bytes=held,
        name=shape.name,
        time_unit="ms",
    )


def _held(at: Setting) -> int:
    """Token ids and labels; with padding, its mask, and the one that it is turned into."""
    if not at.padding_mask:
        return 16 * at.tokens
    return 24 * at.tokens + at.batch * at.sequence**2 * (at.stream if at.eager else 1)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of block: how it ran on paper, and its options."""

    peaks: Peaks
    ways: list[SeenOption]

    @classmethod
    def of(cls, at: Setting, machine: Gpu, *, options: bool) -> _Kind:
        """Run it on paper."""
        seen = rehearse(block, at, machine)
        return cls(seen.peaks, block_options(at, machine, seen, seen) if options else [])

    def cost(self, name: str, first: int, *again: int) -> LayerCost:
        """Its costs, with more bytes in its forwards as `Peaks.cost` takes them."""
        one = self.peaks.cost(name, first, *again)
        return replace(one, options=tuple(way.cost(self.peaks, *again) for way in self.ways))
