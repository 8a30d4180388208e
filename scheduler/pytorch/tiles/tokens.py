"""Whether a module treats tokens alone, seen by the operations that it runs.

It runs on few tokens: as many as a prime that divides no size of its weights. So a dimension whose
size the prime divides has the tokens in it, and an operation that has not one of them where it had
one before has mixed tokens. Operations that are not known here are taken to mix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map

from scheduler.export.standalone.state import Snapshot
from scheduler.pytorch.model.autocast import without_cast_cache
from scheduler.pytorch.observe.dispatch import OperationMode, is_random, tensors_of
from scheduler.pytorch.tiles.steps import names

_MADE = names(
    "empty zeros ones full scalar_tensor empty_like zeros_like ones_like full_like new_empty "
    "new_zeros new_ones new_full empty_strided new_empty_strided"
)
"""What looks at no values."""
_VALUES = names(
    "_to_copy copy copy_ fill fill_ zero_ hardswish hardswish_ prelu _prelu_kernel detach alias "
    "log_sigmoid_forward contiguous lift_fresh"
)
"""What treats numbers alone, beside what torch tags as such."""
_PRODUCTS = names("mm addmm bmm baddbmm linear matmul")
_OVER = names(
    "sum mean var std var_mean std_mean amax amin max min norm linalg_vector_norm logsumexp argmax "
    "argmin prod any all native_layer_norm layer_norm _fused_rms_norm rms_norm native_group_norm"
)
"""What is lost of a dimension shows in the result."""
_ALONG = names(
    "_softmax _log_softmax softmax log_softmax cumsum topk sort glu cat stack gather split "
    "split_with_sizes chunk unbind select slice narrow"
)
"""What must not go along the tokens, though its result may not show it."""
_ARRANGED = names("view _unsafe_view reshape _reshape_alias flatten unflatten")
_TURNED = names("t transpose permute unsqueeze squeeze expand movedim")
_KNOWN = _MADE | _VALUES | _PRODUCTS | _OVER | _ALONG | _ARRANGED | _TURNED


class _Mixes(Exception):
    """What a module was seen to do."""


def why_whole(
    module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str:
    """Why a module that is called with these arguments cannot run in tiles; "": it can.

    The words that come after its name.
    """
    given = tensors_of((args, kwargs))
    if not given or not given[0].is_floating_point() or given[0].dim() < 2:
        return "is handed no tokens"
    for name, part in module.named_modules():
        if name and (part._forward_hooks or part._forward_pre_hooks or part._backward_hooks):
            return f"has hooks on {name!r}, which would run once a tile"
    lead = given[0].shape[:-1]
    odd = [t for t in given if t.shape[:-1] != lead or not t.is_floating_point()]
    device = given[0].device.type
    state = Snapshot([module])
    try:
        with torch.no_grad(), without_cast_cache(device):
            for place in range(len(lead) - 1, -1, -1):
                _watch(module, forward, args, kwargs, place)
            if odd:
                return f"is handed a tensor of the form {tuple(odd[0].shape)} beside its tokens"
            _compare(forward, args, kwargs)
    except _Mixes as error:
        return str(error)
    except Exception as error:  # whatever a model's own code may raise
        return f"does not run on fewer tokens ({type(error).__name__})"
    finally:
        changed = state.changes(lambda tensor: False)
        state.put()
    if changed is not None:
        return "changes something in its forward beside what it returns"
    return ""


def _few(tensor: Any, lead: torch.Size, sizes: Sequence[int]) -> Any:
    """A tensor with so many tokens; one that has others than `lead`, wherever it has as many."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    wanted = dict(zip(lead, sizes, strict=True))
    found = [wanted.get(size, size) for size in tensor.shape]
    if tensor.shape[:-1] == lead:
        found = [*sizes, tensor.shape[-1]]
    # Views of a part before it grows: of all the tokens of a step there may be no room for more.
    few = tensor.detach()
    for i, size in enumerate(found):
        few = few.narrow(i, 0, min(size, few.shape[i]))
    for i, size in enumerate(found):
        if size > few.shape[i]:
            few = few.index_select(i, torch.arange(size, device=few.device) % few.shape[i])
    return few.clone()  # it may be written to


