"""Logits that are not there: what a head hands on, for the loss to compute chunk by chunk."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from scheduler.common.errors import UnsupportedModel
from scheduler.common.text import counted
from scheduler.pytorch.observe.dispatch import tensors_of
from scheduler.pytorch.tiles.chunks import ChunkedLoss, Loss, Projection, form_of, stand_in
from scheduler.pytorch.tiles.steps import Made, after, formed, names, widen

_SAID = names(
    "shape dtype device layout requires_grad grad_fn is_leaf ndim size dim numel nelement __len__ "
    "element_size itemsize nbytes get_device is_contiguous is_floating_point is_complex is_cuda "
    "is_cpu is_meta is_mps is_xpu is_nested is_sparse is_quantized _base untyped_storage"
)
"""What can be said of them without their values."""


class DeferredLogits(torch.Tensor):
    """Logits as far as anyone but the loss can see them: form and graph, no values."""

    made: Made

    @classmethod
    def of(cls, made: Made) -> DeferredLogits:
        """A tensor without memory."""
        device = made.rows.device
        self: DeferredLogits = torch.Tensor._make_wrapper_subclass(
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
            made = after(args[places[0]].made, name, func, args, places[0], kwargs)
            if made is not None:
                return _Noted.apply(args[places[0]], made)
        raise _refusal(name, _first((args, kwargs)))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Refuse what comes here past `__torch_function__`."""
        raise _refusal(func.__name__.partition(".")[0], _first((args, kwargs)))

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
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
        F.cross_entropy(formed(made), target.to("meta"), reduction=reduction)
    if made.place != min(1, made.rows.dim()):
        raise _refusal("cross_entropy over another dimension than the vocabulary", logits)
    said, n, tokens = repr(projection.name), projection.chunks, made.rows.numel()
    if projection.hidden is None:
        raise UnsupportedModel(
            f"a second loss reads the logits of {said}, which are computed in {n} chunks, once; "
            "compute one loss (a model that is given labels computes its own), or take the chunks "
            "away with remove() on the handle"
        )
    if projection.is_changed:
        raise UnsupportedModel(
            f"the input or the weight of the head {said} is changed in place between the head and "
            "the loss, which makes the logits anew; change a copy, or take the chunks away with "
            "remove() on the handle"
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
    # The loss is made in that dtype whatever it reads.
    steps = made.steps[:-1] if made.steps[-1:] == (widen,) else made.steps
    loss = Loss(steps, made.rows, target, weight, ignore_index, label_smoothing, dtype)
    has_backward = torch.is_grad_enabled()
    result: torch.Tensor = ChunkedLoss.apply(logits, projection, loss, reduction, has_backward)
    return result


def _is_of_sharding(hook: Any) -> bool:
    """Whether a hook waits for the gradient to come by, and does not look at it."""
    return str(getattr(hook, "__module__", "")).startswith("torch.distributed.fsdp")


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
