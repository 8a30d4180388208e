"""Gradients that wait: made in the backward of one layer, used up in that of another below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scheduler.costs.layer import LayerCost, OptionCost


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
    rest is there in the backwards from the maker's to the taker's, and while what is between them
    runs again.
    """
    left = [layer.gradient_bytes for layer in layers]
    backward, again = ([0] * len(layers) for _ in range(2))
    for each in all_waiting:
        size = min(each.size, left[each.maker])
        freed = min(size, left[each.taker])
        left[each.taker] -= freed
        backward[each.taker] += freed
        size -= freed
        left[each.maker] -= size
        for i in range(each.taker, each.maker + 1):
            backward[i] += size
        for i in range(each.taker + 1, each.maker):
            again[i] += size
    inputs = [input_bytes, *(layer.output_bytes for layer in layers)]
    return tuple(map(_with_more, layers, inputs, left, backward, again))


def _with_more(
    layer: LayerCost, input_bytes: int, gradients: int, backward: int, again: int
) -> LayerCost:
    """A layer with other gradients that stay, and with more in its backward and when run again."""
    if gradients == layer.gradient_bytes and not backward and not again:
        return layer
    held = layer.saved_bytes + layer.output_bytes * (2 if layer.output_saved else 1)
    most = min(held, input_bytes + gradients)

    def more(cost: LayerCost | OptionCost) -> dict[str, Any]:
        working, overlap = cost.backward_transient_bytes, cost.backward_overlap_bytes
        found: dict[str, Any] = {}
        if working is not None or overlap is not None:
            above = layer.backward_transient_bytes if working is None else working
            above -= layer.backward_overlap_bytes if overlap is None else overlap
            above += backward
            found["backward_transient_bytes"] = max(above, 0)
            found["backward_overlap_bytes"] = min(max(-above, 0), most)
        ending = cost.ending_transient_bytes
        if ending is None and again:
            ending = cost.forward_transient_bytes
        found["ending_transient_bytes"] = None if ending is None else ending + again
        return found

    return replace(
        layer,
        gradient_bytes=gradients,
        again_transient_bytes=layer.again_transient_bytes + again,
        options=tuple(replace(option, **more(option)) for option in layer.options),
        **more(layer),
    )