def _watch(
    module: nn.Module,
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    place: int,
) -> None:
    """Run on few tokens, all in one dimension; raise `_Mixes` where an operation mixes them."""
    given = tensors_of((args, kwargs))
    lead = given[0].shape[:-1]
    own = [*module.parameters(), *module.buffers()]
    widths = {size for tensor in own for size in tensor.shape} | {t.shape[-1] for t in given}
    prime = next(p for p in count(11, 2) if _is_prime(p) and all(s % p for s in widths if s))
    sizes = [prime if i == place else 1 for i in range(len(lead))]
    few = tree_map(lambda each: _few(each, lead, sizes), (args, kwargs))
    with _Watch(prime, own):
        made = forward(*few[0], **few[1])
    if any(not tensor.is_inference() and tensor._version for tensor in tensors_of(few)):
        raise _Mixes("changes its input in place")
    if not isinstance(made, torch.Tensor) or not made.is_floating_point():
        raise _Mixes("returns more than one tensor of numbers")
    if list(made.shape[:-1]) != sizes:
        raise _Mixes("does not return its tokens in the form in which it is handed them")


def _is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def _compare(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run on few tokens whole and in two uneven tiles; raise `_Mixes` where they differ."""
    lead = tensors_of((args, kwargs))[0].shape[:-1]
    sizes = [min(size, 2) for size in lead[:-1]] + [7]
    total = torch.Size(sizes).numel()
    few = tree_map(lambda each: _few(each, lead, sizes), (args, kwargs))
    ones = [1] * (len(lead) - 1)

    def tile(start: int, end: int) -> torch.Tensor:
        def part(each: Any) -> Any:
            if not isinstance(each, torch.Tensor):
                return each
            flat = each.reshape(total, -1)[start:end]
            return flat.reshape(*ones, end - start, -1)

        given, keywords = tree_map(part, few)
        made: torch.Tensor = forward(*given, **keywords)
        return made.reshape(end - start, -1)

    parts = torch.cat([tile(0, 2), tile(2, total)])
    whole = forward(*few[0], **few[1]).reshape(total, -1)
    if parts.shape != whole.shape:
        raise _Mixes("returns other tokens in tiles than whole")
    apart = (parts.double() - whole.double()).abs().max()
    near = 64 * torch.finfo(whole.dtype).eps * whole.double().abs().max()
    has_values = not isinstance(apart, FakeTensor)
    if has_values and bool(apart > near):
        raise _Mixes("returns other values in tiles than whole")


class _Watch(OperationMode):
    """Raises `_Mixes` at the first operation that does not treat tokens alone."""

    def __init__(self, prime: int, own: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._prime = prime
        self._own = {id(tensor.untyped_storage()) for tensor in own}

    def _operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func.namespace == "prim":
            return func(*args, **kwargs)  # fake tensors ask for their device so
        if is_random(func) and "attention" not in str(func):
            raise _Mixes(f"draws random numbers by {func}, as dropout does, which tiles draw anew")
        given = tensors_of((args, kwargs))
        if any(t.requires_grad and id(t.untyped_storage()) not in self._own for t in given):
            raise _Mixes(f"reads, by {func}, a tensor that needs a gradient and is not its own")
        result = func(*args, **kwargs)
        made = [tensor for tensor in tensors_of(result) if tensor.numel()]
        if any(map(self._places, (*given, *made))) and not self._is_alone(
            func, args, kwargs, given, made
        ):
            raise _Mixes(f"mixes tokens by {func}, or may do so")
        return result

    def _places(self, tensor: torch.Tensor) -> list[int]:
        """Dimensions in which the tokens are."""
        return [i for i, size in enumerate(tensor.shape) if size and size % self._prime == 0]

    def _is_alone(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: list[torch.Tensor],
        made: list[torch.Tensor],
    ) -> bool:
        name = func._overloadpacket.__name__
        if name in _MADE:
            return True
        if name not in _KNOWN and torch.Tag.pointwise not in func.tags:
            return False
        if not any(map(self._places, given)):
            return False  # what is not made of the tokens, and is another for each
        if any(len(self._places(tensor)) != 1 for tensor in made):
            return False
        if name in _ARRANGED:
            return bool(self._steps(given[0]) & self._steps(made[0]))
        if name not in _ALONG or (name == "slice" and made[0].shape == given[0].shape):
            return True
        along = _argument(func, args, kwargs, "dim")
        like = made[0] if name == "stack" else given[0]
        return isinstance(along, int) and along % like.dim() not in self._places(like)

    def _steps(self, tensor: torch.Tensor) -> set[int]:
        """How far the next token may be, where the tokens may be the first or last of a size."""
        found = set[int]()
        for place in self._places(tensor):
            inner = tensor.shape[place + 1 :].numel()
            found |= {inner, inner * tensor.shape[place] // self._prime}
        return found


def _argument(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
    for i, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            return args[i] if i < len(args) else kwargs.get(name, argument.default_value)
    return None
