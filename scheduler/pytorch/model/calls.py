"""Run a model and note how its blocks are called and what parameters they share; or leave them out.

Parameters that several parts of a model share have one gradient, which the first one makes: first
in the order of the backward. A part that is run by itself must find there what others have made
before it.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from scheduler.common.errors import SchedulerError, UnsupportedModel
from scheduler.common.text import first_sentence
from scheduler.export.standalone.caches import for_one_run, is_cache
from scheduler.export.standalone.state import Snapshot
from scheduler.pytorch.model.call import (
    Call,
    Extra,
    Left,
    NoChain,
    Packing,
    activation_of,
    left_since,
)
from scheduler.pytorch.model.replace import replaced
from scheduler.pytorch.model.rng import unmoved
from scheduler.pytorch.model.step import call_model, device_of
from scheduler.pytorch.observe.dispatch import OperationMode, reads_values, tensors_of

_AT_RANDOM = "where the model leaves out blocks at random, set the rate of it to 0"


class Leak:
    """A module inside a block, and what it returned, held weakly."""

    def __init__(self, module: nn.Module, output: Any) -> None:
        self.module = module
        self.packing = Packing(output, None)
        self._storages = [weakref.ref(t.untyped_storage()) for t in tensors_of(output)]

    def is_kept(self, known: Iterable[torch.Tensor] = ()) -> bool:
        """Whether any of that is there that is not one of the tensors `known`."""
        others = [tensor.untyped_storage() for tensor in known]
        left = [storage for ref in self._storages if (storage := ref()) is not None]
        return any(all(storage is not other for other in others) for storage in left)


@dataclass
class CalledBlock:
    """A block as it was called.

    Attributes
    ----------
    run
        Blocks of one run, counted from 0, hand on to each other what nobody else reads.
    kind
        Blocks of one kind have equal costs; the first of a kind carries its `call`.
    call
        Its arguments, the activation a copy.
    form
        Of the activation that it hands over.
    output
        For the last block of a run: a copy of that activation.
    packing
        How its output holds it.
    sides
        Arguments beside the activation to which the block passes a gradient: their places among
        the call's `others`, and which tensor of the model each is. Seen by `see_parts`.
    leaks
        Modules inside it whose output somebody keeps, by a hook for instance.
    left
        What it leaves where its module has it, with its graph. Seen by `see_holds`.
    graded
        Which of the extras in its output, in those of its leaks and in what is left are given a
        gradient. Seen by `see_parts`.
    holds, stays
        Places among the call's `others` of the tensors that it holds when it is kept, and of those
        that it holds after its backward, too. Seen by `see_holds`.
    no_grad
        Whether the model calls it under `torch.no_grad`. Seen by `see_parts`.
    awaited_bytes
        Of gradients that may wait while its backward runs: of what it or a block before it has made
        and left somewhere, and it or a block after it reads there.
    """

    name: str
    module: nn.Module
    run: int
    kind: int
    call: Call | None
    form: Extra
    output: torch.Tensor | None
    packing: Packing
    sides: dict[int, int] = field(default_factory=dict)
    leaks: list[Leak] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    graded: set[int] = field(default_factory=set)
    holds: frozenset[int] = frozenset()
    stays: frozenset[int] = frozenset()
    no_grad: bool = False
    awaited_bytes: int = 0

    @property
    def extras(self) -> list[Extra]:
        """What it makes beside its activation and others keep."""
        inside: list[Leak | Left] = [*self.leaks, *self.left]
        return [*self.packing.extras, *(e for each in inside for e in each.packing.extras)]


def find_calls(model: nn.Module, inputs: Any, names: Sequence[str]) -> list[CalledBlock]:
    """Run the model without gradients and note how each block is called.

    Raises `UnsupportedModel` where one is not called exactly once, in order, or goes another way in
    each step.
    """
    ending, awaited, first_way = _read_elsewhere(model, inputs, names)
    way: list[list[Any]] = []
    blocks: list[CalledBlock] = []
    kinds: dict[Any, int] = {}
    calls: list[tuple[Call, Snapshot, Snapshot]] = []
    trace = _OperationForms()
    inside: list[Leak] = []

    def settle() -> None:
        # What a block has left behind is seen when all that it returned is let go.
        if blocks:
            blocks[-1].leaks = [leak for leak in blocks[-1].leaks if leak.is_kept()]

    def before(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        settle()
        call = Call.of(name, *for_one_run(model.get_submodule(name), args, kwargs))
        state = Snapshot([model.get_submodule(name)], lambda tensor: False)
        calls.append((call, state, Snapshot((), handed=_but_caches(args, kwargs))))
        trace.operations, inside[:] = [], []

    def after(name: str, module: nn.Module, output: Any) -> None:
        call, state, handed = calls.pop()
        way.append([func for func, _ in trace.operations])
        if (where := handed.left_tensors) is not None:
            raise NoChain(
                f"block {name!r} leaves a tensor for others in an argument ({where}), so they are "
                "not a chain"
            )
        activation = activation_of(name, output)
        packing = Packing(call.mark(output), activation)
        known = [*tensors_of((output, call.args, call.kwargs)), *module.parameters()]
        known += module.buffers()
        leaks = [leak for leak in inside if leak.is_kept(known)]
        # What hooks append to a list they are handed again.
        left = [
            each
            for each in left_since(state, activation)
            if not each.is_last or all(leak.is_kept([*known, *each.tensors]) for leak in leaks)
        ]
        signature = _signature(module, call, activation, packing, trace.operations)
        kind = kinds.setdefault(signature, len(kinds))
        first = all(block.kind != kind for block in blocks)
        if first:
            copy = call.activation.detach().clone()
            call = Call(*call.arguments(copy), call.place)
        last = activation.detach().clone() if len(blocks) in ending else None
        run = sum(number < len(blocks) for number in ending)
        called, form = call if first else None, Extra.of(activation)
        block = CalledBlock(name, module, run, kind, called, form, last, packing)
        block.leaks, block.left, block.awaited_bytes = leaks, left, awaited[len(blocks)]
        blocks.append(block)

    parts = {part for name in names for part in model.get_submodule(name).modules()}
    with ExitStack() as stack, trace:
        for part in parts - {model.get_submodule(name) for name in names}:
            hook = part.register_forward_hook(lambda m, _, out: inside.append(Leak(m, out)))
            stack.callback(hook.remove)
        output = call_watched(model, inputs, names, before, after)
        settle()
        del output
    if way != first_way:  # as where the first call makes something
        _check_way(names, way, _read_elsewhere(model, inputs, names)[2])
    return blocks


def _check_way(names: Sequence[str], one: list[list[Any]], other: list[list[Any]]) -> None:
    """Raise `UnsupportedModel` where two steps that draw the same run other operations.

    But where values of tensors decide, as in a mixture of experts: they do so in each batch.
    """
    for name, *ways in zip(names, one, other, strict=True):
        if ways[0] != ways[1] and not any(map(reads_values, ways[0] + ways[1])):
            raise UnsupportedModel(
                f"block {name!r} runs other operations from step to step, by what it has kept or "
                "counted, and a plan is for steps that are alike; let it go one way"
            )


@dataclass
class _Made:
    """A storage that a block has made: the number of the block, of the last that reads it."""

    maker: int
    reader: int
    nbytes: int


def _read_elsewhere(
    model: nn.Module, inputs: Any, names: Sequence[str]
) -> tuple[set[int], list[int], list[list[Any]]]:
    """What is read of what blocks make by others than the next block, as its activation.

    Numbers of the blocks whose output is; of each the bytes of its `awaited_bytes`; and the
    operations that it runs.
    """
    way: list[list[Any]] = [[] for _ in names]
    done: list[weakref.ref[Any]] = []  # storages of the activations that blocks handed over
    ending: set[int] = set()
    running: list[str] = []
    previous: list[torch.Tensor] = []
    handed: list[Any] = []
    made: Any = WeakIdKeyDictionary()
    left: dict[int, _Made] = {}

    def note(given: Iterable[torch.Tensor], results: Iterable[torch.Tensor]) -> None:
        for storage in (tensor.untyped_storage() for tensor in given):
            known = made.get(storage)
            if known and known.maker < len(done) and all(storage is not h for h in handed):
                known.reader = len(done)
                left[id(known)] = known
        for tensor in results:
            new = _Made(len(done), len(done), tensor.untyped_storage().nbytes())
            made.setdefault(tensor.untyped_storage(), new)

    def read(tensors: Iterable[torch.Tensor]) -> None:
        given = [tensor.untyped_storage() for tensor in tensors]
        ending.update(i for i, storage in enumerate(done) if any(storage() is g for g in given))

    def before(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        expected = names[len(done)] if len(done) < len(names) else None
        if name != expected or running:
            again = "a second time" if name in names[: len(done)] else "out of order"
            raise NoChain(
                f"block {name!r} is called {again}; blocks must run once each, in the order given "
                f"({_AT_RANDOM})"
            )
        call = Call.of(name, args, kwargs)
        if previous and call.activation is not previous.pop():
            ending.add(len(done) - 1)
            read([call.activation])
        read(tensors_of(call.others))
        running.append(name)
        handed[:] = [tensor.untyped_storage() for tensor in tensors_of((args, kwargs))]

    def after(name: str, module: nn.Module, output: Any) -> None:
        running.pop()
        activation = activation_of(name, output)
        previous[:] = [activation]
        done.append(weakref.ref(activation.untyped_storage()))

    class Reads(OperationMode):
        def _operation(self, func: Any, args: Any, kwargs: Any) -> Any:
            given = tensors_of((args, kwargs))
            if done and not running:
                read(given)
            result = func(*args, **kwargs)
            if running:
                way[len(done)].append(func)
                note(given, tensors_of(result))
            return result

    with Reads():
        call_watched(model, inputs, names, before, after)
    if len(done) < len(names):
        raise NoChain(f"block {names[len(done)]!r} is never called by the model ({_AT_RANDOM})")
    awaited = [
        sum(each.nbytes for each in left.values() if each.maker <= number <= each.reader)
        for number in range(len(names))
    ]
    return ending | {len(names) - 1}, awaited, way


def call_watched(
    model: nn.Module,
    inputs: Any,
    names: Sequence[str],
    before: Callable[[str, tuple[Any, ...], dict[str, Any]], None],
    after: Callable[[str, nn.Module, Any], None],
) -> Any:
    """Call the model without gradients, and these functions around each of the blocks.

    Each such call draws the same random numbers.
    """
    hooks = []
    # Without `with_kwargs` a hook is shown the positional arguments alone.
    for name in names:
        module = model.get_submodule(name)
        hooks += [
            module.register_forward_pre_hook(
                lambda _, args, kwargs, name=name: before(name, args, kwargs), with_kwargs=True
            ),
            module.register_forward_hook(lambda m, _, out, name=name: after(name, m, out)),
        ]
    try:
        with unmoved({device_of(model, inputs)}), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of checkpoints that see no gradients here
            return call_model(model, inputs)
    finally:
        for hook in hooks:
            hook.remove()


def _but_caches(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    return [value for value in (*args, *kwargs.values()) if not is_cache(value)]


def call_around(model: nn.Module, inputs: Any) -> Any:
    """Call a model whose blocks pass on what they are given."""
    try:
        return call_model(model, inputs)
    except SchedulerError:
        raise
    except Exception as error:
        raise NoChain(
            f"with its blocks left out the model fails ({first_sentence(error)}); it uses more of "
            "its blocks than the one tensor they hand on, so they are not a chain"
        ) from error


@contextmanager
def instead(
    blocks: list[CalledBlock], run: Callable[[CalledBlock, tuple[Any, ...], dict[str, Any]], Any]
) -> Iterator[None]:
    """Call `run` in the place of every block's forward; hooks on their backward do not run."""

    def forward_of(block: CalledBlock) -> Callable[..., Any]:
        return lambda *args, **kwargs: run(block, args, kwargs)

    with ExitStack() as stack:
        for block in blocks:
            stack.enter_context(replaced(block.module, forward_of(block)))
            for hooks in (block.module._backward_hooks, block.module._backward_pre_hooks):
                stack.callback(hooks.update, dict(hooks))
                hooks.clear()
        yield


