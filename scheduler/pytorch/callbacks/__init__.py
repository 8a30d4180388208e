"""Plans where people train: transformers' Trainer and TRL, Lightning, accelerate.

Each is loaded when it is asked for, since it loads its library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scheduler.pytorch.callbacks.lightning import LightningCheckpointCallback
    from scheduler.pytorch.callbacks.prepared import checkpoint_prepared
    from scheduler.pytorch.callbacks.trainer import CheckpointCallback

__all__ = ["CheckpointCallback", "LightningCheckpointCallback", "checkpoint_prepared"]

_HOMES = {
    "CheckpointCallback": "trainer",
    "LightningCheckpointCallback": "lightning",
    "checkpoint_prepared": "prepared",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
