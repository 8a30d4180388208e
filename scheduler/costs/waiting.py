"""Gradients that wait: made in the backward of one layer, used up in that of another below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from scheduler.costs.layer import LayerCost


@dataclass(frozen=True)
class Waiting:
    """`size` bytes, by the places of the two layers in the chain; `taker` is always kept."""

    maker: int
    taker: int
    size: int


def with_waiting(
    layers: Sequence[LayerCost], input_bytes: int, all_waiting: Iterable[Waiting]
) -> tuple[LayerCost, ...]:
    """Layers that hold what waits from its making to its use, which count it as a gradient.

    The taker's backward frees it: of what it adds to the gradients that stay it is taken off. The
    rest becomes a part of the taker's saved set: that is there until the taker's backward, as it
    should, and too early until the maker's. What has its backward before that stays below the
    count by as much, and so do first forwards.
    """
    left = [layer.gradient_bytes for layer in layers]
    used, saved, early = ([0] * len(layers) for _ in range(3))
    for each in all_waiting:
        size = min(each.size, left[each.maker])
        freed = min(size, left[each.taker])
        left[each.taker] -= freed
        used[each.taker] += freed
        size -= freed
        left[each.maker] -= size
        saved[each.taker] += size
        for i in range(each.maker + 1, len(layers)):
            early[i] += size
    inputs = [input_bytes, *(layer.output_bytes for layer in layers)]
    counted = map(_counted_later, layers, inputs, left, used, saved, early)
    return tuple(map(_without, counted, accumulate(saved)))


def _without(layer: LayerCost, size: int) -> LayerCost:
    """The layer with so much less in its first forward."""
    if layer.recomputable:
        less = min(size, layer.first_transient_bytes)
        return replace(layer, first_transient_bytes=layer.first_transient_bytes - less)
    # It has no other, and the size of what an option leaves is not that of the layer's.
    less = min(size, layer.forward_transient_bytes) if not layer.options else 0
    return replace(layer, forward_transient_bytes=layer.forward_transient_bytes - less)


def _counted_later(
    layer: LayerCost, input_bytes: int, gradients: int, used: int, saved: int, early: int
) -> LayerCost:
    if gradients == layer.gradient_bytes and not saved and not early:
        return layer
    held = layer.saved_bytes + saved + layer.output_bytes * (2 if layer.output_saved else 1)
    most = min(held, input_bytes + gradients)
    above = layer.backward_transient_bytes - layer.backward_overlap_bytes + used - early
    options = tuple(
        replace(
            option,
            backward_overlap_bytes=None
            if option.backward_overlap_bytes is None
            else min(option.backward_overlap_bytes, most),
        )
        for option in layer.options
    )
    return replace(
        layer,
        saved_bytes=layer.saved_bytes + saved,
        gradient_bytes=gradients,
        backward_transient_bytes=max(above, 0),
        backward_overlap_bytes=min(max(-above, 0), most),
        options=options,
    )
