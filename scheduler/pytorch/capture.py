"""Run a model and take it apart: what comes before its blocks, the blocks, what comes after."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from scheduler.errors import SchedulerError, UnsupportedModel
from scheduler.pytorch.blocks import Call, call_model, clear_gradients, loss_of, split_output
from scheduler.pytorch.clock import Clock
from scheduler.pytorch.isolate import Peaks, Sink, Source, gate
from scheduler.pytorch.tracker import MemoryTracker, storage_bytes, unique_bytes

Loss = Callable[[Any], Any] | None


@dataclass
class Block:
    """A block as it was called.

    Attributes
    ----------
    kind
        Blocks of one kind have equal costs; the first of a kind carries its `call`.
    call
        Its arguments, the activation a copy.
    output
        For the last block: a copy of its activation.
    rebuild
        Makes the block's output from an activation.
    """

    name: str
    module: nn.Module
    kind: int
    call: Call | None
    output: torch.Tensor | None
    rebuild: Callable[[torch.Tensor], Any]


def find_calls(model: nn.Module, inputs: Any, names: Sequence[str]) -> list[Block]:
    """Run the model without gradients and note how each block is called.

    Raises
    ------
    UnsupportedModel
        A block is not called exactly once, in order, with what the block before returned.
    """
    blocks: list[Block] = []
    kinds: dict[Any, int] = {}
    calls: list[Call] = []
    previous: list[torch.Tensor] = []
    trace = _Trace()

    def before(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        expected = names[len(blocks)] if len(blocks) < len(names) else None
        if name != expected:
            again = "a second time" if any(b.name == name for b in blocks) else "out of order"
            raise UnsupportedModel(
                f"block {name!r} is called {again}; blocks must run once each, in the order given"
            )
        call = Call.of(name, args, kwargs)
        if previous and call.activation is not previous.pop():
            raise UnsupportedModel(
                f"block {name!r} does not receive what {blocks[-1].name!r} returned: the model "
                "runs code of its own between them, so they are not a chain"
            )
        if torch.is_autocast_enabled(call.activation.device.type):
            raise UnsupportedModel(
                "autocast is on, whose cached weights a profile does not know; profile without it, "
                "and check a step under it with measure()"
            )
        calls.append(call)
        trace.operations = []

    def after(name: str, module: nn.Module, output: Any) -> None:
        call = calls.pop()
        activation, rebuild = split_output(name, output)
        signature = _signature(module, call, activation, trace.operations)
        kind = kinds.setdefault(signature, len(kinds))
        first = all(block.kind != kind for block in blocks)
        if first:
            copy = call.activation.detach().clone()
            call = Call(*call.arguments(copy), call.place)
        last = activation.detach().clone() if len(blocks) == len(names) - 1 else None
        blocks.append(Block(name, module, kind, call if first else None, last, rebuild))
        previous[:] = [activation]

    hooks = []
    for name in names:
        module = model.get_submodule(name)
        hooks.append(
            module.register_forward_pre_hook(
                lambda m, args, kwargs, name=name: before(name, m, args, kwargs), with_kwargs=True
            )
        )
        hooks.append(
            module.register_forward_hook(lambda m, args, out, name=name: after(name, m, out))
        )
    try:
        with torch.no_grad(), trace:
            call_model(model, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    if len(blocks) < len(names):
        raise UnsupportedModel(f"block {names[len(blocks)]!r} is never called by the model")
    return blocks


def _signature(module: nn.Module, call: Call, output: torch.Tensor, trace: list[Any]) -> Any:
    """Equal for blocks that cost the same: they ran the same operations on the same shapes."""
    parts = tuple((name, type(part), part.training) for name, part in module.named_modules())
    tensors = tuple(
        (name, tuple(t.shape), t.dtype, t.requires_grad)
        for name, t in [*module.named_parameters(), *module.named_buffers()]
    )
    handed = tuple(_form(leaf) for leaf in [call.activation, *call.others, output])
    return parts, tensors, handed, tuple(trace)


def _form(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype
    return value if isinstance(value, (int, float, str, bool, type(None))) else type(value)


class _Trace(TorchDispatchMode):
    """The operations that run, with the form of what they are given and give."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Any] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        forms = tuple(_form(leaf) for leaf in tree_leaves((args, kwargs, result)))
        self.operations.append((func, forms))
        return result


@dataclass(frozen=True)
class Ends:
    """What a model does before its blocks (None: nothing) and after them.

    Attributes
    ----------
    held_bytes
        What is there from beginning to end: the inputs, the loss, and whatever the blocks are
        handed beside the activation, such as masks and position embeddings.
    local_bytes
        What the model's own code still refers to while the blocks run forward for the first time,
        and lets go before what comes after them.
    needs_grad
        Does the first block's input require a gradient?
    """

    before: Peaks | None
    after: Peaks
    held_bytes: int
    local_bytes: int
    needs_grad: bool


