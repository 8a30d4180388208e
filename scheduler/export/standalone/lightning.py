"""For Lightning: a callback with the plan."""

from __future__ import annotations

from typing import Any

import lightning

from scheduler.export.standalone.apply import Applied, apply_plan


class ApplyPlan(lightning.Callback):
    """Give it to the Trainer: ``lightning.Trainer(callbacks=[ApplyPlan("model")])``.

    `where` names the attribute of your module that is the model of the plan; "" is the module
    itself. Leave activation_checkpointing_policy of FSDPStrategy, and any checkpointing of the
    model itself, off.
    """

    def __init__(self, where: str = "") -> None:
        self.where = where
        self.applied: Applied | None = None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Apply the plan."""
        self.applied = apply_plan(pl_module.get_submodule(self.where))

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Take it off."""
        if self.applied is not None:
            self.applied.remove()
