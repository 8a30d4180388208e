"""Where a part of a model is cut out of autograd's graph: ways in for tensors and for gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks


class Source(torch.autograd.Function):
    """A tensor made the input of a graph, whose gradient is seen to go by.

    ``Source.apply(gate, [tensor], seen)``: the gate is any scalar that requires grad. ``seen`` is
    called with the gradient, which goes no further; the gate's own graph, if it has one, is run
    backward next. A plain leaf will not do: it would be held to the end, and its gradient might be
    copied.
    """

    @staticmethod
    def forward(
        ctx: Any, gate: torch.Tensor, box: list[Any], seen: Callable[[torch.Tensor], Any]
    ) -> torch.Tensor:
        """The tensor in the box."""
        ctx.seen = seen
        # Not the gate itself: what a context refers to lives until the backward.
        ctx.device = gate.device
        tensor: torch.Tensor = box.pop()
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Show the gradient."""
        ctx.seen(grad_outputs[0])
        # Without a gradient for the gate autograd would not go on into its graph.
        return torch.ones((), device=ctx.device), None, None


class Aside(Source):
    """A `Source` whose gate is left alone."""

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Show the gradient."""
        ctx.seen(grad_outputs[0])
        return None, None, None


class Sink(torch.autograd.Function):
    """A scalar whose backward sends the gradient in the box into ``tensor``'s graph."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, box: list[Any]) -> torch.Tensor:
        """A scalar; nothing is held."""
        # Not `save_for_backward`: the gradient is put in later, and leaves when it is taken out.
        ctx.box = box
        return torch.zeros((), device=tensor.device)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Hand over the gradient, without keeping it."""
        return ctx.box.pop(), None


def gate(device: torch.device) -> torch.Tensor:
    """A leaf that requires grad, to open a graph with."""
    return torch.zeros((), device=device, requires_grad=True)


class Join(torch.autograd.Function):
    """One scalar made of several; its backward goes on into each."""

    @staticmethod
    def forward(ctx: Any, *scalars: torch.Tensor) -> torch.Tensor:
        """The scalar."""
        ctx.count = len(scalars)
        return torch.zeros((), device=scalars[0].device)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Pass it on to all."""
        return (grad_outputs[0],) * ctx.count


class Beside(torch.autograd.Function):
    """A tensor, with whose gradient one goes into each of the others, too."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        """The tensor."""
        ctx.forms = [(other.shape, other.dtype, other.device) for other in others]
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Make the others' gradients without memory: whoever reads them has counted them."""
        rest = [
            torch.ones((), dtype=dtype, device=device).expand(shape)
            for shape, dtype, device in ctx.forms
        ]
        return (*grad_outputs, *rest)


def nodes_below(root: Any, lowest: int = -1) -> list[Any]:
    """`root`, and for each edge of the autograd graph below it the node at its end.

    Only nodes, and edges of nodes, whose sequence number is above `lowest`.
    """
    found: list[Any] = []
    opened: set[Any] = set()
    todo = [root]
    while todo:
        node = todo.pop()
        if node is None or node._sequence_nr() <= lowest:
            continue
        found.append(node)
        if node not in opened:
            opened.add(node)
            todo.extend(following for following, _ in node.next_functions)
    return found


def leaves_above(root: Any, bottom: Any) -> list[torch.Tensor]:
    """Leaves that get a gradient from nodes below `root` that were made after the node `bottom`."""
    nodes = nodes_below(root, -1 if bottom is None else bottom._sequence_nr())
    return [node.variable for node in nodes if type(node).__name__ == "AccumulateGrad"]


def saving_nothing(seen: Callable[[torch.Tensor], None] | None = None) -> saved_tensors_hooks:
    """A context in which a forward saves nothing; `seen` is shown what it would have saved.

    Not `torch.no_grad`: some kernels round differently without gradients.
    """

    def pack(tensor: torch.Tensor) -> None:
        if seen is not None:
            seen(tensor)

    return saved_tensors_hooks(pack, _unpack)


def _unpack(packed: Any) -> torch.Tensor:
    raise AssertionError("a forward that saves nothing has no backward")
