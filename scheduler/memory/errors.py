"""What can be wrong with a shape or a recipe, each said in one sentence."""

from __future__ import annotations

from scheduler.common.errors import SchedulerError

__all__ = ["InvalidRecipe", "InvalidShape"]


class InvalidShape(SchedulerError, ValueError):
    """A model's shape, or the config it is read from, that has no meaning; the field is named."""


class InvalidRecipe(SchedulerError, ValueError):
    """A way to train that does not exist or contradicts itself; the choices are named."""
