"""Keep chosen results of a block's operations while the rest is dropped and made again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from scheduler.errors import UnsupportedModel

__all__ = ["Call", "HandedBack", "Selection", "Together"]

Call = tuple[str, int]
"""An operation's name and which call of it in the block's forward, from 0."""


class Selection:
    """Results that one forward of a block keeps, and its recomputation is handed back.

    torch's selective checkpointing, by a policy that names each call. torch hands random numbers
    out again from where the block began; where a random operation is kept, the later ones would
    get those of the kept one, so here each is given the state that it had.

    Attributes
    ----------
    forward, again
        Contexts, for use inside one checkpoint of the block. The first raises `UnsupportedModel`
        when an operation that should be kept did not run.
    """

    def __init__(self, block: str, keeps: Iterable[Call]) -> None:
        policy = _Policy(block, keeps)
        forward, again = create_selective_checkpoint_contexts(
            policy, allow_cache_entry_mutation=policy.keeps_changed
        )
        if policy.keeps_random:
            states: list[Any] = []
            self.forward = Together(policy, forward, _RandomStates(states, replay=False))
            self.again = Together(again, _RandomStates(states, replay=True))
        else:
            self.forward, self.again = Together(policy, forward), Together(again)


class HandedBack:
    """A context in which a block runs again, with what its latest `Selection` has kept.

    The results are let go when it ends. Where there are none (a second backward) all runs again.
    """

    def __init__(self, selections: dict[int, Selection], number: int) -> None:
        self._selections = selections
        self._number = number
        self._entered: Together | None = None

    def __enter__(self) -> None:
        selection = self._selections.pop(self._number, None)
        self._entered = None if selection is None else selection.again
        if self._entered is not None:
            self._entered.__enter__()

    def __exit__(self, *error: Any) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.__exit__(*error)


class _Policy:
    """Says of each operation whether its result is kept; as a context, checks that all were."""

    def __init__(self, block: str, keeps: Iterable[Call]) -> None:
        self._block = block
        self._wanted = frozenset(keeps)
        self._names = {name for name, _ in self._wanted}
        self._calls: Counter[tuple[bool, str]] = Counter()
        # What is changed in place is kept together with what changes it (`solvers.selection`).
        self.keeps_changed = any(name.split(".")[1].endswith("_") for name in self._names)
        self.keeps_random = any(map(_is_random, self._names))

    def __call__(self, context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        name = str(operation)
        if name not in self._names:
            return CheckpointPolicy.PREFER_RECOMPUTE
        key = (context.is_recompute, name)
        call = self._calls[key]
        self._calls[key] += 1
        if (name, call) in self._wanted:
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    def __enter__(self) -> None:
        self._calls.clear()

    def __exit__(self, kind: object, *error: object) -> None:
        for name, call in sorted(self._wanted):
            if kind is None and self._calls[False, name] <= call:
                raise UnsupportedModel(
                    f"block {self._block!r} runs {name} {self._calls[False, name]} times, and the "
                    f"plan keeps the result of number {call + 1}; the plan's costs are of another "
                    "model or device: profile this one, with options=True"
                )


def _is_random(name: str) -> bool:
    """Say whether the operation of this name draws random numbers."""
    operation: Any = torch.ops
    try:
        for part in name.split("."):
            operation = getattr(operation, part)
    except AttributeError:
        return True  # not known yet: the safe side
    return torch.Tag.nondeterministic_seeded in getattr(operation, "tags", ())


class Together:
    """Several contexts as one that can be entered more than once."""

    def __init__(self, *contexts: Any) -> None:
        self._contexts = contexts
        self._stack = ExitStack()

    def __enter__(self) -> None:
        with ExitStack() as stack:
            for context in self._contexts:
                stack.enter_context(context)
            self._stack = stack.pop_all()

    def __exit__(self, *error: Any) -> bool | None:
        return self._stack.__exit__(*error)


class _RandomStates(TorchDispatchMode):
    """Note the random state before each operation that draws, or put it there again."""

    def __init__(self, states: list[Any], *, replay: bool) -> None:
        super().__init__()
        self._states = states
        self._replay = replay
        self._next = 0

    def __enter__(self) -> Any:
        self._next = 0
        if not self._replay:
            self._states.clear()
        return super().__enter__()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()):
            tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
            device = tensors[0].device if tensors else torch.device("cpu")
            if self._replay:
                _generator(device).set_rng_state(self._states[self._next])
                self._next += 1
            else:
                self._states.append(_generator(device).get_rng_state())
        return func(*args, **kwargs)


def _generator(device: torch.device) -> Any:
    return torch.random if device.type == "cpu" else torch.get_device_module(device)
