"""A plan that follows the batches: made at the first, and again for one that is larger."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from scheduler.common.errors import InvalidBudget, UnsupportedModel
from scheduler.common.text import did_you_mean
from scheduler.common.units import resolve_budget
from scheduler.costs.bylength import check_lengths, next_length
from scheduler.pytorch.checkpointing.followed import FollowedModel
from scheduler.pytorch.fitting.auto import AutoHandle, auto_checkpoint, is_another_rank
from scheduler.pytorch.fitting.choice import Choice
from scheduler.pytorch.model.step import of_length, step_size

logger = logging.getLogger("scheduler.pytorch")

Sizes = tuple[tuple[int, ...], ...]


def check_settings(settings: dict[str, Any]) -> None:
    """Refuse what `auto_checkpoint` would, as far as it is known before the first step.

    Raises `UnsupportedModel` of an argument that it does not have, `InvalidBudget` where there is
    no budget and no CUDA device.
    """
    takes = [*inspect.signature(auto_checkpoint).parameters, "lengths"][2:]
    for name in settings:
        if name not in takes:
            near = did_you_mean(name, takes) or f"; there are {', '.join(takes)}"
            raise UnsupportedModel(f"there is no setting {name!r}{near}")
    if settings.get("budget_gb") is not None or settings.get("budget") is not None:
        resolve_budget(settings.get("budget_gb"), settings.get("budget"))
    elif not torch.cuda.is_available():
        raise InvalidBudget("no CUDA and no budget: pass budget_gb=80, for instance")


def sizes_of(inputs: Any) -> tuple[Any, Sizes]:
    """The form of a batch, and the shape of each tensor in it."""
    leaves, form = tree_flatten(inputs)
    return form, tuple(tuple(t.shape) for t in leaves if isinstance(t, torch.Tensor))


class Planner:
    """Plans for the batches so far; one that is no larger runs under the smallest such plan.

    Parameters
    ----------
    model
        What is planned for.
    settings
        What `auto_checkpoint` is to be given beside the model and its inputs; and `lengths`, in
        tokens: a batch of token ids is planned for as if it were as long as the next of them.
    context
        Makes the context that a step's forward runs in: its autocast.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: dict[str, Any],
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.model = model
        self.handle: AutoHandle | None = None
        self._given = settings
        self._settings = {"quiet": True, **settings}
        lengths = self._settings.pop("lengths", None)
        self._lengths = () if lengths is None else check_lengths(lengths)
        self._context = context
        self._planned: list[tuple[Any, Sizes, Choice]] = []

    def follow(self, inputs: Any) -> None:
        """See that the plan is one for a batch of this size."""
        if not self.model.training:
            return
        if self._lengths:
            sequences, length = step_size(inputs)
            inputs = of_length(inputs, next_length(self._lengths, sequences, length, sequences))
        form, sizes = sizes_of(inputs)
        for its_form, largest, choice in self._planned:
            if form == its_form and all(map(_within, sizes, largest)):
                if self.handle is None or self.handle.choice is not choice:
                    self._put_away()
                    blocks = self._settings.get("blocks", "auto")
                    self.handle = AutoHandle.of(choice, self.model, blocks)
                return
        self._put_away()
        with self._context():
            self.handle = auto_checkpoint(self.model, inputs, **self._settings).unwatched()
        choice = self.handle.choice
        self._planned.append((form, sizes, choice))
        self._planned.sort(key=lambda planned: sum(map(prod, planned[1])))
        logger.info("%s", choice.line())
        if "quiet" not in self._given and not is_another_rank():
            print(choice.line(), file=sys.stderr)
        for note in choice.notes:
            logger.warning("%s", note)

    def remove(self) -> None:
        """Put everything back."""
        self._put_away()
        self._planned.clear()

    def _put_away(self) -> None:
        if self.handle is not None:
            self.handle.remove()
        self.handle = None


def _within(size: tuple[int, ...], largest: tuple[int, ...]) -> bool:
    return len(size) == len(largest) and all(a <= b for a, b in zip(size, largest, strict=True))


def followed(
    model: nn.Module,
    settings: dict[str, Any],
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> FollowedModel[AutoHandle]:
    """A model whose training calls are planned for as they come; parameters as of `Planner`."""
    return FollowedModel(model, Planner(model, settings, context))
