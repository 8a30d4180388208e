"""A plan that follows the batches: made at the first, and again for one that is larger."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from scheduler.common.errors import InvalidBudget, UnsupportedModel
from scheduler.common.text import did_you_mean
from scheduler.common.units import resolve_budget
from scheduler.pytorch.checkpointing.coverage import Coverage
from scheduler.pytorch.fitting.auto import AutoHandle, auto_checkpoint, is_another_rank
from scheduler.pytorch.fitting.choice import Choice
from scheduler.pytorch.model.replace import put_back
from scheduler.pytorch.model.wrappers import bare

logger = logging.getLogger("scheduler.pytorch")

Sizes = tuple[tuple[int, ...], ...]


def check_settings(settings: dict[str, Any]) -> None:
    """Refuse what `auto_checkpoint` would, as far as it is known before the first step.

    Raises `UnsupportedModel` of an argument that it does not have, `InvalidBudget` where there is
    no budget and no CUDA device.
    """
    takes = [*inspect.signature(auto_checkpoint).parameters][2:]
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
    """Plans for the largest batches so far; one that is no larger runs under such a plan.

    Parameters
    ----------
    model
        What is planned for.
    settings
        What `auto_checkpoint` is to be given beside the model and its inputs.
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
        self._context = context
        self._planned: list[tuple[Any, Sizes, Choice]] = []

    def follow(self, inputs: Any) -> None:
        """See that the plan is one for a batch of this size."""
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
        self._planned.insert(0, (form, sizes, choice))
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


def report(handle: AutoHandle | None) -> Coverage:
    """The report of what is applied, if a step was made."""
    if handle is None:
        raise UnsupportedModel("no step was made yet, so there is no plan to report on")
    return handle.report()


def _within(size: tuple[int, ...], largest: tuple[int, ...]) -> bool:
    return len(size) == len(largest) and all(a <= b for a, b in zip(size, largest, strict=True))


def _by_name(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by their names alone."""
    names = list(inspect.signature(type(model).forward).parameters)[1:]
    return {**dict(zip(names, args, strict=False)), **kwargs}


class FollowedModel:
    """A model whose training calls are planned for as they come, until `remove`.

    Its forward is replaced by one that has the plan made at the first call with gradients, and
    again at one with a larger batch; parameters are those of `Planner`.

    Attributes
    ----------
    handle
        What is applied now; None before the first step.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: dict[str, Any],
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.model = bare(model)
        self._planner = Planner(model, settings, context)
        self._own: Any = None
        self._put()

    @property
    def handle(self) -> AutoHandle | None:
        """What is applied."""
        return self._planner.handle

    def _put(self) -> None:
        # A graph's plan replaces the forward, too: this one stays above it.
        self._own = self.model.__dict__.get("forward")
        self._inner = self.model.forward
        self.model.forward = self._forward

    def _take_away(self) -> None:
        if self.model.__dict__.get("forward") != self._forward:
            raise UnsupportedModel(
                f"the forward of {type(self.model).__name__} was replaced while a plan followed "
                "it; undo that before the plan is removed or made again"
            )
        put_back(self.model, self._own)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.model.training and torch.is_grad_enabled():
            inputs = _by_name(self.model, args, kwargs) if args and kwargs else args or kwargs
            self._take_away()
            try:
                self._planner.follow(inputs)
            finally:
                self._put()
        return self._inner(*args, **kwargs)

    def report(self) -> Coverage:
        """As of `AutoHandle`."""
        self._take_away()
        try:
            return report(self.handle)
        finally:
            self._put()

    def remove(self) -> None:
        """Put everything back; harmless when done twice."""
        if self.model.__dict__.get("forward") == self._forward:
            self._take_away()
        self._planner.remove()

    def __enter__(self) -> FollowedModel:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()
