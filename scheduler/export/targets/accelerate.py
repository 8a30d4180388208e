"""accelerate: the plan applied, its own checkpointing off, then `prepare`."""

from __future__ import annotations

from scheduler.export.exported import Exported, Source
from scheduler.export.targets.torch import python_file

__all__ = ["to_accelerate"]

_TAIL = '''\
def prepare_with_plan(accelerator, model, *others):
    """Apply the plan, then ``accelerator.prepare(model, *others)``: what that returns.

    Keep ``fsdp_config: {fsdp_activation_checkpointing: false}`` in the configuration.
    """
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if getattr(plugin, "activation_checkpointing", False):
        raise ValueError("switch fsdp_activation_checkpointing off: the plan does it")
    apply_plan(model)
    return accelerator.prepare(model, *others)
'''


def to_accelerate(source: Source) -> Exported:
    """`prepare_with_plan`, in place of ``accelerator.prepare``."""
    title = "The plan below for accelerate: prepare_with_plan(accelerator, model, ...)."
    return Exported("accelerate", python_file("accelerate", title, source, tail=_TAIL))
