"""A callback for Lightning."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning

from scheduler.common.errors import UnsupportedModel
from scheduler.pytorch.callbacks.follow import Planner, check_settings
from scheduler.pytorch.checkpointing.coverage import Coverage
from scheduler.pytorch.checkpointing.followed import report
from scheduler.pytorch.fitting.auto import AutoHandle
from scheduler.pytorch.model.replace import replaced


class LightningCheckpointCallback(lightning.Callback):  # type: ignore[misc]
    """Train within a memory budget.

    As in ``lightning.Trainer(callbacks=[LightningCheckpointCallback(budget_gb=80)])``.

    What is planned is the module's ``training_step``, whatever it computes, on the first batch, and
    again on one that is larger in any dimension; the plan is removed when training ends. What the
    step logs while it is planned is not logged. Each plan is logged in one line, by the logger
    "scheduler.pytorch".

    Parameters
    ----------
    budget_gb
        A number of GB. Default: the CUDA device's memory.
    settings
        Whatever else `auto_checkpoint` takes but `loss_fn`: the loss is what ``training_step``
        returns. The step is profiled on real tensors unless ``fake=True`` is given. And
        ``lengths``, as for `CheckpointCallback`.

    Attributes
    ----------
    handle
        What is applied now; None before the first step and after the last.
    """

    def __init__(self, budget_gb: object = None, **settings: Any) -> None:
        super().__init__()
        self.settings = {"budget_gb": budget_gb, "fake": False, **settings}
        self._planner: Planner | None = None
        check_settings(self.settings)

    @property
    def handle(self) -> AutoHandle | None:
        """What is applied."""
        return None if self._planner is None else self._planner.handle

    def report(self) -> Coverage:
        """As of `AutoHandle`."""
        return report(self.handle)

    def on_init_end(self, *given: Any, **others: Any) -> None:
        """What transformers' Trainer calls first: it has a callback of its own."""
        raise UnsupportedModel(
            "LightningCheckpointCallback is for lightning.Trainer; give transformers.Trainer "
            "CheckpointCallback"
        )

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Wait for the first batch."""
        if not pl_module.automatic_optimization:
            raise UnsupportedModel(
                f"{type(pl_module).__name__} optimizes by itself (automatic_optimization is "
                "False), so its training_step is no step to plan; call auto_checkpoint on the "
                "model inside it"
            )
        found = {
            "optimizer": trainer.optimizers[0] if trainer.optimizers else None,
            "gradient_accumulation": trainer.accumulate_grad_batches > 1,
            "loss_fn": _loss,
        }
        context = trainer.precision_plugin.train_step_context
        self._planner = Planner(pl_module, {**found, **self.settings}, context)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """See that the plan is one for this batch."""
        assert self._planner is not None
        takes_index = len(inspect.signature(pl_module.training_step).parameters) > 1
        inputs = (batch, batch_idx) if takes_index else (batch,)
        step = pl_module.training_step
        with _unlogged(pl_module), replaced(pl_module, step):
            self._planner.follow(inputs)
            if pl_module.forward is not step:
                self._planner.remove()
                raise UnsupportedModel(
                    f"the training_step of {type(pl_module).__name__} is no chain of blocks; call "
                    "auto_checkpoint on the model inside it, before training"
                )

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Remove the plan."""
        if self._planner is not None:
            self._planner.remove()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Remove the plan."""
        self.on_train_end(trainer, pl_module)


def _loss(output: Any) -> Any:
    """What Lightning differentiates of what a training step returns."""
    return output["loss"] if isinstance(output, dict) else output


@contextmanager
def _unlogged(module: Any) -> Iterator[None]:
    names = ("log", "log_dict")
    for name in names:
        setattr(module, name, lambda *args, **kwargs: None)
    try:
        yield
    finally:
        for name in names:
            delattr(module, name)
