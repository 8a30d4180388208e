"""How often blocks run in a step: entries into their forwards, and what runs again inside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from math import ceil
from typing import Any

import torch
from torch import nn

from scheduler.pytorch.model.autocast import lifted
from scheduler.pytorch.model.replace import Replaced, replaced
from scheduler.pytorch.model.step import call_model, device_of, prepared
from scheduler.pytorch.model.wrappers import is_compiled
from scheduler.pytorch.observe.autograd import saving_nothing

Forward = Callable[..., Any]


@contextmanager
def counted(
    model: nn.Module,
    names: Sequence[str],
    seen: Callable[[str, Any], None] | None = None,
    *,
    inside: bool = False,
) -> Iterator[dict[str, int]]:
    """Count entries into each block's own forward, recomputations included.

    `seen` is told the block and the output of each forward that runs to its end. `inside`: at the
    end what checkpoints inside a forward have run again is counted, too. That enters no forward of
    the block; it is known by the block's modules, which are called in a backward while none runs.
    Of these the one that is called so most often, in calls a forward, counts.
    """
    counts = dict.fromkeys(names, 0)
    parts = _parts(model, names) if inside else {}
    running: Counter[str] = Counter()
    forwards: Counter[str] = Counter()  # that are no recomputations: those may end early
    within: Counter[nn.Module] = Counter()  # calls in them
    again: Counter[nn.Module] = Counter()

    def entering(name: str, forward: Forward) -> Forward:
        def run(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            forwards[name] += not _in_backward()
            running[name] += 1
            try:
                output = forward(*args, **kwargs)
            finally:
                running[name] -= 1
            if seen is not None:
                seen(name, output)
            return output

        return run

    def noting(part: nn.Module, forward: Forward) -> Forward:
        def run(*args: Any, **kwargs: Any) -> Any:
            within[part] += not _in_backward()
            again[part] += _in_backward() and not running[parts[part]]
            return forward(*args, **kwargs)

        return run

    with ExitStack() as stack:
        for part in parts:
            _put(stack, part, partial(noting, part))
        for name in names:
            _put(stack, model.get_submodule(name), partial(entering, name))
        yield counts
    more: Counter[str] = Counter()
    for part, times in again.items():
        name = parts[part]
        once = within[part] / forwards[name] if within[part] and forwards[name] else 1
        more[name] = max(more[name], ceil(times / max(once, 1)))
    counts.update({name: counts[name] + count for name, count in more.items()})


def saving(model: nn.Module, inputs: Any, names: Sequence[str]) -> set[str]:
    """Those of some blocks whose forward saves anything; nobody asks for the others' to run again.

    Runs a forward of the model, which must have no plan.
    """
    found: set[str] = set()

    def noting(name: str, forward: Forward) -> Forward:
        def run(*args: Any, **kwargs: Any) -> Any:
            with saving_nothing(lambda tensor: found.add(name)):
                return forward(*args, **kwargs)

        return run

    with prepared(model, inputs), ExitStack() as stack:
        for name in names:
            _put(stack, model.get_submodule(name), partial(noting, name))
        ambient = stack.enter_context(lifted(device_of(model, inputs)))
        ambient.around(call_model)(model, inputs)
    return found


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _parts(model: nn.Module, names: Sequence[str]) -> dict[nn.Module, str]:
    """The modules inside blocks that are parts of one block alone, and of which."""
    owners: dict[nn.Module, list[str]] = {}
    for name in names:
        _, *parts = model.get_submodule(name).modules()
        if not any(map(is_compiled, [model.get_submodule(name), *parts])):
            for part in parts:
                owners.setdefault(part, []).append(name)
    return {
        part: owner[0]
        for part, owner in owners.items()
        if len(owner) == 1 and not isinstance(part, torch.jit.ScriptModule)
    }


def _put(stack: ExitStack, module: nn.Module, around: Callable[[Forward], Forward]) -> None:
    """Put something around a module's own forward."""
    forward = module.__dict__.get("forward")
    if isinstance(forward, Replaced):  # a recomputation enters only what the plan replaced
        stack.callback(setattr, forward, "original", forward.original)
        forward.original = around(forward.original)
    else:
        stack.enter_context(replaced(module, around(module.forward)))
