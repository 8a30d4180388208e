"""A head that hands its loss to the chunks: found, put in its place, taken away."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from scheduler.common.errors import UnsupportedModel
from scheduler.common.text import did_you_mean
from scheduler.pytorch.model.fsdp import is_unit
from scheduler.pytorch.model.replace import RemovableHandle, Replaced, check_unplanned
from scheduler.pytorch.model.wrappers import bare
from scheduler.pytorch.tiles.deferred import defer


def chunked_head(model: nn.Module, n: int, head: str | None = None) -> RemovableHandle:
    """Compute the projection to the vocabulary and its cross entropy in chunks of tokens.

    In training, the logits are never there as a whole: the head hands on a stand-in for them, and
    ``F.cross_entropy`` (or ``nn.CrossEntropyLoss``), in the model or outside of it, computes logits
    and gradients chunk by chunk. Between head and loss they may be cast, scaled, capped by tanh,
    and their tokens sliced and arranged anew; whatever else reads them raises `UnsupportedModel`.
    In eval mode, and without gradients, the model is as before.

    Loss and gradients are equal to those of the whole to rounding, not bitwise.

    Parameters
    ----------
    model
        A Hugging Face model, or any other; inside DistributedDataParallel too.
    n
        The number of chunks, as even as the step's tokens allow.
    head
        The name of the `nn.Linear` that makes the logits. None: the model's output embeddings;
        where it has no such method, its last `nn.Linear`.

    Returns
    -------
    RemovableHandle
        ``remove()`` takes the chunks away; so does the end of a ``with`` block.

    Raises
    ------
    UnsupportedModel
        There is no head, or it is not a plain `nn.Linear`.

    Examples
    --------
    >>> handle = chunked_head(model, 8)
    >>> model(**batch).loss.backward()
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise UnsupportedModel(f"the number of chunks must be a whole number from 1, got {n!r}")
    name, module = find_head(model, head)
    placed = ChunkedHead(module, name, n)
    placed.put()
    return RemovableHandle([placed], [])


def find_head(model: nn.Module, head: str | None = None) -> tuple[str, nn.Linear]:
    """The module that makes the logits, and its name in the model.

    Raises `UnsupportedModel` where there is none that can be run in chunks.
    """
    model = bare(model)
    modules = dict(model.named_modules())
    if head is not None:
        if head not in modules:
            raise UnsupportedModel(
                f"{type(model).__name__} has no module {head!r}{did_you_mean(head, modules)}"
            )
        name = head
    else:
        name = _last(model, modules)
    module = modules[name]
    check_unplanned(module, repr(name))
    if not isinstance(module, nn.Linear) or not _is_plain(module):
        raise UnsupportedModel(
            f"the head {name!r} is a {type(module).__name__} with a forward of its own (LoRA, a "
            "quantized weight, hooks or torch.compile make such), which cannot run in chunks; "
            "leave the head as a plain torch.nn.Linear, or name another one with head="
        )
    for unit in (name[:i] for i in range(1, len(name) + 1) if name[i:][:1] in (".", "")):
        if is_unit(modules[unit]):
            raise UnsupportedModel(
                f"{unit!r}, with the head's weight, is a unit of fully_shard of its own, which "
                "lets go of it before the loss; leave it in the unit of the whole model"
            )
    return name, module


def _last(model: nn.Module, modules: dict[str, nn.Module]) -> str:
    """Name of the output embeddings, or of the last linear layer."""
    of_model = getattr(model, "get_output_embeddings", None)
    wanted = of_model() if of_model is not None else None
    for name, module in reversed(modules.items()):
        if module is wanted or (wanted is None and isinstance(module, nn.Linear)):
            return name
    raise UnsupportedModel(
        f"{type(model).__name__} has no torch.nn.Linear that could be its head; name the module "
        "that makes the logits with head="
    )


def _is_plain(module: nn.Linear) -> bool:
    return (
        type(module).forward is nn.Linear.forward
        and "forward" not in module.__dict__
        and module.weight.is_floating_point()
    )


class ChunkedHead(Replaced):
    """The replaced forward of a head."""

    module: nn.Linear

    def __init__(self, module: nn.Linear, name: str, chunks: int) -> None:
        super().__init__(module)
        self.name = name
        self.chunks = chunks

    def __call__(self, input: torch.Tensor) -> torch.Tensor:
        """Deferred logits; without gradients, and in eval mode, as before."""
        weight, bias = self.module.weight, self.module.bias
        tensors = [tensor for tensor in (input, weight, bias) if tensor is not None]
        is_needed = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        if not self.module.training or not is_needed:
            whole: torch.Tensor = self.original(input)
            return whole
        if is_traceable_wrapper_subclass(weight):
            raise UnsupportedModel(
                f"the weight of the head {self.name!r} is a {type(weight).__name__}, which cannot "
                "run in chunks; it must be a plain tensor when the head runs"
            )
        return defer(self.name, self.chunks, input, weight, bias)
