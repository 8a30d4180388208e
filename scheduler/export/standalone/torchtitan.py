"""For torchtitan: a policy object with the plan."""

from __future__ import annotations

from torch import nn

from scheduler.export.standalone.apply import Applied, apply_plan


class PlanPolicy:
    """Call ``PlanPolicy().apply(model)`` in parallelize_fn, where apply_ac is called.

    It goes before compiling the blocks and before fully_shard; set activation_checkpoint.mode to
    "none".
    """

    def apply(self, model: nn.Module) -> Applied:
        """Apply the plan to the model's ``layers``."""
        return apply_plan(model)
