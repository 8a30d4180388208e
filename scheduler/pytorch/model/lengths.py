"""How long a step is: tokens of its sequences, and the same batch at another length."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map

from scheduler.common.errors import UnsupportedModel
from scheduler.pytorch.observe.dispatch import tensors_of


class StepSize(NamedTuple):
    """A step's sequences, and the tokens in each, padding included."""

    sequences: int
    length: int


def step_size(inputs: Any) -> StepSize:
    """The size of a step by the token ids, labels and masks that its model is handed.

    Raises `UnsupportedModel` where there are none, or another tensor whose size is not the tokens'.
    """
    tensors = [tensor for tensor in tensors_of(inputs) if tensor.dim() > 1]
    ids = [tensor for tensor in tensors if _are_ids(tensor)]
    if not ids:
        raise UnsupportedModel(
            "plans by length are chosen by token ids, and the model is handed no integers of shape "
            "(sequences, tokens); CheckpointCallback and checkpoint_prepared follow any shape"
        )
    size = StepSize(max(each.size(0) for each in ids), max(each.size(1) for each in ids))
    for tensor in tensors:
        if not _are_ids(tensor) and not _of_tokens(tensor, size.length):
            raise UnsupportedModel(
                f"plans by length are chosen by token ids, and the model is also handed a tensor "
                f"of shape {tuple(tensor.shape)}, whose memory the tokens do not tell; "
                "CheckpointCallback and checkpoint_prepared follow any shape"
            )
    return size


def of_length(inputs: Any, length: int) -> Any:
    """A batch of the same sequences, cut or repeated to so many tokens; `step_size`'s errors."""
    now = step_size(inputs).length
    made: dict[int, torch.Tensor] = {}

    def stretched(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dim() < 2:
            return value
        if id(value) not in made:  # one tensor given twice stays one
            made[id(value)] = _stretched(value, now, length)
        return made[id(value)]

    return inputs if now == length else tree_map(stretched, inputs)


def _stretched(tensor: torch.Tensor, now: int, length: int) -> torch.Tensor:
    for dim in _token_dims(tensor, now):
        repeated = torch.cat([tensor] * -(-length // now), dim)
        # With both ends: a padded mask stays one, on whichever side its padding is.
        ends = repeated.narrow(dim, 0, length - 1), tensor.narrow(dim, now - 1, 1)
        tensor = torch.cat(ends, dim)
    return tensor


def _are_ids(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 2 and not tensor.is_floating_point()


def _of_tokens(tensor: torch.Tensor, length: int) -> bool:
    """Whether its size follows from the tokens: embeddings, positions, masks."""
    embedded = tensor.dim() == 3 and tensor.is_floating_point()
    return tensor.size(1 if embedded else -1) == length


def _token_dims(tensor: torch.Tensor, length: int) -> list[int]:
    # The last of embeddings is their width, whatever it is.
    last = 2 if tensor.dim() == 3 and tensor.is_floating_point() else tensor.dim()
    return [dim for dim in range(1, last) if tensor.size(dim) == length]
