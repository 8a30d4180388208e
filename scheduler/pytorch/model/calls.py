"""Run a model and note how its blocks are called and what parameters they share; or leave them out.

Parameters that several parts of a model share have one gradient, which the first one makes: first
in the order of the backward. A part that is run by itself must find there what others have made
before it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from scheduler.common.errors import SchedulerError, UnsupportedModel
from scheduler.export.standalone.caches import for_one_run, is_cache
from scheduler.export.standalone.state import Snapshot
from scheduler.pytorch.model.call import Call, split_output
from scheduler.pytorch.model.replace import replaced
from scheduler.pytorch.model.step import call_model
from scheduler.pytorch.observe.dispatch import OperationMode


@dataclass
class CalledBlock:
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
        Makes the block's output from an activation and the other arguments of its call.
    sides
        Arguments beside the activation to which the block passes a gradient: their places among
        the call's `others`, and which tensor of the model each is. Seen by `see_ends`.
    """

    name: str
    module: nn.Module
    kind: int
    call: Call | None
    output: torch.Tensor | None
    rebuild: Callable[..., Any]
    sides: dict[int, int] = field(default_factory=dict)


def find_calls(model: nn.Module, inputs: Any, names: Sequence[str]) -> list[CalledBlock]:
    """Run the model without gradients and note how each block is called.

    Raises `UnsupportedModel` where one is not called exactly once, in order, with what the block
    before returned.
    """
    blocks: list[CalledBlock] = []
    kinds: dict[Any, int] = {}
    calls: list[tuple[Call, Snapshot]] = []
    previous: list[torch.Tensor] = []
    earlier: list[weakref.ref[Any]] = []  # storages of the activations between blocks so far
    trace = _OperationForms()

    def before(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        expected = names[len(blocks)] if len(blocks) < len(names) else None
        if name != expected:
            if any(block.name == name for block in blocks):
                raise UnsupportedModel(
                    f"block {name!r} is called a second time; blocks must run once each, in the "
                    "order given"
                )
            raise UnsupportedModel(
                f"block {name!r} is called out of order, where {expected!r} is next; blocks must "
                "run once each, in the order given (where the model leaves out blocks at random, "
                "set the rate of it to 0)"
            )
        call = Call.of(name, *for_one_run(module, args, kwargs))
        if previous and call.activation is not previous.pop():
            raise UnsupportedModel(
                f"block {name!r} does not receive what {blocks[-1].name!r} returned: the model "
                "runs code of its own between them, so they are not a chain"
            )
        handed = [t.untyped_storage() for t in call.others if isinstance(t, torch.Tensor)]
        if any(storage() is one for storage in earlier for one in handed):
            raise UnsupportedModel(
                f"block {name!r} is handed the output of an earlier block beside that of the last: "
                "a skip connection across blocks, so they are not a chain"
            )
        calls.append((call, Snapshot((), handed=_but_caches(args, kwargs))))
        trace.operations = []

    def after(name: str, module: nn.Module, output: Any) -> None:
        call, handed = calls.pop()
        if (left := handed.left_tensors) is not None:
            raise UnsupportedModel(
                f"block {name!r} leaves a tensor for others in an argument ({left}), so they are "
                "not a chain"
            )
        activation, rebuild = split_output(name, call.mark(output))
        signature = _signature(module, call, activation, trace.operations)
        kind = kinds.setdefault(signature, len(kinds))
        first = all(block.kind != kind for block in blocks)
        if first:
            copy = call.activation.detach().clone()
            call = Call(*call.arguments(copy), call.place)
        last = activation.detach().clone() if len(blocks) == len(names) - 1 else None
        blocks.append(CalledBlock(name, module, kind, call if first else None, last, rebuild))
        previous[:] = [activation]
        earlier.append(weakref.ref(activation.untyped_storage()))

    hooks = []
    # Without `with_kwargs` a hook is shown the positional arguments alone.
    for name in names:
        module = model.get_submodule(name)
        hooks += [
            module.register_forward_pre_hook(
                lambda m, args, kwargs, name=name: before(name, m, args, kwargs), with_kwargs=True
            ),
            module.register_forward_hook(lambda m, _, out, name=name: after(name, m, out)),
        ]
    try:
        with torch.no_grad(), trace:
            call_model(model, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    if len(blocks) < len(names):
        raise UnsupportedModel(f"block {names[len(blocks)]!r} is never called by the model")
    return blocks


def _but_caches(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    return [value for value in (*args, *kwargs.values()) if not is_cache(value)]


def call_around(model: nn.Module, inputs: Any) -> Any:
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


@contextmanager
def instead(
    blocks: list[CalledBlock], run: Callable[[CalledBlock, tuple[Any, ...], dict[str, Any]], Any]
) -> Iterator[None]:
    """Call `run` in the place of every block's forward."""

    def forward_of(block: CalledBlock) -> Callable[..., Any]:
        return lambda *args, **kwargs: run(block, args, kwargs)

    with ExitStack() as stack:
        for block in blocks:
            stack.enter_context(replaced(block.module, forward_of(block)))
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
