"""Stand-ins without memory: a copy of a model whose tensors are fake."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from scheduler.common.errors import UnsupportedModel
from scheduler.export.standalone.state import Snapshot


def is_fake(model: nn.Module) -> bool:
    """Whether the model's tensors are fake or on the meta device, without memory."""
    return any(isinstance(t, FakeTensor) or t.is_meta for t in _tensors(model))


@contextmanager
def faked(model: nn.Module, inputs: Any) -> Iterator[tuple[nn.Module, Any]]:
    """Run under fake tensors; gives stand-ins for the model and its inputs: nothing is allocated.

    Tensors on the meta device become CPU ones: on meta, attention picks an implementation that
    materialises the probabilities.

    Raises `UnsupportedModel` where the tensors are on a CUDA device that this build of torch does
    not have, or what runs on them needs values.
    """
    mode, twin, copies = _fake_copy(model, inputs)
    try:
        with mode, _transformers_masks():
            yield twin, copies
    except (RuntimeError, NotImplementedError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UnsupportedModel(
            f"fake tensors cannot run this model ({reason}); use real ones"
        ) from error


@contextmanager
def _transformers_masks() -> Iterator[None]:
    """Let transformers make the masks that it makes of real tensors, where these are sure to be so.

    It takes each row of a batch for one sequence: it looks at the positions of real ones, and makes
    no mask where a row holds one. And a mask of ones that a model makes itself, not being given
    one, is none: of what is given values are not known, and another batch may have padding.
    """
    masking = sys.modules.get("transformers.masking_utils")
    if masking is None:
        yield
        return
    tracing, all_of = getattr(masking, "is_tracing", None), getattr(masking, "fast_all", None)
    patches: dict[str, Any] = {"find_packed_sequence_indices": lambda position_ids: None}
    if tracing is not None and all_of is not None:
        patches["is_tracing"] = lambda tensor=None: not _Ones.are(tensor) and tracing(tensor)
        patches["fast_all"] = lambda tensor: _Ones.are(tensor) or all_of(tensor)
    with ExitStack() as stack:
        for name, value in patches.items():
            if hasattr(masking, name):
                stack.callback(setattr, masking, name, getattr(masking, name))
                setattr(masking, name, value)
        stack.enter_context(_Ones())
        yield


class _Ones(TorchFunctionMode):
    """Knows tensors that are made of ones, and what is made of them that has no other values."""

    _MADE = (torch.ones, torch.ones_like, torch.Tensor.new_ones)
    _SAME = frozenset(
        getattr(torch.Tensor, name)
        for name in (
            *("to", "bool", "int", "long", "float", "type", "__getitem__", "expand", "view"),
            *("reshape", "unsqueeze", "squeeze", "contiguous", "clone", "detach"),
        )
    )

    @staticmethod
    def are(value: object) -> bool:
        """Whether a tensor is known to be ones."""
        return isinstance(value, torch.Tensor) and "_all_ones" in vars(value)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        ones = bool(args) and self.are(args[0])
        if ones and func in (torch.Tensor.all, torch.all):
            return True
        result = func(*args, **(kwargs or {}))
        if func in self._MADE or (ones and func in self._SAME):
            if isinstance(result, torch.Tensor):
                result._all_ones = True  # type: ignore[attr-defined]
        elif ones and (result is args[0] or func is torch.Tensor.__setitem__):
            del args[0]._all_ones  # it was changed
        return result


def _fake_copy(model: nn.Module, inputs: Any) -> tuple[FakeTensorMode, nn.Module, Any]:
    """A mode, and copies of a model and its inputs to run under it."""
    tensors = list(_tensors(model))
    mode = next((t.fake_mode for t in tensors if isinstance(t, FakeTensor)), None)
    mode = mode or FakeTensorMode(allow_non_fake_inputs=True)

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor) and tensor.fake_mode is mode:
            return tensor
        device = torch.device("cpu") if tensor.is_meta else tensor.device
        if device.type == "cuda" and not torch.cuda.is_available():
            raise UnsupportedModel(
                "fake tensors on 'cuda' abort a torch without CUDA; build the model on 'cpu' or "
                "'meta': the bytes are the same"
            )
        with mode:
            made = torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device
            )
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(made, requires_grad=tensor.requires_grad)
        return made.requires_grad_(tensor.requires_grad)

    # What deepcopy finds in the memo it does not copy: tensors are replaced, shared ones stay so.
    memo: dict[int, Any] = {id(tensor): fake(tensor) for tensor in tensors}
    with mode:
        twin = copy.deepcopy(model, memo)

    def fake_input(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return memo.setdefault(id(value), fake(value))  # one tensor given twice stays one

    return mode, twin, tree_map(fake_input, inputs)


def _tensors(model: nn.Module) -> Iterable[torch.Tensor]:
    yield from model.parameters()
    yield from model.buffers()
    # What a forward has set, too: a tensor that has a graph could not be copied.
    yield from (tensor for tensor, _, _ in Snapshot([model], lambda tensor: False).tensors)
