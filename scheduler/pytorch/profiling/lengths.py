"""The costs of a model's step at several lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from scheduler.common.errors import UnsupportedModel
from scheduler.costs.bylength import CostsByLength, check_lengths
from scheduler.memory.gpus import Gpu
from scheduler.pytorch.model.step import of_length, step_size
from scheduler.pytorch.observe.clock import Roofline
from scheduler.pytorch.profiling.profile import profile


def profile_by_length(
    model: nn.Module,
    inputs: Any,
    lengths: Iterable[int],
    loss_fn: Callable[[Any], Any] | None = None,
    blocks: str | Iterable[str] = "auto",
    *,
    options: bool = False,
    tiles: bool | int = False,
    fake: bool | None = None,
    gpu: str | Gpu | None = None,
    roofline: Roofline | None = None,
) -> CostsByLength:
    """`profile` at each of several lengths, for `scheduler.solve_by_length`.

    Each length is profiled by itself: no size is interpolated, so that a peak is exact at each.

    Parameters
    ----------
    model, loss_fn, blocks, options, tiles, fake, gpu, roofline
        As for `profile`. With ``fake=True`` no length takes memory.
    inputs
        A batch, whose token ids, labels and masks are cut or repeated to each length; or a function
        of the length that makes one.
    lengths
        Tokens in each of its sequences, increasing.

    Returns
    -------
    CostsByLength
        A dict from lengths to costs.

    Raises
    ------
    UnsupportedModel, InvalidCosts
        As of `profile`; or there are no lengths, they do not increase, the batch has no token ids,
        or it has tensors that are not as long as these.
    """
    blocks = blocks if isinstance(blocks, str) else list(blocks)
    ways: dict[str, Any] = {"options": options, "tiles": tiles, "fake": fake}
    ways |= {"gpu": gpu, "roofline": roofline}
    found, sequences = {}, set()
    for length in check_lengths(lengths):
        batch = inputs(length) if callable(inputs) else of_length(inputs, length)
        size = step_size(batch)
        if size.length != length:
            raise UnsupportedModel(
                f"the batch made for length {length} has sequences of {size.length} tokens; make "
                "it as long as it is asked for"
            )
        sequences.add(size.sequences)
        found[length] = profile(model, batch, loss_fn, blocks, **ways)
    return CostsByLength(found, min(sequences))