def own_parameters(module: nn.Module, others: Iterable[Any] = ()) -> list[torch.Tensor]:
    """Parameters to which a block gives a gradient: its module's, and those among `others`."""
    handed = [t for t in others if isinstance(t, torch.Tensor) and t.is_leaf and t.requires_grad]
    trained = [p for p in module.parameters() if p.requires_grad]
    return list({id(p): p for p in [*trained, *handed]}.values())


def used_outside(model: nn.Module, blocks: Sequence[CalledBlock]) -> list[nn.Parameter]:
    """Trained parameters of the blocks that are modules' outside of them, too."""
    prefixes = tuple(f"{block.name}." for block in blocks)
    named = list(model.named_parameters(remove_duplicate=False))
    outside = {id(p) for name, p in named if not name.startswith(prefixes)}
    inside = {id(p): p for name, p in named if name.startswith(prefixes) and p.requires_grad}
    return [p for key, p in inside.items() if key in outside]


def shared_names(model: nn.Module) -> list[tuple[str, str]]:
    """Pairs of names of one parameter: the first, and each other."""
    first: dict[int, str] = {}
    pairs = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            pairs.append((first[id(parameter)], name))
        first.setdefault(id(parameter), name)
    return pairs


def _signature(
    module: nn.Module, call: Call, output: torch.Tensor, packing: Packing, trace: list[Any]
) -> Any:
    """Equal for blocks that cost the same: they ran the same operations on the same shapes."""
    parts = tuple((name, type(part), part.training) for name, part in module.named_modules())
    tensors = tuple(
        (name, tuple(t.shape), t.dtype, t.requires_grad)
        for name, t in [*module.named_parameters(), *module.named_buffers()]
    )
    handed = tuple(_form(leaf) for leaf in [call.activation, *call.others, output])
    return parts, tensors, handed, tuple(packing.extras), tuple(trace)


def _form(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype
    return value if isinstance(value, (int, float, str, bool, type(None))) else type(value)


class _OperationForms(OperationMode):
    """The operations that run, with the form of what they are given and give."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Any] = []

    def _operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        forms = tuple(_form(leaf) for leaf in tree_leaves((args, kwargs, result)))
        self.operations.append((func, forms))
        return result
