"""What may be done to logits before their loss: noted, and done to each chunk of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from scheduler.pytorch.observe.dispatch import tensors_of
from scheduler.pytorch.tiles.chunks import Projection, Step, exact


def names(words: str) -> frozenset[str]:
    """A set of words."""
    return frozenset(words.split())


_SAME = names("contiguous clone")
_VALUES = names(
    "to float double half bfloat16 mul multiply div divide true_divide add sub subtract neg tanh "
    "__mul__ __rmul__ __truediv__ __add__ __radd__ __sub__"
)
"""What changes each number by itself, so that it can be done to a chunk."""
_REGROUPED = names("view reshape flatten unflatten")
"""What arranges tokens anew, where the vocabulary stays the last dimension."""
_VIEWED = names(
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


def formed(made: Made) -> torch.Tensor:
    """The logits' form, to ask torch what it would say of them."""
    return torch.empty((), dtype=made.dtype, device="meta").expand(made.shape)


def after(
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
        form = func(formed(made), *rest, **kwargs)
        shape = form.shape
        if form.dtype == made.dtype and shape[-1:] == (made.width,):
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
    step: Step = partial(_step, func, tuple(given), place, kwargs)
    result = step(torch.empty((0, made.width), dtype=made.dtype, device=made.rows.device))
    if result.device != made.rows.device:
        return None
    is_cast = func in (torch.Tensor.float, torch.Tensor.to)
    step = widen if is_cast and result.dtype == exact(made.dtype) else step
    return replace(made, dtype=result.dtype, steps=(*made.steps, step))


def widen(logits: torch.Tensor) -> torch.Tensor:
    """Logits in the dtype in which sums are made."""
    return logits.to(exact(logits.dtype))


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
