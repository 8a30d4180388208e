"""A training step of a model: how it is called and differentiated, how long it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_map

from scheduler.common.errors import UnsupportedModel
from scheduler.common.text import shown
from scheduler.export.standalone.caches import check_no_cache, hand_no_caches
from scheduler.export.standalone.state import Snapshot
from scheduler.pytorch.model.fake import faked
from scheduler.pytorch.model.rng import unmoved
from scheduler.pytorch.model.settings import no_skips
from scheduler.pytorch.observe.dispatch import tensors_of


@contextmanager
def prepared(
    model: nn.Module, inputs: Any, *, fake: bool = False
) -> Iterator[tuple[nn.Module, Any]]:
    """Inside, steps can be run that leave the model as it was; gives what to run.

    Blocks that the model would leave out at random (LayerDrop) all run.

    `fake`: stand-ins without memory. Gradients are on.
    """
    check_no_cache(*arguments_of(inputs), UnsupportedModel)
    with ExitStack() as stack:
        if fake:
            model, inputs = stack.enter_context(faked(model, inputs))
        stack.enter_context(untouched(model, inputs))
        stack.enter_context(no_skips(model))
        # Whoever calls may be under `torch.no_grad`.
        stack.enter_context(torch.enable_grad())
        try:
            yield model, inputs
        except IndexError as error:
            raise UnsupportedModel(
                f"{type(model).__name__} does not run on this batch ({error}): a token or a label "
                "is outside of its vocabulary, or the sequence is longer than its positions"
            ) from error


def device_of(model: nn.Module, inputs: Any) -> torch.device:
    """Device of the model, or of its inputs if it has no parameters."""
    tensors = [*model.parameters(), *tensors_of(inputs)]
    return next((t.device for t in tensors), torch.device("cpu"))


@contextmanager
def untouched(model: nn.Module, inputs: Any) -> Iterator[None]:
    """Put back gradients, the random state, and what a forward changes on the model and its inputs.

    Raises `UnsupportedModel` where that is a parameter, which is not copied, or has a graph.
    """
    gradients = [(tensor, tensor.grad) for tensor in gradient_holders(model, inputs)]
    with unmoved({tensor.device for tensor, _ in gradients}):
        before = Snapshot([model, inputs], whole=True)
        try:
            yield
        finally:
            lost = before.lost
            before.put()
            for tensor, gradient in gradients:
                tensor.grad = gradient
        if lost is not None:
            raise UnsupportedModel(
                f"a forward of {type(model).__name__} changes {lost} in place, which a "
                "recomputation would do again and which is not put back; make a small buffer of "
                "it, or a new tensor each time"
            )


@contextmanager
def without_caches(model: nn.Module, names: Iterable[str]) -> Iterator[None]:
    """Inside, blocks are handed no generation cache, as an applied plan has it."""
    blocks = {name: model.get_submodule(name) for name in names}
    hooks = hand_no_caches(model, blocks, UnsupportedModel, always=True)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def clear_gradients(model: nn.Module, inputs: Any) -> None:
    """Set the gradients of the parameters, and of inputs that have one, to None."""
    for tensor in gradient_holders(model, inputs):
        tensor.grad = None


def gradient_holders(model: nn.Module, inputs: Any) -> list[torch.Tensor]:
    """Parameters, and inputs that require a gradient."""
    given = [t for t in tensors_of(inputs) if t.is_leaf and t.requires_grad]
    return [*model.parameters(), *given]


def call_model(model: nn.Module, inputs: Any) -> Any:
    """What a model returns for a tensor, a tuple of arguments, or a dict of keyword arguments."""
    args, kwargs = arguments_of(inputs)
    return model(*args, **kwargs)


def arguments_of(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and the keyword arguments that a model's inputs stand for."""
    if isinstance(inputs, torch.Tensor):
        return (inputs,), {}
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs), {}
    if hasattr(inputs, "keys"):  # a dict, or a tokenizer's batch
        return (), dict(inputs)
    raise UnsupportedModel(
        "inputs must be a tensor, a tuple of arguments or a dict of keyword arguments, "
        f"got {type(inputs).__name__}"
    )


def check_loss(loss_fn: object) -> None:
    """Raise `UnsupportedModel` where something else is in the place of `loss_fn`."""
    if loss_fn is None or callable(loss_fn):
        return
    budget = isinstance(loss_fn, (int, float, str)) and not isinstance(loss_fn, bool)
    name = "budget" if isinstance(loss_fn, str) else "budget_gb"
    hint = f"; for a budget write {name}={loss_fn!r}" if budget else ""
    raise UnsupportedModel(
        f"loss_fn, the third argument, must be a function of the output, got {shown(loss_fn)}{hint}"
    )


def loss_of(output: Any, loss_fn: Callable[[Any], Any] | None) -> torch.Tensor:
    """The scalar to differentiate: ``loss_fn(output)``, or the output's own ``loss``."""
    if loss_fn is not None:
        loss = loss_fn(output)
    elif isinstance(output, dict) and "loss" in output:
        loss = output["loss"]
    else:
        loss = getattr(output, "loss", None)
    if not isinstance(loss, torch.Tensor):
        raise UnsupportedModel(
            "no loss: give loss_fn=..., or inputs (such as labels) for which the model's output "
            "has a .loss"
        )
    if loss.numel() != 1:
        raise UnsupportedModel(f"the loss must be a scalar, got shape {tuple(loss.shape)}")
    return loss


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
