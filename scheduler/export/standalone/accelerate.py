"""For accelerate: the plan, its own checkpointing off, then `prepare`."""

from __future__ import annotations

from typing import Any

from scheduler.export.standalone.apply import apply_plan


def prepare_with_plan(accelerator: Any, model: Any, *others: Any) -> Any:
    """Apply the plan, then ``accelerator.prepare(model, *others)``: what that returns.

    Keep ``fsdp_config: {fsdp_activation_checkpointing: false}`` in the configuration.
    """
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if getattr(plugin, "activation_checkpointing", False):
        raise ValueError("switch fsdp_activation_checkpointing off: the plan does it")
    apply_plan(model)
    return accelerator.prepare(model, *others)
