"""For transformers: a callback of its Trainer with the plan."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from scheduler.export.standalone.apply import Applied, apply_plan


class ApplyPlan(TrainerCallback):
    """Give it to the Trainer: ``Trainer(..., callbacks=[ApplyPlan()])``.

    Leave activation_checkpointing (its older name: gradient_checkpointing) of TrainingArguments
    off.
    """

    def __init__(self) -> None:
        self.applied: Applied | None = None

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Apply the plan."""
        self.applied = apply_plan(model)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take it off."""
        if self.applied is not None:
            self.applied.remove()
