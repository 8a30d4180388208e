"""A model's call taken apart: its arguments, and nodes, which are those of torch.fx, and kinds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves

from scheduler.common.errors import UnsupportedModel
from scheduler.common.text import first_sentence
from scheduler.pytorch.model.step import arguments_of
from scheduler.pytorch.observe.dispatch import tensors_of


class OtherValues(UnsupportedModel):
    """The values of a batch lead to another graph than that of the trace."""


class Untraceable(UnsupportedModel):
    """Something that a plan cannot honour, in the innermost of the modules `inside`.

    `leaf`: it is a module that is not looked into which hands over, or is handed, what cannot be.
    """

    def __init__(self, said: str, inside: tuple[str, ...] = (), leaf: str | None = None) -> None:
        super().__init__(said)
        self.inside = inside
        self.leaf = leaf


@dataclass(frozen=True)
class Arguments:
    """What a model is called with, taken apart: all that is no container, in a fixed order.

    `spec` says how these leaves are put together to positional and keyword arguments.
    """

    leaves: tuple[Any, ...]
    spec: TreeSpec

    @classmethod
    def of(cls, model: nn.Module, inputs: Any) -> Arguments:
        """Take apart a tensor, a tuple of arguments, or a dict of keyword arguments."""
        args, kwargs = arguments_of(inputs)
        return cls.bound(model, args, kwargs)

    @classmethod
    def bound(cls, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Take apart the arguments of a call."""
        try:
            found = inspect.signature(type(model).forward).bind(model, *args, **kwargs)
        except TypeError as error:
            raise UnsupportedModel(f"{type(model).__name__} cannot be called so: {error}") from None
        leaves, spec = tree_flatten((found.args[1:], found.kwargs))
        return cls(tuple(leaves), spec)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The leaves that are tensors."""
        return tensors_of(self.leaves)

    @property
    def form(self) -> tuple[Any, ...]:
        """Equal for calls that a trace does not tell apart."""
        return (self.spec, *(_form(leaf) for leaf in self.leaves), casting(self.tensors))


Casting = tuple[tuple[str, torch.dtype, bool], ...]
"""For each kind of device: the type that autocast casts to, and whether it is on."""


def casting(tensors: Iterable[torch.Tensor]) -> Casting:
    """What autocast does now, on the CPU and where these tensors are."""
    kinds = sorted({"cpu", *(tensor.device.type for tensor in tensors)})
    return tuple(
        (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        for kind in kinds
        if torch.amp.is_autocast_available(kind)
    )


@contextmanager
def cast(how: Casting) -> Iterator[None]:
    """Let autocast do so again, without its cache.

    A cast that was cached where nothing is kept would lead no gradient to its parameter.
    """
    with ExitStack() as stack:
        for kind, dtype, enabled in how:
            stack.enter_context(
                torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False)
            )
        yield


def _form(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad
    return type(leaf), leaf


@dataclass(frozen=True)
class FxTrace:
    """What is recorded of a model's call.

    Attributes
    ----------
    graph
        One placeholder for each tensor among the arguments, in their order; what a node makes is
        one tensor, a tuple of views, or a boolean.
    constants
        Tensors that depend on no tensor of the model, by name.
    through
        Names of the modules that were looked into.
    spec
        How what the model returns is put together from the leaves that the output node reads.
    trained
        Places, among these leaves, of what the loss is made of, where that is known.
    handed
        For each block that was looked into because it hands over several tensors: their places
        and nodes.
    """

    graph: fx.Graph
    constants: dict[str, torch.Tensor]
    through: tuple[str, ...]
    spec: TreeSpec
    trained: tuple[int, ...]
    handed: dict[str, list[tuple[int, fx.Node]]]


@dataclass
class Kinds:
    """The nodes of a trace by kind; what is in none is a placeholder or the output.

    Attributes
    ----------
    layers
        In order; the values mean nothing.
    views
        Those whose tensors lie in the storage of what they read, and attributes.
    bundles
        The views that are several tensors.
    held
        Tensors that need no gradient, and checks of branches.
    copies
        Layers that would be views, but whose gradients must be added up by themselves.
    joined
        Layers that are run as one with the operation that alone reads them. It follows them and
        hands them its gradient as it is, as an addition does: apart, they would be charged for two
        gradients that are one tensor. Or it changes their output in place, or both are of one
        group.
    groups
        For the layers of a block that are run as one: the last of them.
    differs
        Whose tensors need a gradient, arguments of the model included.
    sizes
        Elements of what is one tensor.
    edges
        How many edges of a layer's autograd graph (the second) lead to what it reads (the first),
        where they are several.
    pieces
        Blocks that hand over several tensors and cannot be one layer for each.
    names
        Of layers that are called otherwise than their modules.
    """

    layers: dict[fx.Node, None] = field(default_factory=dict)
    views: set[fx.Node] = field(default_factory=set)
    bundles: set[fx.Node] = field(default_factory=set)
    held: set[fx.Node] = field(default_factory=set)
    copies: set[fx.Node] = field(default_factory=set)
    joined: set[fx.Node] = field(default_factory=set)
    groups: dict[fx.Node, fx.Node] = field(default_factory=dict)
    differs: set[fx.Node] = field(default_factory=set)
    sizes: dict[fx.Node, int] = field(default_factory=dict)
    edges: dict[tuple[fx.Node, fx.Node], int] = field(default_factory=dict)
    pieces: list[str] = field(default_factory=list)
    names: dict[fx.Node, str] = field(default_factory=dict)


@dataclass(frozen=True)
class OnCopy:
    """An operation that changes an argument in place, done to a copy of it, which is returned."""

    func: Callable[..., Any]
    place: int

    @property
    def __name__(self) -> str:
        """For names of nodes and messages."""
        return str(getattr(self.func, "__name__", self.func))

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Run it."""
        copy: torch.Tensor = args[self.place].clone()
        self.func(*args[: self.place], copy, *args[self.place + 1 :], **kwargs)
        return copy


