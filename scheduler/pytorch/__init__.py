"""The torch adapter: profile a model, apply a plan to it, measure a step."""

from scheduler.pytorch.apply import Handle, apply
from scheduler.pytorch.clock import Roofline
from scheduler.pytorch.measure import Measurement, measure
from scheduler.pytorch.profile import profile

__all__ = ["Handle", "Measurement", "Roofline", "apply", "measure", "profile"]
