"""A callback for `transformers.Trainer`, and for what is made of it: TRL's trainers."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NoReturn

import torch
from transformers import TrainerCallback

from scheduler.common.errors import UnsupportedModel
from scheduler.pytorch.callbacks.follow import check_settings, followed
from scheduler.pytorch.checkpointing.followed import FollowedModel
from scheduler.pytorch.fitting.auto import AutoHandle


class CheckpointCallback(TrainerCallback):
    """Train within a memory budget: ``Trainer(..., callbacks=[CheckpointCallback(budget_gb=80)])``.

    The plan is made in the first training step, from the batch that the model is called with, and
    again at a batch that is larger in any dimension; it is removed when training ends. The model's
    own gradient checkpointing is off meanwhile, which is logged, as is each plan in one line, by
    the logger "scheduler.pytorch". Precision, accumulation of gradients and the optimizer are the
    Trainer's.

    Parameters
    ----------
    budget_gb
        A number of GB. Default: the CUDA device's memory.
    settings
        Whatever else `auto_checkpoint` takes, such as ``budget="80GiB"``, ``margin``, ``loss_fn``
        where the model is called without labels, or ``verify=False``; and ``lengths=[1024, 2048]``,
        in tokens: a batch of token ids is planned for as if it were as long as the next of them.

    Attributes
    ----------
    followed
        The model in training: ``callback.followed.handle.plan``, ``callback.followed.report()``;
        None before and after.
    """

    def __init__(self, budget_gb: object = None, **settings: Any) -> None:
        self.settings = {"budget_gb": budget_gb, **settings}
        self.followed: FollowedModel[AutoHandle] | None = None
        check_settings(self.settings)

    @property
    def setup(self) -> NoReturn:
        """What Lightning's Trainer asks for first: it has a callback of its own."""
        raise UnsupportedModel(
            "CheckpointCallback is for transformers.Trainer; give lightning.Trainer "
            "LightningCheckpointCallback"
        )

    on_exception = setup  # asked for once the first was refused

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Wait for the first step."""
        self.on_train_end(args, state, control)
        found = {"gradient_accumulation": args.gradient_accumulation_steps > 1}
        if kwargs.get("optimizer") is not None:
            found["optimizer"] = kwargs["optimizer"]
        context = partial(_autocast, args)
        self.followed = followed(kwargs["model"], {**found, **self.settings}, context)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Remove the plan."""
        if self.followed is not None:
            self.followed.remove()
        self.followed = None


def _autocast(args: Any) -> AbstractContextManager[Any]:
    """What the Trainer runs its forwards in, inside the model's own forward."""
    if not args.bf16 and not args.fp16:
        return nullcontext()
    dtype = torch.bfloat16 if args.bf16 else torch.float16
    return torch.autocast(args.device.type, dtype)
