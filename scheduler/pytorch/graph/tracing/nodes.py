"""The nodes of a recording: which tensor each has made, and which tensors its operations read."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import map_aggregate
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakTensorKeyDictionary

from scheduler.common.errors import UnsupportedModel
from scheduler.pytorch.graph.tracing.fx import Untraceable, casting
from scheduler.pytorch.observe.dispatch import OperationMode, is_random, tensors_of

_PLAIN: tuple[type, ...] = (
    *(bool, int, float, complex, str, bytes, type, range, slice, type(None), type(...)),
    *(torch.Tensor, torch.dtype, torch.device, torch.layout, torch.memory_format),
)


Storage = int
"""Where a storage lies: equal for tensors that share one."""


def storage_of(tensor: torch.Tensor) -> Storage | None:
    """Where a tensor lies; None for one without a storage of its own."""
    with torch._C.DisableTorchFunction():  # nobody is to record this
        try:
            return int(tensor.untyped_storage()._cdata)
        except NotImplementedError:  # sparse, or inside a transform such as vmap
            return None


def _reference(tensor: torch.Tensor) -> StorageWeakRef:
    with torch._C.DisableTorchFunction():
        return StorageWeakRef(tensor.untyped_storage())


class ReadGuard(OperationMode):
    """Checks what is read, one recorded call at a time.

    What a recording does not see, it would make a constant, and the gradient through it would be
    lost without a word. Each operation that torch executes may read what the recorded call was
    given, what this call made, parameters and buffers, and constants, but nothing that another
    call made. `drew`: the latest call has drawn random numbers; `shaped`: it has made a tensor
    whose shape depends on values.
    """

    def __init__(self, own: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.drew = False
        self.shaped = False
        self._own = {storage_of(tensor) for tensor in own}  # parameters and buffers
        self._may_own = False
        self._latest: dict[Storage, StorageWeakRef] = {}
        self._made: dict[Storage, StorageWeakRef] = {}
        self._given: set[Storage | None] = set()
        self._fresh: dict[Storage, StorageWeakRef] = {}
        self._said = "the model's code"

    @contextmanager
    def call(self, given: Iterable[torch.Tensor], said: str, own: bool = False) -> Iterator[None]:
        """Watch one call that is given these tensors, and parameters and buffers if `own`."""
        before = self._given, self._fresh, self._said, self._may_own
        self._given, self._fresh = {storage_of(t) for t in given}, {}
        self._said, self._may_own = said, own
        self.drew = self.shaped = False
        try:
            yield
        finally:
            self._latest = self._fresh
            self._given, self._fresh, self._said, self._may_own = before

    def record(self, results: Iterable[torch.Tensor] = ()) -> None:
        """What the latest call made, and `results`, must be handed over to be read."""
        self._made |= self._latest
        for tensor in results:
            if (where := storage_of(tensor)) is not None:
                self._made[where] = _reference(tensor)

    def is_made(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in what a recorded call made."""
        where = storage_of(tensor)
        return where is not None and self._live(where)

    def _live(self, where: Storage) -> bool:
        found = self._made.get(where)
        return found is not None and not found.expired()

    def _operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for tensor in tensors_of((args, kwargs)):
            where = storage_of(tensor)
            if where is None or where in self._given or where in self._fresh:
                continue
            if self._live(where) or (where in self._own and not self._may_own):
                raise UnsupportedModel(
                    f"{self._said} reads a tensor that it is not given as an argument "
                    f"({func}), so that a plan could not keep it or make it again; hand it over "
                    "as an argument, or name a block that contains both in leaves"
                )
        result = func(*args, **kwargs)
        self.drew |= is_random(func)
        self.shaped |= torch.Tag.dynamic_output_shape in func.tags
        for tensor in tensors_of(result):
            where = storage_of(tensor)
            # A view of a parameter is made by nobody: the next call of its module reads it, too.
            if where is not None and where not in self._given and where not in self._own:
                self._fresh[where] = _reference(tensor)
        return result


class Nodes:
    """Makes nodes, and knows the tensors that they stand for by identity.

    `inside` is the name of the block that is looked into now, or ""; `through` are the names of all
    modules that are, outermost first.
    """

    def __init__(self, model: nn.Module, inputs: list[torch.Tensor]) -> None:
        self.graph = fx.Graph()
        self.guard = ReadGuard([*model.parameters(), *model.buffers()])
        self.inside = ""
        self.through: list[str] = []
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
        node.meta["inside"], node.meta["through"] = self.inside, tuple(self.through)
        # What takes a tuple of results apart draws nothing itself.
        node.meta["random"] = self.guard.drew and target is not operator.getitem
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
        """Tensors that depend on none that is known, by name; none may have changed since."""
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


def check_plain(leaves: Iterable[Any], said: str, leaf: str | None = None) -> None:
    """Raise `UnsupportedModel` for an object in which tensors could be hidden."""
    for each in leaves:
        if not (isinstance(each, _PLAIN) or callable(each)) or isinstance(each, nn.Module):
            raise Untraceable(
                f"{said} an object of type {type(each).__name__}, in which tensors could be "
                "hidden; use tensors, plain values and containers of them (and no cache)",
                leaf=leaf,
            )