@dataclass(frozen=True)
class Applied:
    """The call of an autograd function."""

    function: Any

    @property
    def __name__(self) -> str:
        """For names of nodes and messages."""
        return str(self.function.__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it."""
        return self.function.apply(*args, **kwargs)


def changed_in_place(said: str) -> UnsupportedModel:
    """The refusal of a change in place that a recomputation could not read again."""
    return UnsupportedModel(
        f"{said} changes in place what others read, or what was made further up, which a "
        "recomputation could not read again; use the version that does not (inplace=False), or "
        "name a block that contains both it and what makes its input in leaves"
    )


def run_node(
    node: fx.Node,
    model: nn.Module,
    constants: dict[str, torch.Tensor],
    lookup: Callable[[fx.Node], Any],
) -> Any:
    """Run one node; `lookup` gives the values of those it reads.

    A branch may go no other way than when it was recorded, nor may a shape that depends on values
    be another.
    """
    target: Any = node.target
    if node.op == "get_attr":
        return constants[target] if target in constants else attrgetter(target)(model)
    args = fx.map_arg(node.args, lookup)
    kwargs = fx.map_arg(node.kwargs, lookup)
    with ExitStack() as stack:
        if "under" in node.meta:
            enabled, how = node.meta["under"]
            stack.enter_context(torch.set_grad_enabled(enabled))
            stack.enter_context(cast(how))
        call = model.get_submodule(target) if node.op == "call_module" else target
        try:
            result = call(*args, **kwargs)
        except RuntimeError as error:
            if type(error) is not RuntimeError:  # memory that is out, say
                raise
            raise OtherValues(
                f"{node.name!r} ran when the model was traced and fails now "
                f"({first_sentence(error)}), as sizes in the model depend on its inputs' values or "
                "on what it draws; a plan is for one size"
            ) from error
    if node.op == "call_module":
        return tree_leaves(result)[node.meta["place"]] if "place" in node.meta else result
    _check(node, result)
    return result


def _check(node: fx.Node, result: Any) -> None:
    if "value" in node.meta and result != node.meta["value"]:
        raise OtherValues(
            f"the model branches on what operation {node.name!r} makes of its inputs' values, "
            f"which is {result} now and was {node.meta['value']} when it was traced; trace it for "
            "each kind of batch (with and without padding, say), or take the branch out"
        )
    if "shape" in node.meta:
        shapes = [tuple(tensor.shape) for tensor in tensors_of(result)]
        if shapes != node.meta["shape"]:
            raise OtherValues(
                f"operation {node.name!r} makes {shapes} of its inputs' values now and made "
                f"{node.meta['shape']} when the model was traced; a plan is for one size"
            )
