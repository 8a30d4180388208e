"""The projection to the vocabulary and its loss, chunk of tokens by chunk.

The gradients are made in the forward, so that no logits are kept: the loss is summed over tokens,
and what its gradient is multiplied with comes in the backward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks

from scheduler.common.errors import UnsupportedModel

Step = Callable[[torch.Tensor], torch.Tensor]
"""What is done to each token's logits alone."""


@dataclass
class Projection:
    """What makes the logits; `gradients` are those of its three tensors, once they are known."""

    name: str
    chunks: int
    hidden: torch.Tensor | None  # (tokens, width); None once the loss has used it
    weight: torch.Tensor | None
    bias: torch.Tensor | None
    dtype: torch.dtype  # of the logits: that of the weight, or autocast's
    needed: tuple[bool, bool, bool]
    gradients: tuple[torch.Tensor | None, ...] | None = None

    def release(self) -> None:
        """Hold no tensors any longer."""
        self.hidden = self.weight = self.bias = None


@dataclass(frozen=True)
class Loss:
    """A cross entropy of some rows of the logits, to each of which `steps` were done."""

    steps: tuple[Step, ...]
    rows: torch.Tensor  # which of the projection's tokens
    target: torch.Tensor
    weight: torch.Tensor | None
    ignore_index: int
    label_smoothing: float

    def of(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss of each token of a chunk."""
        return F.cross_entropy(
            self._stepped(logits),
            target,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction="none",
            label_smoothing=self.label_smoothing,
        )

    def _stepped(self, logits: torch.Tensor) -> torch.Tensor:
        # Recorded where autocast may have been another than where the loss is.
        with torch.autocast(logits.device.type, enabled=False):
            for step in self.steps:
                logits = step(logits)
        return logits

    def denominator(self) -> torch.Tensor:
        """What the sum over tokens is divided by for the mean."""
        kept = self.target != self.ignore_index
        if self.weight is None:
            return kept.sum()
        return (self.weight[self.target.where(kept, 0)] * kept).sum()


class ChunkedLoss(torch.autograd.Function):
    """The loss of deferred logits.

    Their gradient is a stand-in without memory: it takes autograd to the node of the projection,
    for which the true ones are put down.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        projection: Projection,
        loss: Loss,
        reduction: str,
        has_backward: bool,
    ) -> torch.Tensor:
        """Each token's loss, their sum or their mean."""
        ctx.form = form_of(logits)
        ctx.projection = projection
        # What each token's loss is weighted with is not known before the backward.
        ctx.again = loss if reduction == "none" else None
        at_once = has_backward and reduction != "none"
        losses, ctx.gradients = _run(projection, loss, with_gradients=at_once)
        if reduction == "none":
            return losses
        if at_once:
            projection.release()
        ctx.denominator = loss.denominator() if reduction == "mean" else None
        total = losses.sum(dtype=_exact(losses.dtype))
        return (total if ctx.denominator is None else total / ctx.denominator).to(losses.dtype)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Put the gradients down where the projection's backward finds them."""
        projection = ctx.projection
        if torch.is_grad_enabled():
            raise UnsupportedModel(
                f"a second derivative was asked of the loss of {projection.name!r}, whose chunks "
                "have the first only; take the chunks away with remove() on the handle"
            )
        (grad,) = grad_outputs
        if ctx.again is not None:
            _, projection.gradients = _run(projection, ctx.again, upstream=grad)
            return stand_in(ctx.form), None, None, None, None
        if ctx.gradients is None:
            raise UnsupportedModel(
                f"the backward of the loss of {projection.name!r} runs a second time, and its "
                "chunks hand over their gradients once; call backward once for each forward, or "
                "take the chunks away with remove() on the handle"
            )
        factor = grad.to(_exact(grad.dtype))
        if ctx.denominator is not None:
            factor = factor / ctx.denominator
        gradients, ctx.gradients = ctx.gradients, None
        for gradient in gradients:
            if gradient is not None:
                # Not `mul_`, which would round the factor first where the gradient is in bf16.
                dtype = torch.promote_types(gradient.dtype, factor.dtype)
                for part in gradient.tensor_split(projection.chunks):
                    part.copy_(part.to(dtype) * factor)
        projection.gradients = gradients
        return stand_in(ctx.form), None, None, None, None


