"""Keep chosen results of a block's operations while the rest is dropped and made again.

torch hands results back by (operation, n-th call), whatever the block does in its recomputation.
So its operations are written down in the forward and compared in the recomputation. A plan says
which results to keep for the block that was profiled; what may be kept beside what is changed in
place (`solvers.selection.items`) is looked at again in the block that runs.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from operator import attrgetter
from typing import Any

import torch
import torch.utils.checkpoint as of_torch

from scheduler.common.errors import UnsupportedModel
from scheduler.common.text import ordinal
from scheduler.costs.keeps import Keeps
from scheduler.pytorch.observe.dispatch import OperationMode, is_mutable, is_random, written
from scheduler.pytorch.tiles.modules import in_tiles

_PROFILE = (
    "evaluate under torch.no_grad(), where no plan is needed; in training the plan's costs are of "
    "another model, mode or device, or of a shape or of fake tensors that run otherwise: "
    "profile this one as it trains, on real tensors, with options=True; if it takes another branch "
    "in some calls, solve costs without options"
)


def check_torch() -> None:
    """Raise `UnsupportedModel` where torch does not let results inside a checkpoint be kept.

    Its policies must be shown each result that they decide on, and be asked in the forward alone.
    """
    context = getattr(of_torch, "SelectiveCheckpointContext", None)
    if context is None or not hasattr(context(is_recompute=False), "op_output"):
        raise UnsupportedModel(
            f"torch {torch.__version__} does not show a checkpoint's policy the results to be "
            "kept, which options need (torch 2.13 does); use profiles and plans without options"
        )


class Selection:
    """Results that one forward of a block keeps, and its recomputation is handed back.

    torch's selective checkpointing, by a policy that names each call. torch hands random numbers
    out again from where the block began; where a random operation is kept, the later ones would
    get those of the kept one, so here each is given the state that it had. torch tells a result by
    how often its operation ran before: so here the recomputation must run the same operations.

    `forward` and `again` are contexts, for use inside one checkpoint of the block. Both raise
    `UnsupportedModel`: the first when an operation that should be kept did not run, or what it made
    cannot be handed back; the second when the operations are not those of the forward, or a kept
    result has been changed since.
    """

    def __init__(self, block: str, keeps: Keeps) -> None:
        policy = KeepPolicy(block, keeps)
        # Whether what is kept is changed is seen to by the policy, which knows by what.
        forward, again = of_torch.create_selective_checkpoint_contexts(
            policy, allow_cache_entry_mutation=True
        )
        states = RandomStates() if policy.keeps_random else None
        self.forward = Together(policy, forward, *([] if states is None else [states]))
        self.again = Together(again, Repetition(policy, states))


class HandedBack:
    """A context in which a block runs again, with what its latest `Selection` has kept.

    The results are let go when it ends. Where there are none (a second backward) all runs again.
    """

    def __init__(self, selections: dict[int, Selection], number: int) -> None:
        self._selections = selections
        self._number = number
        self._stack = ExitStack()

    def __enter__(self) -> None:
        if (selection := self._selections.pop(self._number, None)) is not None:
            self._stack.enter_context(selection.again)

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)


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


class KeepPolicy:
    """The policy of one forward of a block, called after each operation; and its context.

    `ran` has the operations so far; `keeps_random`: is one kept that draws random numbers?
    """

    def __init__(self, block: str, keeps: Keeps) -> None:
        self.block = block
        self.ran: list[Any] = []
        self._wanted = frozenset((name, call) for name, call, *_ in keeps)
        self._expected = {name: of for name, _, *rest in keeps for of in rest}
        self._names = {name for name, _ in self._wanted}
        operations = [_operation(name) for name in self._names]
        self.keeps_random = any(o is None or is_random(o) for o in operations)
        self._keeps_changed = any(o is None or is_mutable(o, unknown=True) for o in operations)
        self._calls: Counter[str] = Counter()
        # Of kept storages, which live on in `_kept` and so have identities of their own.
        self._storages: set[int] = set()
        self._read: set[int] = set()
        self._kept: list[torch.Tensor] = []
        self._versions: list[int] = []

    def __call__(self, context: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
        """Whether an operation's result is kept."""
        self.ran.append(operation)
        name = str(operation)
        kept = False
        if name in self._names and not in_tiles():
            kept = (name, self._calls[name]) in self._wanted
            self._calls[name] += 1
        self._check_changes(operation, kept, (args, kwargs), context.op_output)
        if not kept:
            return of_torch.CheckpointPolicy.PREFER_RECOMPUTE
        for tensor in _tensors(context.op_output):
            self._kept.append(_alias(tensor))
            self._storages.add(id(tensor.untyped_storage()))
        return of_torch.CheckpointPolicy.MUST_SAVE

    def _check_changes(self, operation: Any, kept: bool, given: Any, made: Any) -> None:
        """What is kept comes back as it is at the end: nothing run again may need it as before."""
        changed = _storages(written(operation, *given))
        if kept:
            wrong = (changed - self._storages) | (changed & self._read)
        else:
            wrong = changed & self._storages
            if self._keeps_changed and self._storages:
                taken = _storages(given)
                used, results = taken & self._storages, _storages(made)
                if not results or results - taken:  # else it is a view, and looks at nothing
                    self._read |= used
        if wrong:
            raise UnsupportedModel(
                f"block {self.block!r} changes in place, by its {ordinal(len(self.ran))} operation "
                f"{operation}, what the plan keeps otherwise, and so it would be handed back "
                f"wrong; {_PROFILE}"
            )

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is not None:
            return
        for name, call in sorted(self._wanted):
            if self._calls[name] <= call:
                raise UnsupportedModel(
                    f"block {self.block!r} runs {name} {self._calls[name]} times, and the plan "
                    f"keeps the result of number {call + 1}; {_PROFILE}"
                )
        for name, expected in sorted(self._expected.items()):
            if self._calls[name] != expected:
                raise UnsupportedModel(
                    f"block {self.block!r} runs {name} {self._calls[name]} times, and in the "
                    f"plan's costs it runs {expected} times, so that what the plan keeps is not "
                    f"known here; {_PROFILE}"
                )
        self._versions = [tensor._version for tensor in self._kept]

    def check_unchanged(self) -> None:
        """Raise `UnsupportedModel` where a kept result is not as the forward left it."""
        now = [tensor._version for tensor in self._kept]
        self._kept.clear()  # from here on they are let go as they are handed out
        if now != self._versions:
            raise UnsupportedModel(
                f"what block {self.block!r} returns is changed in place after it, which changes a "
                "result that the plan keeps; use the version that does not change it, or solve "
                "costs without options"
            )


