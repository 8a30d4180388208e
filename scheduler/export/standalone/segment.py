"""Segments of blocks that run where the model calls them, and run again as the plan says."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import MethodType
from typing import Any

import torch
import torch.utils.checkpoint as of_torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from scheduler.export.standalone.caches import for_one_run, left_out
from scheduler.export.standalone.kept import _put_states, _Selection, _states
from scheduler.export.standalone.plan import LAYERS, _Tree
from scheduler.export.standalone.state import BlockState, Snapshot, Watched


class _Block:
    """Stands in for the forward of a module."""

    def __init__(self, module: Any, number: int, segment: _Segment) -> None:
        self.module, self.number, self.segment = module, number, segment
        self.own = module.__dict__.get("forward")
        self.state = BlockState([module], self._refused)

    def _refused(self, what: str) -> RuntimeError:
        return RuntimeError(f"{LAYERS[self.number]!r} {what}")

    @property
    def original(self) -> Any:
        # Looked up each time, so that a copy of the model runs its own modules.
        return self.own or MethodType(type(self.module).forward, self.module)

    @property
    def is_sharded(self) -> bool:
        return any(kind.__name__ == "FSDPModule" for kind in type(self.module).__mro__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.original(*args, **kwargs)
        return _outside_graphs(self, args, kwargs)


@torch.compiler.disable
def _outside_graphs(block: _Block, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # Compiled together, nested checkpoints would become one.
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)  # it would hold the weights that autocast casts
    try:
        return block.segment.run(block.number, args, kwargs)
    finally:
        torch.set_autocast_cache_enabled(cached)


class _Segment:
    """A run of blocks: each runs where the model calls it, and again in a row."""

    def __init__(self, tree: _Tree, modules: list[nn.Module]) -> None:
        self.tree = tree
        self.blocks = [_Block(module, tree.first + i, self) for i, module in enumerate(modules)]
        self.trees = [tree]  # an outer one before those inside it
        for outer in self.trees:
            self.trees.extend(outer.inner)
        self.now: _Forward | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "now": None}

    def run(self, i: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a block that the model calls."""
        module = self.blocks[i - self.tree.first].module
        args, kwargs = left_out(LAYERS[i], RuntimeError, module, args, kwargs) or (args, kwargs)
        place, activation, args, kwargs = _taken(LAYERS[i], args, kwargs)
        first, last = self.tree.first, self.tree.last
        self.now, now = None, _Forward() if i == first else self.now
        if now is None or i != first + len(now.calls):
            raise RuntimeError(f"{LAYERS[i]!r} runs out of order after {LAYERS[first]!r}")
        if i > first:
            now.go_on(i, activation)
        now.calls[i] = (place, args, kwargs)
        if first == last:
            return self._checkpoint(self.tree, activation, now, keeping=True)[1]
        version = activation._version
        opened = [tree for tree in self.trees if tree.first == i]
        for tree in opened:
            with now.hooks(), tree.stopping():
                again = self._again(tree, now)
                now.open.append(_frame(self._body(tree, now, ran=True), activation, again))
        of_option = any(tree.keeps for tree in opened)
        with now.hooks(), self._watched(i, now) if of_option else nullcontext():
            result, output = self._run_block(i, activation, now, of_option)
        if opened:
            _check_unchanged(i, activation, version)
        del now.open[len(now.open) - sum(tree.last == i for tree in self.trees) :]
        if i < last:
            now.wait(result)
            self.now = now
        return output

    def _body(self, tree: _Tree, now: _Forward, ran: bool) -> Callable[[Any], Any]:
        """What a checkpoint runs; `ran`: its first forward was that of the model."""

        def body(activation: Any) -> Any:
            nonlocal ran
            # A block under an option keeps results when it runs for its backward, not before.
            keeping, ran = ran, True
            missing = self.tree.first + len(now.calls)
            if missing <= self.tree.last:
                raise RuntimeError(f"{LAYERS[missing]!r} was not called, unlike those before it")
            for part in tree.parts():
                output = None  # what it is beside the activation is nobody's any more
                i = part.first if isinstance(part, _Tree) else part
                if i > tree.first:
                    _put_states(now.drawn.get(i, []))
                if not isinstance(part, _Tree):
                    activation, output = self._run_block(i, activation, now, bool(tree.keeps))
                    continue
                activation, output = self._checkpoint(part, activation, now, keeping)
                for block in self.blocks[i - self.tree.first : part.last + 1 - self.tree.first]:
                    if block.is_sharded:
                        block.module.reshard()
            return activation, output

        return body

    def _checkpoint(self, tree: _Tree, activation: Any, now: _Forward, keeping: bool) -> Any:
        version = activation._version
        with tree.stopping():
            done = checkpoint(
                self._body(tree, now, ran=False),
                activation,
                use_reentrant=False,
                context_fn=lambda: self._contexts(tree, now, keeping),
            )
        _check_unchanged(tree.first, activation, version)
        return done

    def _contexts(self, tree: _Tree, now: _Forward, keeping: bool) -> tuple[Any, Any]:
        i, again = tree.first, self._again(tree, now)
        if not tree.keeps:
            return nullcontext(), again
        watched = self._watched(i, now)
        if not keeping:
            return watched, again
        if self.blocks[i - self.tree.first].is_sharded:
            raise RuntimeError(f"{LAYERS[i]!r} is a unit of fully_shard, where no option counts")
        now.kept[i] = selection = _Selection(LAYERS[i], tree.keeps)
        return _together(watched, selection.forward()), again

    def _again(self, tree: _Tree, now: _Forward) -> _Again:
        return _Again(self._watched(tree.first, now) if tree.keeps else None, now, tree.first)

    def _watched(self, i: int, now: _Forward) -> Watched:
        _, args, kwargs = now.calls[i]
        block = self.blocks[i - self.tree.first]
        return Watched(block.state, now.changed, i, (*args, *kwargs.values()))

    def _run_block(
        self, i: int, activation: Any, now: _Forward, of_option: bool
    ) -> tuple[Any, Any]:
        block, (place, args, kwargs) = self.blocks[i - self.tree.first], now.calls[i]
        if block.is_sharded:
            block.module.unshard()
        # Under an option its state is seen to by the checkpoint, which looks at each operation.
        with nullcontext() if of_option else self._watched(i, now):
            args, kwargs = _put(place, activation, args), _put(place, activation, kwargs)
            args, kwargs = for_one_run(block.module, args, kwargs)
            output = block.original(*args, **kwargs)
        first = output[0] if isinstance(output, (tuple, list)) and output else output
        if not torch.is_tensor(first):
            raise RuntimeError(f"{LAYERS[i]!r} must return a tensor, or one first in a tuple")
        return first, output


