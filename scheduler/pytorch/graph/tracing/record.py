"""Record a call of a model as a graph of modules and operations, by running it.

Every operation between the leaves is seen as torch's own functions see it, and every tensor is
known by its identity. Whatever else the code does (branches, loops, sizes, settings) is done by
Python and is over when the call is; a branch on a tensor's values is recorded as a check that it
goes the same way in each step. What depends on no tensor of the model is a constant.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from scheduler.common.errors import UnsupportedModel
from scheduler.common.text import first_sentence
from scheduler.export.standalone.caches import is_cache, left_out
from scheduler.export.standalone.state import Snapshot
from scheduler.pytorch.graph.tracing.fx import (
    Applied,
    Arguments,
    FxTrace,
    OnCopy,
    Untraceable,
    changed_in_place,
)
from scheduler.pytorch.graph.tracing.nodes import Nodes, check_plain
from scheduler.pytorch.model.step import loss_of
from scheduler.pytorch.observe.autograd import saving_nothing
from scheduler.pytorch.observe.dispatch import tensors_of

NO_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
"""What fake tensors say where values are asked for."""

_OF_THE_FORM = frozenset(
    {"size", "dim", "ndimension", "numel", "nelement", "stride", "element_size", "__len__"}
    | {"is_floating_point", "is_complex", "is_contiguous", "get_device", "type", "__hash__"}
    | {"__get__", "storage_offset", "is_signed", "is_inference", "is_tensor", "result_type"}
    | {"__format__", "__repr__", "__str__"}
)
"""Functions whose results, where they are no tensors, do not depend on values, or are messages."""


class CallRecorder(TorchFunctionMode):
    """Records one call; `several` are the leaves that hand over more than one tensor they made."""

    def __init__(self, model: nn.Module, leaves: frozenset[str], opened: frozenset[str]) -> None:
        super().__init__()
        self.model = model
        self.several: set[str] = set()
        self.called: set[str] = set()
        self.through: set[str] = set()
        self._leaves, self._opened = leaves, opened
        self._names: dict[int, str] = {id(m): n for n, m in reversed([*model.named_modules()])}
        self._handed: dict[str, list[tuple[int, fx.Node]]] = {}
        self._nodes: Nodes
        self._busy = False  # in a call that is recorded as a whole
        self._chance: Any = None  # the state of Python's random numbers after the latest leaf

    def run(self, arguments: Arguments, loss_fn: Callable[[Any], Any] | None = None) -> FxTrace:
        """Call the model; what it drew, and what it did to its buffers, is not undone."""
        self._chance = random.getstate()
        leaves = [
            leaf.detach().requires_grad_(leaf.requires_grad)
            if isinstance(leaf, torch.Tensor)
            else leaf
            for leaf in arguments.leaves
        ]
        self._nodes = Nodes(self.model, tensors_of(leaves))
        args, kwargs = tree_unflatten(leaves, arguments.spec)
        try:
            with saving_nothing(), self._patched(), self._nodes.guard, self:
                output = self.model.forward(*args, **kwargs)
        except (UnsupportedModel, *NO_VALUES) as error:
            raise self._located(error) from error
        self._check_chance()
        found, spec = tree_flatten(output)
        found = [None if is_cache(leaf) else leaf for leaf in found]
        check_plain(found, f"{type(self.model).__name__} returns")
        self._nodes.graph.output(self._nodes.map(found))
        through = tuple(sorted(self.through))
        trained = _trained(found, spec, loss_fn)
        return FxTrace(
            self._nodes.graph, self._nodes.constants(), through, spec, trained, self._handed
        )

    # --- operations -------------------------------------------------------------------------------

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if self._busy:
            return func(*args, **(kwargs or {}))
        return self._operation(func, args, kwargs or {})

    def _operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = str(getattr(func, "__name__", func))
        given = tensors_of((args, kwargs))
        reads = any(self._nodes.knows(t) for t in given)
        was = list(args)
        if reads and _changes(name) and not self._nodes.knows(args[0]):
            was[0] = args[0].clone()  # of the constant
        before = [(t._version, t.requires_grad) for t in given]
        with self._nodes.guard.call(given, f"operation {name!r}"), self._alone():
            result = func(*args, **kwargs)
        made = tensors_of(result)
        if not reads and not (self._nodes.guard.drew and made):
            return result
        changed = [
            (t, needed)
            for t, (version, needed) in zip(given, before, strict=True)
            if t._version != version
        ]
        if name in ("requires_grad_", "__set__"):
            raise UnsupportedModel(
                f"operation {name!r} sets an attribute of a tensor between layers, which a plan "
                "would not do again; name a block that contains it in leaves"
            )
        if changed:
            # What needs a gradient is changed as it is, anything else as a copy.
            tensor, needed = changed[0]
            place = next((i for i, value in enumerate(args) if value is tensor), None)
            if needed and result is tensor:
                node = self._nodes.make(func, was, kwargs)
            elif len(changed) > 1 or place is None or self._nodes.is_fixed(tensor):
                raise changed_in_place(f"operation {name!r}")
            else:
                node = self._nodes.make(OnCopy(func, place), was, kwargs)
            self._nodes.put(tensor, node)
        elif not made:
            self._value(func, name, args, kwargs, result)
        elif fresh := [t for t in made if not self._nodes.knows(t)]:
            node = self._nodes.make(func, args, kwargs)
            if self._nodes.guard.shaped:
                node.meta["shape"] = [tuple(t.shape) for t in made]
            for tensor in _once(fresh):
                part = node if tensor is result else self._part(node, result, tensor)
                self._nodes.put(tensor, part)
        self._nodes.guard.record([t for t, _ in changed])
        return result

    def _part(self, node: fx.Node, result: Any, tensor: torch.Tensor) -> fx.Node:
        if not isinstance(result, (tuple, list)) or all(tensor is not value for value in result):
            raise UnsupportedModel(
                f"operation {node.name!r} returns {type(result).__name__} with tensors inside "
                "others; name a block that contains it in leaves"
            )
        place = next(k for k, value in enumerate(result) if value is tensor)
        return self._nodes.make(operator.getitem, (node, place), {})

    def _value(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any
    ) -> None:
        """Record a branch or a count as a check; refuse what else is taken out of a tensor."""
        if value is None or name in _OF_THE_FORM:
            return
        if not all(isinstance(leaf, int) for leaf in tree_leaves(value)):
            raise UnsupportedModel(
                f"operation {name.strip('_')!r} makes {type(value).__name__} from the values of a "
                "tensor; name a block that contains it in leaves"
            )
        self._nodes.make(func, args, kwargs).meta["value"] = value

    # --- modules ----------------------------------------------------------------------------------

    def call(
        self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """Take the place of a module's call."""
        name = self._names.get(id(module))
        if self._busy or not name:
            return original(module, *args, **kwargs)
        self.called.add(name)
        if (changed := left_out(name, UnsupportedModel, module, args, kwargs)) is not None:
            args = tuple(None if is_cache(value) else value for value in changed[0])
            kwargs = {k: None if is_cache(value) else value for k, value in changed[1].items()}
        parts = name.split(".")
        above = {".".join(parts[: i + 1]) for i in range(len(parts))}
        # Part of a leaf that is called from outside of it is one, too.
        leaf = bool(above & self._leaves and not above & self._opened) or (
            type(module).__module__.startswith(("torch.nn", "torch.ao.nn"))
            and not isinstance(module, nn.Sequential)
        )
        if leaf and name not in self._opened:
            try:
                with self._alone():
                    return self._leaf(original, name, module, args, kwargs)
            except (UnsupportedModel, *NO_VALUES) as error:
                raise self._located(error) from error
        self.through.add(name)
        self._nodes.through.append(name)
        try:
            return self._inside(original, name, module, args, kwargs)
        except (UnsupportedModel, *NO_VALUES) as error:
            raise self._located(error) from error
        finally:
            self._nodes.through.pop()

    def _located(self, error: Exception) -> Untraceable:
        """The error, with the place where the recording is now."""
        if isinstance(error, Untraceable) and error.inside:
            return error
        said = str(error)
        if isinstance(error, NO_VALUES):
            said = (
                f"{type(self.model).__name__} reads values of tensors ({first_sentence(error)}), "
                "which fake tensors do not have; trace and profile it with real ones, or name a "
                "block that does so in leaves"
            )
        return Untraceable(said, tuple(self._nodes.through), getattr(error, "leaf", None))

    def _inside(
        self,
        original: Callable[..., Any],
        name: str,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if name not in self._opened or self._nodes.inside:
            return original(module, *args, **kwargs)
        if name in self._handed:
            raise Untraceable(
                f"block {name!r} hands over several tensors and is called more than once; name "
                "its parts in leaves",
                leaf=name,
            )
        self._nodes.inside = name
        try:
            output = original(module, *args, **kwargs)
        finally:
            self._nodes.inside = ""
        self._handed[name] = [
            (place, node)
            for place, leaf in enumerate(tree_leaves(output))
            if isinstance(leaf, torch.Tensor)
            and (node := self._nodes.get(leaf)) is not None
            and node.meta.get("inside") == name
        ]
        return output

    def _leaf(
        self,
        original: Callable[..., Any],
        name: str,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        check_plain(tree_leaves((args, kwargs)), f"module {name!r} is called with", name)
        self._check_chance()
        given = tensors_of((args, kwargs))
        versions = [t._version for t in given]
        handed = Snapshot((), handed=[*args, *kwargs.values()])
        with self._nodes.guard.call(given, f"module {name!r}", own=True):
            output = original(module, *args, **kwargs)
        if (kind := handed.changed) is not None:
            raise Untraceable(
                f"module {name!r} changes an argument ({kind}) that others are handed, too",
                leaf=name,
            )
        self._chance = random.getstate()
        leaves = tree_leaves(output)
        check_plain(leaves, f"module {name!r} returns", name)
        made = tensors_of(leaves)
        changed = [t for t, v in zip(given, versions, strict=True) if t._version != v]
        fresh = _once(
            t for t in made if not self._nodes.knows(t) and all(t is not g for g in given)
        )
        node = self._nodes.make(name, args, kwargs)
        if changed and (len(changed) > 1 or changed[0] is not output):
            raise changed_in_place(f"module {name!r}")
        if len(fresh) > 1:
            self.several.add(name)
        for tensor in fresh or ([output] if isinstance(output, torch.Tensor) else []):
            place = next(k for k, leaf in enumerate(leaves) if leaf is tensor)
            node.meta["place"] = place
            self._nodes.put(tensor, node)
        self._nodes.guard.record(changed)
        return output

    # --- where it hooks in ------------------------------------------------------------------------

    def _check_chance(self) -> None:
        if random.getstate() != self._chance:
            raise UnsupportedModel(
                f"{type(self.model).__name__} draws from Python's random module between its "
                "layers, which a plan would not do again; use torch's random numbers, or name a "
                "block that contains it in leaves"
            )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    @contextmanager
    def _patched(self) -> Iterator[None]:
        """See calls of modules, and of autograd functions, which no mode of torch sees."""
        function = torch.autograd.Function
        # From the class's dict: as an attribute it would be bound to `Function`, and put back so.
        call, apply = nn.Module.__call__, function.__dict__["apply"]

        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return self.call(call, module, args, kwargs)

        def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if self._busy:
                return apply.__get__(None, cls)(*args, **kwargs)
            return self._operation(Applied(cls), args, kwargs)

        nn.Module.__call__ = called  # type: ignore[method-assign]
        function.apply = classmethod(applied)  # type: ignore[assignment]
        try:
            yield
        finally:
            nn.Module.__call__ = call  # type: ignore[method-assign]
            function.apply = apply  # type: ignore[method-assign]


def _trained(
    leaves: list[Any], spec: TreeSpec, loss_fn: Callable[[Any], Any] | None
) -> tuple[int, ...]:
    """Places, among what a model returns, of what a loss is made of; none where it is not known."""
    graded = [k for k, t in enumerate(leaves) if isinstance(t, torch.Tensor) and t.requires_grad]
    output = tree_unflatten(leaves, spec)
    if loss_fn is None:
        loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        return tuple(k for k in graded if leaves[k] is loss)
    apart = dict(enumerate(leaves)) | {k: leaves[k].detach().requires_grad_() for k in graded}
    loss = loss_of(tree_unflatten(apart.values(), spec), loss_fn)
    if not loss.requires_grad:
        return ()
    found = torch.autograd.grad(loss, [apart[k] for k in graded], allow_unused=True)
    return tuple(k for k, gradient in zip(graded, found, strict=True) if gradient is not None)


def _changes(name: str) -> bool:
    """Whether a function changes its first argument, by its name."""
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


def _once(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())
