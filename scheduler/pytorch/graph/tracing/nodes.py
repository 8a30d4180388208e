"""The nodes of a recording, and which tensor each has made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import map_aggregate
from torch.utils.weak import WeakTensorKeyDictionary

from scheduler.common.errors import UnsupportedModel
from scheduler.pytorch.graph.tracing.fx import casting
from scheduler.pytorch.graph.tracing.reads import ReadGuard, storage_of

_PLAIN: tuple[type, ...] = (
    *(bool, int, float, complex, str, bytes, type, range, slice, type(None), type(...)),
    *(torch.Tensor, torch.dtype, torch.device, torch.layout, torch.memory_format),
)


class Nodes:
    """Makes nodes, and knows the tensors that they stand for by identity.

    Attributes
    ----------
    graph
        What is recorded so far.
    guard
        What is told of it.
    inside
        Name of the block that is looked into now, or "".
    """

    def __init__(self, model: nn.Module, inputs: list[torch.Tensor]) -> None:
        self.graph = fx.Graph()
        self.guard = ReadGuard([*model.parameters(), *model.buffers()])
        self.inside = ""
        own = [*model.named_parameters(), *model.named_buffers()]
        self._own = {id(tensor): name for name, tensor in reversed(own)}
        self._kind = type(model).__name__
        self._attributes: dict[str, fx.Node] = {}
        self._constants: dict[str, tuple[torch.Tensor, int]] = {}  # with its version then
        # By identity: an ordinary dict would compare tensors, element by element.
        self._of: Any = WeakTensorKeyDictionary()
        for i, tensor in enumerate(inputs):
            self.put(tensor, self.graph.placeholder(f"input_{i}"))
        self.guard.record(inputs)
        self._inputs = inputs
        self._ambient = torch.is_grad_enabled(), casting(inputs)

    def make(self, target: Any, args: Any, kwargs: Any) -> fx.Node:
        """A node for the latest call, of a function or of a module by its name."""
        args, kwargs = self.map(tuple(args)), self.map(dict(kwargs))
        if isinstance(target, str):
            node = self.graph.call_module(target, args, kwargs)
        else:
            name = str(getattr(target, "__name__", target))
            plain = name[2:-2] if name.startswith("__") and name.endswith("__") else None
            node = self.graph.create_node("call_function", target, args, kwargs, plain)
        under = torch.is_grad_enabled(), casting(self._inputs)
        if under != self._ambient:
            node.meta["under"] = under
        node.meta["inside"] = self.inside
        self.guard.record()
        return node

    def put(self, tensor: torch.Tensor, node: fx.Node) -> None:
        """Let a node stand for a tensor from now on."""
        self._of[tensor] = node, tensor.requires_grad

    def get(self, tensor: torch.Tensor) -> fx.Node | None:
        """The node that stands for a tensor that was recorded."""
        found: fx.Node | None = self._of.get(tensor, (None, False))[0]
        return found

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a parameter, a buffer, an input or made of such."""
        return id(tensor) in self._own or tensor in self._of

    def is_fixed(self, tensor: torch.Tensor) -> bool:
        """Whether changing a tensor would be seen outside the recording."""
        node = self.get(tensor)
        given = id(tensor) in self._own or (node is not None and node.op == "placeholder")
        mine = storage_of(tensor)
        others = [storage_of(other) for other in self._of if other is not tensor]
        return given or mine is None or mine in others

    def map(self, value: Any) -> Any:
        """Put nodes in the place of tensors in tuples, lists, dicts and slices."""
        return map_aggregate(value, self._node_for)

    def constants(self) -> dict[str, torch.Tensor]:
        """Tensors that depend on none that is known, by name.

        Raises
        ------
        UnsupportedModel
            One has changed since it was read.
        """
        for tensor, version in self._constants.values():
            if tensor._version != version:
                raise UnsupportedModel(
                    f"{self._kind} changes a tensor of shape {tuple(tensor.shape)} in place, which "
                    "it read before; use an operation that makes a new tensor"
                )
        return {name: tensor for name, (tensor, _) in self._constants.items()}

    def _node_for(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if (node := self.get(value)) is not None:
            if self._of[value][1] != value.requires_grad:
                raise UnsupportedModel(
                    f"{self._kind} reads a tensor of shape {tuple(value.shape)} whose gradient "
                    "does not come from the operations that made it (of an autograd function "
                    "whose apply was taken beforehand, say); name a block that contains them in "
                    "leaves"
                )
            return node
        name = self._own.get(id(value)) or self._constant(value)
        if name not in self._attributes:
            self._attributes[name] = self.graph.create_node("get_attr", name, name="constant")
        return self._attributes[name]

    def _constant(self, tensor: torch.Tensor) -> str:
        for name, (known, _) in self._constants.items():
            if known is tensor:
                return name
        if self.guard.is_made(tensor):
            raise UnsupportedModel(
                f"{self._kind} reads a tensor of shape {tuple(tensor.shape)} that a layer made "
                "and did not return; return it, or name a block that contains both in leaves"
            )
        name = f"(constant {len(self._constants)})"
        self._constants[name] = tensor, tensor._version
        return name


def check_plain(leaves: Iterable[Any], said: str) -> None:
    """Raise `UnsupportedModel` for an object in which tensors could be hidden."""
    for leaf in leaves:
        if not (isinstance(leaf, _PLAIN) or callable(leaf)) or isinstance(leaf, nn.Module):
            raise UnsupportedModel(
                f"{said} an object of type {type(leaf).__name__}, in which tensors could be "
                "hidden; use tensors, plain values and containers of them (and no cache)"
            )
