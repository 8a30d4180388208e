"""Take a plan elsewhere: a file for a training framework, and what the framework cannot express."""

from __future__ import annotations

from scheduler.export.export import TARGETS, export
from scheduler.export.exported import Exported

__all__ = ["TARGETS", "Exported", "export"]
