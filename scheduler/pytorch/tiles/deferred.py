"""Logits that are not there: what a head hands on, for the loss to compute chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from scheduler.common.errors import UnsupportedModel
from scheduler.common.text import counted
from scheduler.pytorch.observe.dispatch import tensors_of
from scheduler.pytorch.tiles.chunks import (
    ChunkedLoss,
    Loss,
    Projection,
    Step,
    form_of,
    stand_in,
)


def _names(words: str) -> frozenset[str]:
    return frozenset(words.split())


_SAID = _names(
    "shape dtype device layout requires_grad grad_fn is_leaf ndim size dim numel nelement __len__ "
    "element_size itemsize nbytes get_device is_contiguous is_floating_point is_complex is_cuda "
    "is_cpu is_meta is_mps is_xpu is_nested is_sparse is_quantized _base untyped_storage"
)
"""What can be said of them without their values."""
_SAME = _names("contiguous clone")
_VALUES = _names(
    "to float double half bfloat16 mul multiply div divide true_divide add sub subtract neg tanh "
    "__mul__ __rmul__ __truediv__ __add__ __radd__ __sub__"
)
"""What changes each number by itself, so that it can be done to a chunk."""
_REGROUPED = _names("view reshape flatten unflatten")
"""What arranges tokens anew, where the vocabulary stays the last dimension."""
_VIEWED = _names(
    "transpose permute movedim moveaxis swapaxes swapdims mT squeeze unsqueeze narrow select "
    "__getitem__"
)
"""What picks and moves dimensions, in views."""


@dataclass(frozen=True)
class Made:
    """How deferred logits come of a projection."""

    projection: Projection
    rows: torch.Tensor  # which of its tokens, in the form of the logits without the vocabulary
    place: int  # of the vocabulary among the dimensions
    width: int  # of the vocabulary
    dtype: torch.dtype
    steps: tuple[Step, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the logits."""
        sizes = self.rows.shape
        return (*sizes[: self.place], self.width, *sizes[self.place :])


class DeferredLogits(torch.Tensor):
    """Logits as far as anyone but the loss can see them: form and graph, no values."""

    made: Made

    @classmethod
    def of(cls, made: Made) -> DeferredLogits:
        """A tensor without memory."""
        device = made.rows.device
        self: DeferredLogits = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, made.shape, dtype=made.dtype, device=device, storage_size=0
        )
        self.made = made
        return self

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Note what is done to the logits, compute their loss, or refuse what reads them."""
        kwargs = kwargs or {}
        name = func.__name__ if func.__name__ != "__get__" else func.__self__.__name__
        if name in _SAID or (name == "register_hook" and _is_of_sharding(args[1])):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        places = [i for i, value in enumerate(args) if isinstance(value, cls)]
        if func is F.cross_entropy and places == [0]:
            return _cross_entropy(*args, **kwargs)
        if len(places) == 1 and not any(isinstance(value, cls) for value in kwargs.values()):
            made = _after(args[places[0]].made, name, func, args, places[0], kwargs)
            if made is not None:
                return _Noted.apply(args[places[0]], made)
        raise _refusal(name, _first((args, kwargs)))

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Refuse what comes here past `__torch_function__`."""
        raise _refusal(func.__name__.partition(".")[0], _first((args, kwargs)))

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        said = f"shape={tuple(self.shape)}, dtype={self.dtype}"
        return f"DeferredLogits({said}, of {self.made.projection.name!r}, not computed)"