class _Forward:
    """One forward of a segment: how its blocks were called, and what is open between them."""

    def __init__(self) -> None:
        self.calls: dict[int, tuple[int | str, tuple[Any, ...], dict[str, Any]]] = {}
        self.drawn: dict[int, list[Any]] = {}
        self.kept: dict[int, _Selection] = {}
        self.changed: dict[int, Snapshot | None] = {}
        self.open: list[Any] = []

    def hooks(self) -> Any:
        return self.open[-1] if self.open else nullcontext()

    def wait(self, result: torch.Tensor) -> None:
        """Take note of what is true when a block ends; the activation is the model's alone."""
        self.result, self.version = weakref.ref(result), result._version
        self.casts, self.states = _casts(result.device), _states(result.device)

    def go_on(self, i: int, activation: torch.Tensor) -> None:
        """The next block begins: with what the block before returned, and as that ran."""
        result = self.result()
        same = activation is result or (result is not None and _view(activation) == _view(result))
        if not same or activation._version != self.version:
            raise RuntimeError(
                f"{LAYERS[i]!r} is not called with what {LAYERS[i - 1]!r} returned, though they "
                "share a segment of the plan"
            )
        if self.casts != _casts(activation.device):
            raise RuntimeError(f"{LAYERS[i]!r} runs under another autocast than {LAYERS[i - 1]!r}")
        states = _states(activation.device)
        if not all(torch.equal(a, b) for (a, _), (b, _) in zip(states, self.states, strict=True)):
            self.drawn[i] = states


def _frame(body: Callable[[Any], Any], activation: Any, again: _Again) -> Any:
    """Open a checkpoint: hooks to be put around each of its blocks."""
    try:
        internals: Any = of_torch
        make, hook = (
            internals._checkpoint_without_reentrant_generator,
            internals._checkpoint_hook,
        )
        more = [True] if "early_stop" in inspect.signature(make).parameters else []
        contexts = (nullcontext(), again)
        steps = make(body, True, lambda: contexts, "default", False, *more, activation)
        next(steps)
        frame = steps.gi_frame.f_locals["new_frame"]
    except (AttributeError, KeyError) as error:
        raise RuntimeError("this torch cannot checkpoint several blocks one by one") from error
    next(steps, None)
    return hook(frame)


class _Again:
    """A recomputation: under an option what was kept is handed back."""

    def __init__(self, watched: Watched | None, now: _Forward, number: int) -> None:
        self.watched, self.now, self.number = watched, now, number

    def __enter__(self) -> None:
        self.entered = ExitStack()
        if self.watched is not None:
            self.entered.enter_context(self.watched)
            if (selection := self.now.kept.pop(self.number, None)) is not None:
                self.entered.enter_context(selection.again())

    def __exit__(self, *error: Any) -> None:
        self.entered.__exit__(*error)


@contextmanager
def _together(*contexts: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


def _casts(device: torch.device) -> Any:
    try:
        return torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type)
    except RuntimeError:  # a device that has no autocast
        return False


def _view(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What is alike for two views of all of one tensor, such as hooks hand on."""
    place = (tensor.untyped_storage().data_ptr(), tensor.storage_offset())
    return (*place, tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad)


def _check_unchanged(i: int, activation: torch.Tensor, version: int) -> None:
    if activation._version != version:
        raise RuntimeError(f"{LAYERS[i]!r} changes its input in place: it cannot run again")


def _taken(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Where the activation is, a position or a keyword; itself; the arguments without it."""
    for i, value in enumerate(args):
        if torch.is_tensor(value):
            return i, value, (*args[:i], None, *args[i + 1 :]), kwargs
    for key in sorted(kwargs, key=lambda key: key != "hidden_states"):
        if torch.is_tensor(kwargs[key]):
            return key, kwargs[key], args, {**kwargs, key: None}
    raise RuntimeError(f"{name!r} was called without a tensor")


def _put(place: int | str, activation: Any, among: Any) -> Any:
    if isinstance(among, dict):
        return {**among, place: activation} if isinstance(place, str) else among
    if isinstance(place, str):
        return among
    return (*among[:place], activation, *among[place + 1 :])
