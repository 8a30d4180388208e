"""Trace a model with torch.fx without changing it, and run single nodes of what comes out."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from scheduler.errors import UnsupportedModel
from scheduler.pytorch.blocks import Replaced
from scheduler.text import did_you_mean


@dataclass(frozen=True)
class Arguments:
    """What a model is called with, taken apart.

    Attributes
    ----------
    leaves
        Everything that is no container, in a fixed order.
    spec
        How the leaves are put together to the arguments by name.
    """

    leaves: tuple[Any, ...]
    spec: TreeSpec

    @classmethod
    def of(cls, model: nn.Module, inputs: Any) -> Arguments:
        """Take apart a tensor, a tuple of arguments, or a dict of keyword arguments."""
        if isinstance(inputs, torch.Tensor):
            return cls.bound(model, (inputs,), {})
        if isinstance(inputs, (tuple, list)):
            return cls.bound(model, tuple(inputs), {})
        if hasattr(inputs, "keys"):
            return cls.bound(model, (), dict(inputs))
        raise UnsupportedModel(
            "inputs must be a tensor, a tuple of arguments or a dict of keyword arguments, "
            f"got {type(inputs).__name__}"
        )

    @classmethod
    def bound(cls, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Take apart the arguments of a call."""
        try:
            found = inspect.signature(type(model).forward).bind(model, *args, **kwargs)
        except TypeError as error:
            raise UnsupportedModel(f"{type(model).__name__} cannot be called so: {error}") from None
        named = dict(list(found.arguments.items())[1:])
        leaves, spec = tree_flatten(named)
        return cls(tuple(leaves), spec)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The leaves that are tensors."""
        return [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]

    @property
    def form(self) -> tuple[Any, ...]:
        """Equal for calls that a trace does not tell apart."""
        return (self.spec, *(_form(leaf) for leaf in self.leaves), casting(self.tensors))


Casting = tuple[tuple[str, torch.dtype, bool], ...]
"""For each kind of device: the type that autocast casts to, and whether it is on."""


def casting(tensors: Iterable[torch.Tensor]) -> Casting:
    """Say what autocast does now, on the CPU and where these tensors are."""
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
    """What torch.fx makes of a model.

    Attributes
    ----------
    graph
        One placeholder for each tensor among the arguments, in their order.
    constants
        Tensors that the model's code made while it was traced, by name.
    through
        Names of the modules that were looked into.
    """

    graph: fx.Graph
    constants: dict[str, torch.Tensor]
    through: tuple[str, ...]


def trace_symbolically(
    model: nn.Module, arguments: Arguments, leaves: Iterable[str] | None
) -> FxTrace:
    """Trace a model; modules in `leaves`, and those of torch.nn, are not looked into.

    Raises
    ------
    UnsupportedModel
        A leaf is no module of the model or is not called, the code depends on values, or it draws
        random numbers outside every node.
    """
    names = [] if leaves is None else list(leaves)
    modules = dict(model.named_modules())
    for name in names:
        if name not in modules or not name:
            raise UnsupportedModel(
                f"{type(model).__name__} has no module {name!r}{did_you_mean(name, modules)}"
            )
    for name, module in modules.items():
        if isinstance(module.__dict__.get("forward"), Replaced):
            raise UnsupportedModel(
                f"a plan is already applied to {name or type(model).__name__!r}; "
                "call remove() on its handle first"
            )
    tracer = _Tracer(frozenset(names), arguments)
    draws = Draws()
    try:
        with draws:
            graph = tracer.trace(model)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise UnsupportedModel(
            f"torch.fx cannot trace {type(model).__name__} ({type(error).__name__}: {reason}); "
            "name the blocks whose code depends on values as leaves: leaves=['block.0', ...]"
        ) from error
    if draws.seen:
        raise UnsupportedModel(
            f"{type(model).__name__} draws random numbers that depend on no input, which a trace "
            "would make constants; draw them inside a block that is named in leaves"
        )
    called = {node.target for node in graph.nodes if node.op == "call_module"}
    for name in names:
        if name not in called:
            raise UnsupportedModel(
                f"leaf {name!r} is never called by the model; name modules whose forward runs"
            )
    return FxTrace(graph, tracer.made, tuple(sorted(tracer.through)))


class Draws(TorchDispatchMode):
    """Sees whether a random number is drawn."""

    seen = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self.seen |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


class _Proxy(fx.Proxy):
    """A proxy that knows ``x += y`` from ``x = x + y``; torch.fx makes the second of both."""


def _in_place(name: str) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    def run(self: fx.Proxy, other: Any) -> fx.Proxy:
        made: fx.Proxy = self.tracer.create_proxy(
            "call_function", getattr(operator, name), (self, other), {}
        )
        return made

    return run


for _name in (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
    *("and", "or", "xor", "lshift", "rshift"),
):
    setattr(_Proxy, f"__i{_name}__", _in_place(f"i{_name}"))


class _Tracer(fx.Tracer):
    """Make placeholders of the given tensors only, and keep constants out of the model."""

    proxy_buffer_attributes = True

    def __init__(self, leaves: frozenset[str], arguments: Arguments) -> None:
        super().__init__()
        self._leaves = leaves
        self._arguments = arguments
        self.made: dict[str, torch.Tensor] = {}
        self.through: set[str] = set()

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Note which modules are looked into."""
        name = self.path_of_module(m)
        if not self.is_leaf_module(m, name):
            self.through.add(name)
        return super().call_module(m, forward, args, kwargs)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Return what the model's code handles in the place of a value."""
        return _Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Say whether a module becomes one node."""
        return module_qualified_name in self._leaves or super().is_leaf_module(
            m, module_qualified_name
        )

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Give the model a proxy for each tensor, and everything else as it is."""
        leaves = [
            self.create_proxy("placeholder", f"input_{i}", (), {})
            if isinstance(leaf, torch.Tensor)
            else leaf
            for i, leaf in enumerate(self._arguments.leaves)
        ]
        named = tree_unflatten(leaves, self._arguments.spec)

        def run(root: nn.Module) -> Any:
            names = inspect.signature(root_fn).parameters
            positional, keywords = [root], {}
            for name, value in named.items():
                if names[name].kind is inspect.Parameter.VAR_POSITIONAL:
                    positional.extend(value)
                elif names[name].kind is inspect.Parameter.VAR_KEYWORD:
                    keywords.update(value)
                elif keywords or names[name].kind is inspect.Parameter.KEYWORD_ONLY:
                    keywords[name] = value
                elif len(positional) == list(names).index(name):
                    positional.append(value)
                else:
                    keywords[name] = value
            return root_fn(*positional, **keywords)

        return run, [self.root]

    def create_arg(self, a: Any) -> Any:
        """Keep a tensor that the code makes beside the graph; torch.fx puts it on the model."""
        own = [*self.root.parameters(), *self.root.buffers()]
        if isinstance(a, torch.Tensor) and all(a is not tensor for tensor in own):
            name = next((n for n, made in self.made.items() if made is a), None)
            if name is None:
                name = f"(constant {len(self.made)})"
                self.made[name] = a
            return self.create_node("get_attr", name, (), {}, name="constant")
        return super().create_arg(a)


def run_node(
    node: fx.Node,
    model: nn.Module,
    constants: dict[str, torch.Tensor],
    lookup: Callable[[fx.Node], Any],
) -> Any:
    """Run one node; `lookup` gives the values of those it reads."""
    target: Any = node.target
    if node.op == "get_attr":
        return constants[target] if target in constants else attribute(model, target)
    args = fx.map_arg(node.args, lookup)
    kwargs = fx.map_arg(node.kwargs, lookup)
    if node.op == "call_module":
        return model.get_submodule(target)(*args, **kwargs)
    if node.op == "call_method":
        return getattr(args[0], target)(*args[1:], **kwargs)
    return target(*args, **kwargs)


def attribute(model: nn.Module, name: str) -> Any:
    """Return a parameter, buffer or module by its dotted name."""
    value: Any = model
    for part in name.split("."):
        value = getattr(value, part)
    return value
