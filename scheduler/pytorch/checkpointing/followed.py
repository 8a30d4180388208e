"""A model whose plan follows its batches: by length, or as they come."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import nn

from scheduler.common.errors import UnsupportedModel
from scheduler.plans.lengths import PlansByLength
from scheduler.plans.plan import Plan
from scheduler.pytorch.checkpointing.coverage import Coverage
from scheduler.pytorch.model.lengths import step_size
from scheduler.pytorch.model.replace import put_back
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
    """Plans by length on a model; `apply` puts one of them on it."""

    def __init__(self, plans: PlansByLength, apply: Callable[[Plan], OnModel]) -> None:
        self.plans = plans
        self.handle: OnModel | None = None
        self._apply = apply
        self._plan: Plan | None = None

    def follow(self, inputs: Any) -> None:
        """See that the plan is that of the next longer point."""
        plan = plan_for(self.plans, inputs)
        if self._plan is None or _runs(plan) != _runs(self._plan):
            self.remove()
            self.handle, self._plan = self._apply(plan), plan

    def remove(self) -> None:
        """Put everything back."""
        if self.handle is not None:
            self.handle.remove()
        self.handle = self._plan = None


def _runs(plan: Plan) -> tuple[object, ...]:
    """What a model does under a plan."""
    return plan.schedule, plan.policies, plan.tiles


class FollowedModel(Generic[OnModel]):
    """A model whose training calls each run under a plan of their size, until `remove`.

    Its forward is replaced by one that sees to the plan at each call with gradients.

    Attributes
    ----------
    handle
        What is applied now; None before the first step.
    """

    def __init__(self, model: nn.Module, follower: Follower[OnModel]) -> None:
        self.model = bare(model)
        self._follower = follower
        self._own: Any = None
        self._put()

    @property
    def handle(self) -> OnModel | None:
        """What is applied."""
        return self._follower.handle

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
        if torch.is_grad_enabled():
            inputs = _by_name(self.model, args, kwargs) if args and kwargs else args or kwargs
            self._take_away()
            try:
                self._follower.follow(inputs)
            finally:
                self._put()
        return self._inner(*args, **kwargs)

    def report(self) -> Coverage:
        """As of `Handle`, of the last step."""
        self._take_away()
        try:
            return report(self.handle)
        finally:
            self._put()

    def remove(self) -> None:
        """Put everything back; harmless when done twice."""
        if self.model.__dict__.get("forward") == self._forward:
            self._take_away()
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
