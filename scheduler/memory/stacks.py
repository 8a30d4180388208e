"""Costs of a model of two stacks, an encoder's and a decoder's, in one chain.

What runs between the stacks is a layer of its own. The first block of each makes what the others
are handed beside their input, and is part of what comes before them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from scheduler.costs.costgraph import CostGraph
from scheduler.costs.layer import LayerCost
from scheduler.costs.options.pareto import SeenOption
from scheduler.costs.peaks import Peaks
from scheduler.memory.gpus import Gpu
from scheduler.memory.simulate.options import block_options
from scheduler.memory.simulate.setting import Setting
from scheduler.memory.simulate.step import Forward, block, flops_share, head, rehearse, run
from scheduler.memory.simulate.t5 import t5_between, t5_embed
from scheduler.memory.simulate.tensors import Paper


def stacked(at: Setting, machine: Gpu, *, options: bool) -> CostGraph:
    """The chain: both stacks but for their first blocks, and what is around them."""
    encoder, decoder = at.of(at.shape.blocks[0]), at.of(at.shape.blocks[-1])
    ending = rehearse(head, decoder, machine, scalar=True).peaks
    end = replace(ending, drop_peak=None, recompute_time=ending.forward_time)
    bias = at.shape.heads * at.sequence**2 * at.stream
    mask = at.batch * at.sequence**2 * (at.stream if at.eager else 1) * at.padding_mask
    held = 8 * at.tokens * (3 if at.padding_mask else 2) + end.output_bytes + bias + mask
    start = _around(t5_embed, encoder, machine)
    start = replace(
        start,
        input_bytes=held,
        input_saved=True,
        saved_bytes=start.saved_bytes - bias,
        forward_peak=start.forward_peak - bias,
    )
    between = _around(t5_between, decoder, machine)
    below = sum(not shape.causal for shape in at.shape.blocks)
    counts = {"encoder": below, "decoder": at.shape.layers - below}
    kinds = {
        (name, last): _Kind.of(replace(one, last=last), machine, options=options)
        for name, one in (("encoder", encoder), ("decoder", decoder))
        for last in (False, True)
    }
    early = max(a.peaks.more_before(b.peaks) for a in kinds.values() for b in kinds.values())
    # What the tables gave, which the stack's own code refers to, and the first block has dropped.
    local = at.tokens * at.shape.width * at.stream * bool(at.shape.dropout)
    above, layers = end.gradient_bytes, [end.cost("head", recomputable=False)]
    for name, around in (("decoder", between), ("encoder", start)):
        count = counts[name]
        for i in range(count - 1, 0, -1):
            kind = kinds[name, i == count - 1]
            spare = kind.peaks.spare_bytes + above >= local + end.output_bytes
            layers.append(kind.cost(f"{name}.block.{i}", early + (0 if spare else local)))
            above += kind.peaks.gradient_bytes
        called = "before decoder.block.1" if name == "decoder" else "embedding"
        layers.append(around.cost(called, recomputable=False))
        above += around.gradient_bytes
    return CostGraph(
        tuple(reversed(layers)), input_bytes=held, name=at.shape.name, time_unit="ms"
    )


@dataclass(frozen=True, slots=True)
class _Kind:
    peaks: Peaks
    ways: list[SeenOption]

    @classmethod
    def of(cls, at: Setting, machine: Gpu, *, options: bool) -> _Kind:
        seen = rehearse(block, at, machine)
        return cls(seen.peaks, block_options(at, machine, seen, seen) if options else [])

    def cost(self, name: str, more: int) -> LayerCost:
        """Its costs, with `more` bytes in every forward."""
        one = self.peaks.with_more_in_forward(more).cost(name)
        return replace(one, options=tuple(way.cost(self.peaks, more) for way in self.ways))


def _around(forward: Forward, at: Setting, machine: Gpu) -> Peaks:
    """What cannot be run again, seen on paper."""
    seen = run(Paper(machine, flops_share=flops_share(at, machine)), forward, at)
    return replace(seen.peaks, drop_peak=None, recompute_time=seen.peaks.forward_time)
