"""A model whose plan follows its batches: by length, or as they come."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import nn

from scheduler.common.errors import UnsupportedModel
from scheduler.plans.lengths import PlansByLength
from scheduler.plans.plan import Plan
from scheduler.pytorch.checkpointing.coverage import Coverage
from scheduler.pytorch.model.replace import Replaced
from scheduler.pytorch.model.step import step_size
from scheduler.pytorch.model.wrappers import bare


class Applied(Protocol):
    """A plan on a model."""

    def report(self) -> Coverage:
        """What the plan wants of each layer, and what the model does."""

    def remove(self) -> None:
        """Put everything back."""


OnModel = TypeVar("OnModel", bound=Applied)
OnModel_co = TypeVar("OnModel_co", bound=Applied, covariant=True)


class Follower(Protocol[OnModel_co]):
    """Who sees to the plan before a step; `handle`: what is applied now."""

    @property
    def handle(self) -> OnModel_co | None:
        """None before the first step."""

    def follow(self, inputs: Any) -> None:
        """See that the plan on the model is one for this batch."""

    def remove(self) -> None:
        """Put everything back."""


def plan_for(plans: Plan | PlansByLength, inputs: Any) -> Plan:
    """The plan that a step with these inputs runs under."""
    if isinstance(plans, Plan):
        return plans
    size = step_size(inputs)
    return plans[plans.length_for(size.length, size.sequences)]


class ByLength(Generic[OnModel]):
    """Plans by length on a model; `apply` puts one of them on it, by its `blocks`."""

    def __init__(
        self,
        plans: PlansByLength,
        model: nn.Module,
        blocks: str | list[str],
        apply: Callable[[Plan, nn.Module, str | list[str]], OnModel],
    ) -> None:
        self.plans = plans
        self.handle: OnModel | None = None
        # No closure: copied with the model, it is of the copy.
        self._apply, self._model, self._blocks = apply, model, blocks
        self._plan: Plan | None = None

    def follow(self, inputs: Any) -> None:
        """See that the plan is that of the next longer point."""
        plan = plan_for(self.plans, inputs)
        if plan is not self._plan:
            self.remove()
            self.handle, self._plan = self._apply(plan, self._model, self._blocks), plan

    def remove(self) -> None:
        """Put everything back."""
        if self.handle is not None:
            self.handle.remove()
        self.handle = self._plan = None


class FollowedModel(Replaced, Generic[OnModel]):
    """A model whose training calls each run under a plan of their size, until `remove`.

    Its forward is replaced by one that sees to the plan at each call with gradients.

    Attributes
    ----------
    handle
        What is applied now; None before the first step.
    """

    def __init__(self, model: nn.Module, follower: Follower[OnModel]) -> None:
        super().__init__(bare(model))
        self._follower = follower
        self.put()

    @property
    def handle(self) -> OnModel | None:
        """What is applied."""
        return self._follower.handle

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See to the plan, and run under it."""
        if not torch.is_grad_enabled():
            return self.original(*args, **kwargs)
        with self._away():
            self._follow(args, kwargs)
            return self.module.forward(*args, **kwargs)

    def follow(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """See that the plan on the model is one for a call with these arguments."""
        with self._away():
            self._follow(args, kwargs)

    def _follow(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        named = args and kwargs
        self._follower.follow(_by_name(self.module, args, kwargs) if named else args or kwargs)

    @contextmanager
    def _away(self) -> Iterator[None]:
        """Inside, the model is as if nothing followed it.

        A graph's plan replaces the forward, too, and does so again when it has traced the model.
        """
        if not self.is_put:
            raise UnsupportedModel(
                f"the forward of {type(self.module).__name__} was replaced while a plan followed "
                "it; undo that before the plan is removed or made again"
            )
        self.take_away()
        try:
            yield
        finally:
            super().__init__(self.module)
            self.put()

    def report(self) -> Coverage:
        """As of `Handle`, of the last step."""
        with self._away():
            return report(self.handle)

    def remove(self) -> None:
        """Put everything back; harmless when done twice."""
        self.take_away()
        self._follower.remove()

    def __enter__(self) -> FollowedModel[OnModel]:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def report(handle: Applied | None) -> Coverage:
    """The report of what is applied, if a step was made."""
    if handle is None:
        raise UnsupportedModel("no step was made yet, so there is no plan to report on")
    return handle.report()


def _by_name(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by their names alone."""
    names = list(inspect.signature(type(model).forward).parameters)[1:]
    return {**dict(zip(names, args, strict=False)), **kwargs}
