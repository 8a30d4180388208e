"""Chosen results inside a block: kept by one forward, handed back when it runs again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.checkpoint as of_torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy


class _Selection:
    """Results that one forward of a block keeps, and that are handed back when it runs again."""

    def __init__(self, name: str, keeps: dict[str, list[int]]) -> None:
        self.name, self.keeps = name, keeps
        self.ran: list[tuple[Any, list[tuple[torch.Tensor, Callable[[torch.Tensor], Any]]]]] = []
        self.calls = calls = Counter[tuple[bool, str]]()

        # It does not hold self, which holds the results.
        def policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            call = (context.is_recompute, str(operation))
            calls[call] += 1
            kept = calls[call] - 1 in keeps.get(str(operation), ())
            return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

        kept = [_operation(operation) for operation in keeps]
        self.contexts = of_torch.create_selective_checkpoint_contexts(
            policy, allow_cache_entry_mutation=any(_changes(each) for each in kept)
        )
        # Where a random result is kept, what is drawn later must be drawn from its own state.
        self.draws = any(_is_random(each) for each in kept)

    @contextmanager
    def forward(self) -> Iterator[None]:
        with self.contexts[0], _Noting(self):
            yield
        for operation, calls in self.keeps.items():
            if self.calls[False, operation] <= max(calls):
                raise RuntimeError(
                    f"{self.name!r} runs {operation} {self.calls[False, operation]} times, and the "
                    f"plan keeps the result of number {max(calls) + 1}: it is one of another model"
                )

    @contextmanager
    def again(self) -> Iterator[None]:
        with self.contexts[1], _Repeated(self):
            yield


class _Noting(TorchDispatchMode):
    """Writes down a block's operations, and the random states of those that draw."""

    def __init__(self, selection: _Selection) -> None:
        super().__init__()
        self.selection = selection

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in of_torch.SAC_IGNORED_OPS:
            self.see(func, args, kwargs)
        return func(*args, **kwargs)

    def see(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        states: list[tuple[torch.Tensor, Callable[[torch.Tensor], Any]]] = []
        if self.selection.draws and _is_random(func):
            tensors = [leaf for leaf in tree_leaves(args) if torch.is_tensor(leaf)]
            own = tensors[0].device if tensors else "cpu"
            states = _states(torch.device(kwargs.get("device") or own))
        self.selection.ran.append((func, states))


class _Repeated(_Noting):
    """Checks that they are the same, as results are handed back by their number."""

    def __init__(self, selection: _Selection) -> None:
        super().__init__(selection)
        self.rest = iter(selection.ran)

    def see(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        before, states = next(self.rest, (None, []))
        if func is not before:
            name = self.selection.name
            raise RuntimeError(f"{name!r} runs {func} again where it ran {before}: keep it whole")
        _put_states(states)


def _operation(name: str) -> Any:
    operation: Any = torch.ops
    for part in name.split("."):
        operation = getattr(operation, part, None)
    return operation


def _is_random(operation: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(operation, "tags", ())


def _changes(operation: Any) -> bool:
    return operation is None or operation._schema.is_mutable


def _states(device: torch.device) -> list[tuple[torch.Tensor, Callable[[torch.Tensor], Any]]]:
    """Random states of the CPU and the device, each with what puts it back."""
    found: list[tuple[torch.Tensor, Callable[[torch.Tensor], Any]]] = [
        (torch.get_rng_state(), torch.set_rng_state)
    ]
    own: Any = getattr(torch, device.type, None)
    if device.type != "cpu" and hasattr(own, "get_rng_state"):
        where = [] if device.type == "mps" else [device]
        found.append((own.get_rng_state(*where), lambda state: own.set_rng_state(state, *where)))
    return found


def _put_states(states: list[tuple[torch.Tensor, Callable[[torch.Tensor], Any]]]) -> None:
    for state, put in states:
        put(state)