def see_ends(
    model: nn.Module, inputs: Any, loss_fn: Loss, blocks: list[Block], clock: Clock
) -> Ends:
    """Profile what runs before and after the blocks, with the blocks themselves left out."""
    runs = []
    for attempt in range(-1, clock.repeats):  # the first run warms up
        with clock.running():
            run = _Run(model, inputs, loss_fn, blocks, clock, None)
        if attempt >= 0 or clock.repeats == 1:
            runs.append(run)
    seen = _Run(model, inputs, loss_fn, blocks, clock, MemoryTracker())
    times = [median(run.times[i] for run in runs) for i in range(4)]
    return seen.ends(times)


class _Run:
    """One step of the model in which the blocks pass on what they are given."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Any,
        loss_fn: Loss,
        blocks: list[Block],
        clock: Clock,
        tracker: MemoryTracker | None,
    ) -> None:
        self.inputs = inputs
        self.blocks = blocks
        self.clock = clock
        self.tracker = tracker or MemoryTracker()
        self.base = self.kept = 0  # live bytes between the two backwards: others, and ours
        self.side: dict[int, int] = {}  # bytes of the blocks' other arguments, by storage
        clear_gradients(model, inputs)
        with tracker or nullcontext():
            self._step(model, loss_fn)
        clear_gradients(model, inputs)

    def _step(self, model: nn.Module, loss_fn: Loss) -> None:
        tracker, clock = self.tracker, self.clock
        self.start = clock.mark()
        self._before = tracker.tag("before")
        self._before.__enter__()
        with _instead(self.blocks, self._block):
            loss = loss_of(_call_around(model, self.inputs), loss_fn)
        end = clock.mark()
        if not loss.requires_grad:
            raise UnsupportedModel("the loss does not depend on any parameter that requires grad")
        goal = self.scalar.grad_fn.next_functions[0][0] if self.needs_grad else None
        if goal is not None and _reaches(loss.grad_fn, goal, self.link):
            raise UnsupportedModel(
                "what runs after the blocks also reads what runs before them, around all of them, "
                "so the model is not a chain"
            )
        self.loss_bytes = storage_bytes(loss)
        self.before_kept = tracker.live("before")
        self.before_output_kept = self.first() is not None
        self.after_forward_peak = tracker.peak("after")
        self.after_live = tracker.live("after")
        self.after_input_saved = tracker.live("link") > 0
        with tracker.tag("sink"):
            start = torch.ones_like(loss)  # held, or it would be freed between the two backwards
        tracker.reset_peak()
        begin = self.passed = clock.mark()
        loss.backward(start)
        finish = clock.mark()
        self._after.__exit__(None, None, None)
        if not self.linked:  # nothing below the head is trained
            self.passed = finish
            self._pass(None)
        # A weight that head and embedding share has one gradient, made anew from the two: what is
        # freed of the head's is taken off here.
        self.before_backward_peak = tracker.peak_bytes - self.base
        self.before_gradient = (
            tracker.live_bytes - self.base - (0 if self.needs_grad else self.kept)
        )
        del loss, start
        self.times = [
            clock.between(self.start, self.reached),
            clock.between(self.left, end),
            clock.between(begin, self.passed),
            clock.between(self.passed, finish),
        ]

    def _pass(self, gradient: torch.Tensor | None) -> None:
        """Between the backward of what comes after the blocks and of what comes before them."""
        tracker = self.tracker
        self.passed = self.clock.mark()
        self.after_backward_peak = tracker.peak("after")
        if gradient is not None:
            tracker.disown(gradient)  # it goes on into the blocks
        self.after_gradient = tracker.live("after") - self.loss_bytes
        self.kept = tracker.live("before")
        self.base = tracker.live_bytes - self.kept
        if self.needs_grad:
            with tracker.tag("before"):
                self.box.append(torch.ones(self.shape, dtype=self.dtype, device=self.device))
        tracker.reset_peak()

    def _block(self, block: Block, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tracker = self.tracker
        call = Call.of(block.name, args, kwargs)
        for leaf in call.others:
            if isinstance(leaf, torch.Tensor):
                if leaf.requires_grad and not leaf.is_leaf:
                    raise UnsupportedModel(
                        f"block {block.name!r} is handed a second tensor that requires a gradient "
                        f"(shape {tuple(leaf.shape)}), so the blocks are not a chain"
                    )
                size = tracker.disown(leaf)
                if size:
                    self.side[id(leaf.untyped_storage())] = size
        if block is self.blocks[0]:
            self._reach(call.activation)
        passed = torch.empty(0, device=call.activation.device)
        del call, args, kwargs
        if block is not self.blocks[-1]:
            return block.rebuild(passed)
        assert block.output is not None
        self.output_held = self.first() is not None
        self._before.__exit__(None, None, None)
        self.linked = self.needs_grad or any(
            p.requires_grad for b in self.blocks for p in b.module.parameters()
        )
        with tracker.tag("link"):
            link = block.output.clone()
        if self.linked:
            door = self.scalar if self.needs_grad else gate(link.device)
            link = Source.apply(door, [link], self._pass)
            self.link = link.grad_fn
        self._after = tracker.tag("after")
        self._after.__enter__()
        self.left = self.clock.mark()
        return block.rebuild(link)

    def _reach(self, activation: torch.Tensor) -> None:
        self.reached = self.clock.mark()
        self.shape, self.dtype = activation.shape, activation.dtype
        self.device = activation.device
        self.needs_grad = activation.requires_grad
        self.first = weakref.ref(activation.untyped_storage())
        self.before_forward_peak = self.tracker.peak("before")
        self.before_live = self.tracker.live("before")
        self.before_output = storage_bytes(activation)
        given = {id(t.untyped_storage()) for t in tree_leaves(self.inputs) if _is_tensor(t)}
        self.is_given = id(activation.untyped_storage()) in given
        self.box: list[Any] = []
        with self.tracker.tag("sink"):
            self.scalar = Sink.apply(activation, self.box)

    def ends(self, times: list[float]) -> Ends:
        """What the tracked run has seen, with times from others."""
        side = sum(self.side.values())
        held = unique_bytes(self.inputs) + side + self.loss_bytes
        last = self.blocks[-1].output
        assert last is not None
        after = Peaks(
            input_bytes=storage_bytes(last),
            output_bytes=self.loss_bytes,
            saved_bytes=max(self.after_live - self.loss_bytes, 0),
            input_saved=self.after_input_saved,
            output_saved=False,
            forward_peak=self.after_forward_peak,
            drop_peak=None,
            backward_peak=self.after_backward_peak,
            gradient_bytes=max(self.after_gradient, 0),
            forward_time=times[1],
            recompute_time=times[1],
            backward_time=times[2],
        )
        if self.is_given:
            # Nothing is computed before the blocks, but the model may have made masks and such.
            return Ends(None, after, held, self.before_live, self.needs_grad)
        saved = self.before_kept - (self.before_output if self.before_output_kept else 0)
        local = self.before_live - self.before_output - saved
        if self.output_held and not self.before_output_kept:
            local += self.before_output
        before = Peaks(
            input_bytes=held,
            output_bytes=self.before_output,
            saved_bytes=saved,
            input_saved=True,
            output_saved=self.before_output_kept,
            forward_peak=self.before_forward_peak - side,
            drop_peak=None,
            backward_peak=self.before_backward_peak,
            gradient_bytes=self.before_gradient,
            forward_time=times[0],
            recompute_time=times[0],
            backward_time=times[3],
        )
        return Ends(before, after, held, local, self.needs_grad)


def _call_around(model: nn.Module, inputs: Any) -> Any:
    """Call a model whose blocks pass on what they are given."""
    try:
        return call_model(model, inputs)
    except SchedulerError:
        raise
    except Exception as error:
        raise UnsupportedModel(
            f"with its blocks left out the model fails ({type(error).__name__}: {error}); it uses "
            "more of its blocks than the one tensor they hand on, so they are not a chain"
        ) from error


def _reaches(start: Any, goal: Any, barrier: Any) -> bool:
    """Say whether `goal` is in the autograd graph below `start`, not counting below `barrier`."""
    todo, seen = [start], {barrier}
    while todo:
        node = todo.pop()
        if node is goal:
            return True
        if node is not None and node not in seen:
            seen.add(node)
            todo.extend(following for following, _ in node.next_functions)
    return False


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


@contextmanager
def _instead(
    blocks: list[Block], run: Callable[[Block, tuple[Any, ...], dict[str, Any]], Any]
) -> Iterator[None]:
    """Call `run` in the place of every block's forward."""
    own = [block.module.__dict__.get("forward") for block in blocks]
    try:
        for block in blocks:
            block.module.forward = lambda *args, _block=block, **kwargs: run(_block, args, kwargs)
        yield
    finally:
        for block, forward in zip(blocks, own, strict=True):
            if forward is None:
                del block.module.forward
            else:
                block.module.forward = forward