Form = tuple[torch.Size, torch.dtype, torch.device]


def form_of(tensor: torch.Tensor) -> Form:
    """All that there is of a tensor without memory."""
    return tensor.shape, tensor.dtype, tensor.device


def stand_in(form: Form) -> torch.Tensor:
    """A tensor that takes the memory of one number."""
    shape, dtype, device = form
    return torch.zeros((), dtype=dtype, device=device).expand(shape)


def _exact(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums of many are made."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _run(
    projection: Projection,
    loss: Loss,
    *,
    upstream: torch.Tensor | None = None,
    with_gradients: bool = True,
) -> tuple[torch.Tensor, tuple[torch.Tensor | None, ...] | None]:
    """Each token's loss; gradients of the sum of all losses, each times its `upstream`."""
    hidden, weight, bias = projection.hidden, projection.weight, projection.bias
    assert hidden is not None
    assert weight is not None
    cast = weight.to(projection.dtype)
    cast_bias = None if bias is None else bias.to(projection.dtype)
    sums: list[torch.Tensor | None] = [None, None, None]
    if with_gradients:
        for i, tensor in enumerate((hidden, weight, bias)):
            if tensor is not None and projection.needed[i]:
                dtype = tensor.dtype if i == 0 else _exact(tensor.dtype)
                sums[i] = torch.zeros_like(tensor, dtype=dtype)
    n = projection.chunks
    targets = loss.target.tensor_split(n)
    scales = [None] * n if upstream is None else upstream.tensor_split(n)
    losses = []
    for rows, target, scale in zip(loss.rows.tensor_split(n), targets, scales, strict=True):
        chunk = hidden.index_select(0, rows).to(projection.dtype)
        with torch.autocast(hidden.device.type, enabled=False):
            logits = F.linear(chunk, cast, cast_bias)
        if not with_gradients:
            losses.append(loss.of(logits, target))
            continue
        # The hooks of whoever watches or moves what is saved are not for what ends right here.
        with torch.enable_grad(), saved_tensors_hooks(_itself, _itself):
            of_chunk = loss.of(logits.requires_grad_(), target)
        losses.append(of_chunk.detach())
        scale = torch.ones_like(of_chunk) if scale is None else scale
        (grad,) = torch.autograd.grad(of_chunk, logits, scale)
        del logits, of_chunk
        with torch.autocast(hidden.device.type, enabled=False):
            _accumulate(sums, grad, chunk, cast, rows)
        del grad
    return torch.cat(losses), tuple(sums) if with_gradients else None


def _accumulate(
    sums: list[torch.Tensor | None],
    grad: torch.Tensor,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    rows: torch.Tensor,
) -> None:
    """Add what a chunk gives to the gradients of hidden states, weight and bias."""
    of_hidden, of_weight, of_bias = sums
    if of_hidden is not None:
        of_hidden.index_add_(0, rows, (grad @ weight).to(of_hidden.dtype))
    if of_bias is not None:
        of_bias += grad.sum(0, dtype=of_bias.dtype)
    if of_weight is None:
        return
    if grad.dtype == of_weight.dtype:
        of_weight.addmm_(grad.t(), hidden)
        return
    # In slices, so that a product takes no more than the chunk's logits.
    slices = -(-hidden.shape[1] // hidden.shape[0])
    pairs = zip(of_weight.tensor_split(slices), grad.tensor_split(slices, dim=1), strict=True)
    for total, part in pairs:
        total += part.t() @ hidden


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