class RandomStates(OperationMode):
    """Note the random state before each operation that draws, to put it there again."""

    def __init__(self) -> None:
        super().__init__()
        self._states: list[torch.Tensor] = []

    def _operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_random(func):
            self._states.append(_generator(args, kwargs).get_rng_state())
        return func(*args, **kwargs)

    def put(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Put the state there that operation `number` of those that draw was given."""
        _generator(args, kwargs).set_rng_state(self._states[number])


class Repetition(OperationMode):
    """The recomputation: runs the operations of the forward, each from the state that it had."""

    def __init__(self, policy: KeepPolicy, states: RandomStates | None) -> None:
        super().__init__()
        self._policy = policy
        self._states = states
        self._next = 0
        self._drawn = 0

    def __enter__(self) -> Any:
        self._policy.check_unchanged()
        return super().__enter__()

    def __exit__(self, kind: Any, *error: Any) -> None:
        super().__exit__(kind, *error)
        # torch ends it by an error when all is there that was wanted.
        if kind is None and self._next < len(self._policy.ran):
            raise self._differs("ends")

    def _operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in of_torch.SAC_IGNORED_OPS:
            return func(*args, **kwargs)
        ran = self._policy.ran
        if self._next >= len(ran) or func is not ran[self._next]:
            raise self._differs(f"runs {func}")
        self._next += 1
        if self._states is not None and is_random(func):
            self._states.put(self._drawn, args, kwargs)
            self._drawn += 1
        return func(*args, **kwargs)

    def _differs(self, what: str) -> UnsupportedModel:
        ran = self._policy.ran
        before = f"ran {ran[self._next]}" if self._next < len(ran) else "had ended"
        return UnsupportedModel(
            f"block {self._policy.block!r} does something else when it is run again: {what} where "
            f"its forward {before}, as its {ordinal(self._next + 1)} operation; where it makes "
            "something in its first call and keeps it, call the model once under torch.no_grad() "
            "before, else solve costs without options"
        )


def _operation(name: str) -> Any:
    """The operation of a name such as ``aten.mm.default``; None where torch does not know it."""
    try:
        return attrgetter(name)(torch.ops)
    except AttributeError:
        return None


def _storages(values: Any) -> set[int]:
    return {id(tensor.untyped_storage()) for tensor in _tensors(values)}


def _tensors(values: Any) -> list[torch.Tensor]:
    """Tensors among an operation's arguments or results: called for each, so by hand."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, (tuple, list)):
        return []
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list, dict)):
            found += _tensors(value)
    return found


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    """The same storage and count of changes, without the graph that will hang on `tensor`."""
    # Below autograd, a view would begin a count of its own.
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
        return tensor.detach()


def _generator(args: Any, kwargs: dict[str, Any]) -> Any:
    """The module whose functions read and set the state that an operation draws from."""
    tensors = _tensors((args, kwargs))
    device = torch.device(kwargs.get("device") or (tensors[0].device if tensors else "cpu"))
    return torch.random if device.type == "cpu" else torch.get_device_module(device)
