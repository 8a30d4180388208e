"""Keep chosen results of a block's operations while the rest is dropped and made again."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
import torch.utils.checkpoint as of_torch

from scheduler.common.errors import UnsupportedModel
from scheduler.costs.keeps import Keeps
from scheduler.pytorch.checkpointing.policy import KeepPolicy, RandomStates, Repetition

__all__ = ["HandedBack", "Selection", "Together", "check_torch"]


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

    Attributes
    ----------
    forward, again
        Contexts, for use inside one checkpoint of the block. Both raise `UnsupportedModel`: the
        first when an operation that should be kept did not run, or what it made cannot be handed
        back; the second when the operations are not those of the forward, or a kept result has
        been changed since.
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
