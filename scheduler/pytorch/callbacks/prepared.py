"""A hook for training loops of `accelerate`."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from scheduler.common.errors import UnsupportedModel
from scheduler.pytorch.callbacks.follow import check_settings, followed
from scheduler.pytorch.checkpointing.followed import FollowedModel
from scheduler.pytorch.fitting.auto import AutoHandle


def checkpoint_prepared(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | str | None = "adamw",
    *,
    accelerator: Any = None,
    **settings: Any,
) -> FollowedModel[AutoHandle]:
    """Train a model that `accelerate` has prepared within a memory budget.

        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        followed = checkpoint_prepared(model, optimizer, accelerator=accelerator, budget_gb=80)
        ...                                                  # train as always
        followed.remove()

    The plan is made in the first training step, from what the model is called with, and again at a
    batch that is larger in any dimension.

    Parameters
    ----------
    model, optimizer
        As `accelerator.prepare` returns them.
    accelerator
        Says which precision, and whether gradients are accumulated; needed with mixed precision.
    settings
        Whatever else `auto_checkpoint` takes: ``budget_gb``, ``loss_fn``, ``margin``, …; and
        ``lengths``, as for `CheckpointCallback`.

    Returns
    -------
    FollowedModel
        ``followed.handle.plan``, ``followed.report()``, ``followed.remove()``; also a context
        manager.

    Raises
    ------
    UnsupportedModel
        The model is prepared for mixed precision, and no accelerator says which.
    """
    check_settings(settings)
    if accelerator is None:
        if any(hasattr(module, "_original_forward") for module in model.modules()):
            raise UnsupportedModel(
                "the model was prepared for mixed precision; pass accelerator=accelerator, which "
                "says which"
            )
        return followed(model, {"optimizer": optimizer, **settings}, nullcontext)
    sums = accelerator.gradient_accumulation_steps > 1
    found = {"optimizer": optimizer, "gradient_accumulation": sums}
    return followed(model, {**found, **settings}, accelerator.autocast)
