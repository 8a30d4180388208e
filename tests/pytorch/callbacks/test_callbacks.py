"""Callbacks in the libraries that people train with: real steps, with a plan and without."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from accelerate import Accelerator
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from scheduler import UnsupportedModel
from scheduler.pytorch.callbacks import (
    CheckpointCallback,
    LightningCheckpointCallback,
    checkpoint_prepared,
)

CONFIG = GPT2Config(
    n_layer=4, n_embd=32, n_head=2, vocab_size=64, bos_token_id=0, eos_token_id=0, n_positions=64
)
TOKENS = torch.randint(0, 64, (8, 64), generator=torch.Generator().manual_seed(0))
SETTINGS: dict[str, Any] = {"margin": 0, "options": False, "fake": False}


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(CONFIG).train()


class Seen:
    """How often each block's forward runs in a step, and the losses."""

    def __init__(self, model: nn.Module) -> None:
        self.calls = 0
        for block in model.transformer.h:  # type: ignore[union-attr]
            block.mlp.register_forward_pre_hook(self._call)

    def _call(self, *_: Any) -> None:
        self.calls += 1


class Losses(CheckpointCallback):
    """What the Trainer logs, and what the plan was at the end of each step."""


def train(tmp_path: Path, callback: CheckpointCallback | None, **settings: Any) -> Any:
    """Weights and losses of a Trainer, and the forwards of blocks in each step."""
    model, rows = gpt2(), [{"input_ids": row, "labels": row} for row in TOKENS]
    quiet = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    quiet |= {"logging_steps": 1, "max_steps": 2, "per_device_train_batch_size": 2, "seed": 0}
    args = TrainingArguments(str(tmp_path), **{**quiet, **settings})
    callbacks: Any = [callback] if callback else []
    trainer = Trainer(model, args, train_dataset=rows, callbacks=callbacks)  # type: ignore[arg-type]
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, model.state_dict(), model


class Watched(CheckpointCallback):
    """A callback that keeps its report before the plan is removed."""

    text, forwards = "", 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.followed is not None
        assert self.followed.handle is not None
        report = self.followed.report()
        assert report.ok
        self.text, self.plan = str(report), self.followed.handle.plan


def assert_same(found: Any, expected: Any) -> None:
    assert found[0] == expected[0]
    assert found[0]
    assert all(torch.equal(found[1][name], expected[1][name]) for name in expected[1])


@pytest.mark.parametrize(
    "settings",
    [{}, {"gradient_accumulation_steps": 2, "gradient_checkpointing": True}, {"bf16": True}],
    ids=["plain", "accumulated", "bf16"],
)
def test_trainer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any]
) -> None:
    expected = train(tmp_path, None, **{**settings, "gradient_checkpointing": False})
    callback = Watched(budget="1500KB", **SETTINGS)
    with caplog.at_level(logging.INFO, "scheduler.pytorch"):
        found = train(tmp_path, callback, **settings)
    assert_same(found, expected)
    assert callback.plan.overhead > 0
    assert callback.followed is None
    assert "forward" not in found[2].__dict__ or "bf16" in settings
    lines = [record.getMessage() for record in caplog.records]
    assert sum("checkpointing of GPT2LMHeadModel" in line for line in lines) == 1
    off = "the model's own gradient checkpointing was switched off"
    assert (off in lines) == ("gradient_checkpointing" in settings)
    assert found[2].is_gradient_checkpointing == ("gradient_checkpointing" in settings)