def defer(
    name: str,
    chunks: int,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """The logits of a head, deferred."""
    logits: torch.Tensor = _Projected.apply(hidden, weight, bias, name, chunks)
    return logits


class _Projected(torch.autograd.Function):
    """The node of the projection."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        name: str,
        chunks: int,
    ) -> DeferredLogits:
        """The logits."""
        flat = hidden.reshape(-1, hidden.shape[-1])
        # Of a part: autocast would cache what it casts of the whole.
        dtype = F.linear(flat[:0], weight[:1], None if bias is None else bias[:1]).dtype
        needed = ctx.needs_input_grad[:3]
        projection = Projection(name, chunks, flat, weight, bias, dtype, needed)
        ctx.projection = projection
        ctx.shape = hidden.shape
        rows = torch.arange(len(flat), device=hidden.device).view(hidden.shape[:-1])
        return DeferredLogits.of(Made(projection, rows, rows.dim(), len(weight), dtype))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Hand on the gradients that the loss has made; autograd casts them where need be."""
        gradients, ctx.projection.gradients = ctx.projection.gradients, None
        of_hidden, of_weight, of_bias = gradients
        if of_hidden is not None:
            of_hidden = of_hidden.view(ctx.shape)
        return of_hidden, of_weight, of_bias, None, None


class _Noted(torch.autograd.Function):
    """The node of something done to logits."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, made: Made) -> DeferredLogits:
        """The logits to which it is done."""
        ctx.form = form_of(logits)
        return DeferredLogits.of(made)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Lead on."""
        return stand_in(ctx.form), None


def _after(
    made: Made,
    name: str,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    place: int,
    kwargs: dict[str, Any],
) -> Made | None:
    """The logits after an operation; None where it cannot be done to a chunk of them."""
    if name in _SAME:
        return made
    if name in _VALUES:
        return _with_step(made, func, args, place, kwargs)
    if name == "__get__" or place != 0:
        return None
    rest = args[1:]
    is_last = made.place == made.rows.dim()
    if name in _REGROUPED and is_last:
        shape = func(_formed(made), *rest, **kwargs).shape
        if shape and shape[-1] == made.width:
            return replace(made, rows=made.rows.reshape(shape[:-1]), place=len(shape) - 1)
    if name == "__getitem__" and is_last and _copies(rest[0]):
        index = _of_tokens(rest[0], made.rows.dim())
        if index is None:
            return None
        rows = made.rows[index]
        return replace(made, rows=rows, place=rows.dim())
    if name in _VIEWED:
        # The vocabulary is the dimension that takes no steps through memory.
        spread = made.rows.unsqueeze(made.place).expand(made.shape)
        view = func(spread, *rest, **kwargs)
        forms = list(zip(view.stride(), view.shape, strict=True))
        still = [i for i, form in enumerate(forms) if form == (0, made.width)]
        if len(still) == 1:
            return replace(made, rows=view.select(still[0], 0), place=still[0])
    return None


def _with_step(
    made: Made,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    place: int,
    kwargs: dict[str, Any],
) -> Made | None:
    others = [value for i, value in enumerate(args) if i != place]
    tensors = [value for value in others if isinstance(value, torch.Tensor)]
    if not all(_is_alike(made, value) for value in tensors) or tensors_of(kwargs):
        return None
    # A chunk has two dimensions, whatever the logits have.
    given = [v.reshape(v.shape[-1:]) if isinstance(v, torch.Tensor) else v for v in others]
    step = partial(_step, func, tuple(given), place, kwargs)
    result = step(torch.empty((0, made.width), dtype=made.dtype, device=made.rows.device))
    if result.device != made.rows.device:
        return None
    return replace(made, dtype=result.dtype, steps=(*made.steps, step))


def _step(
    func: Callable[..., Any],
    others: tuple[Any, ...],
    place: int,
    kwargs: dict[str, Any],
    logits: torch.Tensor,
) -> torch.Tensor:
    result: torch.Tensor = func(*others[:place], logits, *others[place:], **kwargs)
    return result


def _is_alike(made: Made, operand: torch.Tensor) -> bool:
    """Whether an operand is the same for all tokens, and a constant."""
    if operand.requires_grad or operand.dim() > len(made.shape):
        return False
    is_row = made.place == made.rows.dim() and operand.shape[-1:] == (made.width,)
    return operand.numel() == 1 or (is_row and operand.numel() == made.width)


def _copies(index: Any) -> bool:
    """Whether an index makes a copy of what it picks."""
    items = index if isinstance(index, tuple) else (index,)
    return not all(item is None or isinstance(item, (int, slice, type(...))) for item in items)


def _of_tokens(index: Any, dims: int) -> tuple[Any, ...] | None:
    """What an index says of the first `dims` dimensions, if it takes all of the one after them."""
    items = index if isinstance(index, tuple) else (index,)
    used = sum(
        item.dim() if isinstance(item, torch.Tensor) and item.dtype == torch.bool else 1
        for item in items
        if item is not None and item is not ...
    )
    is_dotted = any(item is ... for item in items)
    if isinstance(items[-1], slice) and (is_dotted or used > dims):
        return items[:-1] if items[-1] == slice(None) else None
    if items[-1] is ... or (not is_dotted and used <= dims):
        return items
    return None


def _cross_entropy(
    logits: DeferredLogits,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    made, projection = logits.made, logits.made.projection
    if target.is_floating_point():
        raise _refusal("cross_entropy with probabilities as its targets", logits)
    if size_average is not None or reduce is not None:
        raise _refusal("cross_entropy with size_average or reduce, instead of reduction,", logits)
    if target.shape != made.rows.shape or reduction not in ("mean", "sum", "none"):
        # torch's own words on it.
        F.cross_entropy(_formed(made), target.to("meta"), reduction=reduction)
    if made.place != min(1, made.rows.dim()):
        raise _refusal("cross_entropy over another dimension than the vocabulary", logits)
    said, n, tokens = repr(projection.name), projection.chunks, made.rows.numel()
    if projection.hidden is None:
        raise UnsupportedModel(
            f"a second loss reads the logits of {said}, which are computed in {n} chunks, once; "
            "compute one loss (a model that is given labels computes its own), or take the chunks "
            "away with remove() on the handle"
        )
    assert projection.weight is not None
    if projection.weight.untyped_storage().nbytes() == 0:
        raise UnsupportedModel(
            f"the weight of the head {said} is no longer there when the loss is computed; call "
            "fully_shard with reshard_after_forward=False, or compute the loss in the model"
        )
    if n > tokens:
        raise UnsupportedModel(
            f"the head {said} is to run in {n} chunks, and this step's loss has "
            f"{counted(tokens, 'token')}; give chunked_head at most as many chunks as tokens"
        )
    empty = torch.empty((0, made.width), dtype=made.dtype, device=made.rows.device)
    dtype = F.cross_entropy(empty, target.flatten()[:0], weight=weight, reduction="none").dtype
    loss = Loss(made.steps, made.rows, target, weight, ignore_index, label_smoothing, dtype)
    has_backward = torch.is_grad_enabled()
    result: torch.Tensor = ChunkedLoss.apply(logits, projection, loss, reduction, has_backward)
    return result


def _is_of_sharding(hook: Any) -> bool:
    """Whether a hook waits for the gradient to come by, and does not look at it."""
    return str(getattr(hook, "__module__", "")).startswith("torch.distributed.fsdp")


def _formed(made: Made) -> torch.Tensor:
    return torch.empty((), dtype=made.dtype, device="meta").expand(made.shape)


def _first(value: Any) -> DeferredLogits:
    return next(each for each in tensors_of(value) if isinstance(each, DeferredLogits))


def _refusal(what: str, logits: DeferredLogits) -> UnsupportedModel:
    projection = logits.made.projection
    return UnsupportedModel(
        f"{what} reads the logits of {projection.name!r}, which are computed in "
        f"{counted(projection.chunks, 'chunk')} inside the loss and are never there as a whole; "
        "read them in eval mode or without gradients, where they are, or take the chunks away "
        "with remove() on the handle"
    )
