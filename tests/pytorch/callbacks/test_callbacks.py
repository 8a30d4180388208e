"""Callbacks in the libraries that people train with: real steps, with a plan and without."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from accelerate import Accelerator
from tokenizers import Tokenizer, models
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

from scheduler import InvalidBudget, InvalidCosts, InvalidPlan, UnsupportedModel
from scheduler.pytorch import callbacks
from scheduler.pytorch.callbacks import (
    CheckpointCallback,
    LightningCheckpointCallback,
    checkpoint_prepared,
)

CONFIG = GPT2Config(
    n_layer=4, n_embd=32, n_head=2, vocab_size=64, bos_token_id=0, eos_token_id=0, n_positions=64
)
TOKENS = torch.randint(0, 64, (8, 64), generator=torch.Generator().manual_seed(0))
KEYS = ("input_ids", "labels")
BUDGET = "1900KB"
SETTINGS: dict[str, Any] = {"margin": 0, "options": False, "fake": False}


def gpt2() -> Any:
    torch.manual_seed(0)
    return GPT2LMHeadModel(CONFIG).train()


class Subclass(Trainer):
    """As TRL's SFTTrainer is one: it looks at the outputs beside the loss."""

    def compute_loss(self, model: Any, inputs: Any, *rest: Any, **others: Any) -> Any:
        others["return_outputs"] = True
        loss, outputs = super().compute_loss(model, inputs, *rest, **others)
        self.accuracy = float((outputs.logits.argmax(-1) == inputs["labels"]).float().mean())
        return loss


def train(tmp_path: Path, callback: CheckpointCallback | None, **settings: Any) -> Any:
    """Weights and losses of a Trainer, and the forwards of blocks in each step."""
    model, rows = gpt2(), [{"input_ids": row, "labels": row} for row in TOKENS]
    quiet = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    quiet |= {"logging_steps": 1, "max_steps": 2, "per_device_train_batch_size": 2, "seed": 0}
    args = TrainingArguments(str(tmp_path), **{**quiet, **settings})
    callbacks: Any = [callback] if callback else []
    trainer = Subclass(model, args, train_dataset=rows, callbacks=callbacks)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, model.state_dict(), model


class Watched(CheckpointCallback):
    """A callback that keeps its report before the plan is removed."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.followed is not None
        assert self.followed.handle is not None
        report = self.followed.report()
        assert report.ok
        assert "checkpointing of GPT2LMHeadModel" in str(report)
        self.plan = self.followed.handle.plan
        assert set(report.calls.values()) == {state.global_step * args.gradient_accumulation_steps}


def assert_same(found: Any, expected: Any) -> None:
    assert found[0] == expected[0]
    assert found[0]
    assert all(torch.equal(found[1][name], expected[1][name]) for name in expected[1])


@pytest.mark.parametrize(
    "settings",
    [{}, {"gradient_accumulation_steps": 2, "activation_checkpointing": True}, {"bf16": True}],
    ids=["plain", "accumulated", "bf16"],
)
def test_trainer(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    settings: dict[str, Any],
) -> None:
    expected = train(tmp_path, None, **{**settings, "activation_checkpointing": False})
    callback = Watched(budget=BUDGET, **SETTINGS)
    with caplog.at_level(logging.INFO, "scheduler.pytorch"):
        found = train(tmp_path, callback, **settings)
    assert_same(found, expected)
    assert callback.plan.overhead > 0
    assert callback.followed is None
    assert "forward" not in found[2].__dict__ or "bf16" in settings
    lines = [record.getMessage() for record in caplog.records]
    assert capsys.readouterr().err.count("checkpointing of GPT2LMHeadModel") == 1
    assert sum("checkpointing of GPT2LMHeadModel" in line for line in lines) == 1
    off = "the model's own gradient checkpointing was switched off"
    assert (off in lines) == ("activation_checkpointing" in settings)
    assert found[2].is_activation_checkpointing == ("activation_checkpointing" in settings)


def sft(folder: Path, callback: CheckpointCallback | None, **settings: Any) -> Any:
    """As `train` of the trainer of TRL, on a dataset and with a tokenizer that are made here."""
    import datasets
    import trl

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(64)}, unk_token="w0"))
    # One that is made of a dict is hashed, by a pickle that pyarrow's types are not for.
    table = datasets.table.InMemoryTable.from_pydict(dict.fromkeys(KEYS, TOKENS.tolist()))
    model: Any = gpt2()
    quiet: dict[str, Any] = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True}
    quiet |= {"use_cpu": True, "bf16": False, "logging_steps": 1, "max_steps": 2, "seed": 0}
    quiet |= {"dataset_kwargs": {"skip_prepare_dataset": True}, "per_device_train_batch_size": 2}
    trainer = trl.SFTTrainer(
        model,
        args=trl.SFTConfig(str(folder), **quiet, **settings),
        train_dataset=datasets.Dataset(table, fingerprint="tokens"),
        processing_class=PreTrainedTokenizerFast(
            tokenizer_object=words, eos_token="w0", pad_token="w0"
        ),
        callbacks=[callback] if callback else [],
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, model.state_dict()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="TRL needs Python 3.11")
@pytest.mark.filterwarnings("ignore::UserWarning:dill")
def test_sft_trainer_of_trl(tmp_path: Path) -> None:
    """Whether its own checkpointing is on or off."""
    expected = sft(tmp_path, None, activation_checkpointing=False)
    assert len(expected[0]) == 2
    for own in (True, False):
        # Its loss makes about 16 MiB of whatever little it is given.
        callback = Watched(budget="18MB", **SETTINGS)
        assert_same(sft(tmp_path, callback, activation_checkpointing=own), expected)
        assert callback.plan.overhead > 0


class Module(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.model = gpt2()
        self.losses: list[float] = []

    def training_step(self, tokens: torch.Tensor, _: int) -> torch.Tensor:
        loss: Any = self.model(input_ids=tokens, labels=tokens).loss
        self.log("loss", loss)
        self.losses.append(float(loss.detach()))
        return loss  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters())


def fit(module: Module, *callbacks: Any, precision: str = "32-true") -> Any:
    quiet: dict[str, Any] = {"accelerator": "cpu", "logger": False, "max_epochs": 1}
    quiet |= {"enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "precision": precision}
    loader: Any = torch.utils.data.DataLoader(TOKENS[:4], batch_size=2)  # type: ignore[arg-type]
    lightning.Trainer(callbacks=list(callbacks), **quiet).fit(module, loader)
    return module.losses, module.state_dict()


class WatchedLightning(LightningCheckpointCallback):
    def on_train_batch_end(self, *_: Any) -> None:
        assert self.handle is not None
        report = self.report()
        assert report.ok
        self.plan, self.calls = self.handle.plan, report.calls


@pytest.mark.filterwarnings("ignore:.*num_workers.*", "ignore:.*log_every_n_steps.*")
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_lightning(precision: str) -> None:
    module, callback = Module(), WatchedLightning(budget=BUDGET, **SETTINGS)
    assert_same(fit(module, callback, precision=precision), fit(Module(), precision=precision))
    assert callback.plan.overhead > 0
    assert set(callback.calls.values()) == {2}
    assert callback.handle is None
    assert not {"forward", "log", "training_step"} & set(module.__dict__)


@pytest.mark.filterwarnings("ignore:.*num_workers.*", "ignore:.*log_every_n_steps.*")
def test_each_trainer_has_a_callback_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"lightning\.Trainer LightningCheckpointCallback"):
        fit(Module(), CheckpointCallback(budget=BUDGET))
    with pytest.raises(UnsupportedModel, match=r"transformers\.Trainer CheckpointCallback"):
        train(tmp_path, LightningCheckpointCallback(budget=BUDGET))


def loop(accelerator: Accelerator, steps: tuple[int, ...], followed: bool, **settings: Any) -> Any:
    """Losses, weights, and the plan after each step."""
    model: Any = gpt2()
    optimizer: Any = torch.optim.SGD(model.parameters(), momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    losses, handles = [], []
    more = {**SETTINGS, "accelerator": accelerator, "budget": BUDGET, **settings}
    watched = checkpoint_prepared(model, optimizer, **more) if followed else None
    for length in steps:
        loss = model(TOKENS[:2, :length], labels=TOKENS[:2, :length]).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        handles.append(watched.handle if watched else None)
    if watched:
        watched.remove()
        watched.remove()
    return losses, model.state_dict(), handles


def test_accelerate_follows_the_batches() -> None:
    """A larger batch has a plan of its own; a smaller one the smallest that it fits."""
    lengths = (32, 64, 48, 64, 20)
    found = loop(Accelerator(cpu=True), lengths, True)
    assert_same(found, loop(Accelerator(cpu=True), lengths, False))
    first, second, third, fourth, last = found[2]
    assert second is third is fourth
    assert last.choice is first.choice
    assert first.plan.overhead == 0 < second.plan.overhead
    # What is reserved: fp32 weights, and SGD's one momentum of their size.
    weights = 4 * sum(p.numel() for p in gpt2().parameters())
    assert second.choice.request.reserved_bytes == 2 * weights


def test_accelerate_plans_by_length() -> None:
    """A batch is planned for at the next of the lengths, once for all that are as short."""
    lengths = (20, 50, 30, 64)
    found = loop(Accelerator(cpu=True), lengths, True, lengths=[32, 64])
    assert_same(found, loop(Accelerator(cpu=True), lengths, False))
    first, second, third, fourth = (handle.choice for handle in found[2])
    assert first is third is not second is fourth
    assert first.plan.overhead == 0 < second.plan.overhead
    with pytest.raises(InvalidPlan, match="a step of 2 × 50 tokens is larger than the longest"):
        loop(Accelerator(cpu=True), lengths, True, lengths=[32])
    with pytest.raises(InvalidCosts, match="the lengths must increase"):
        loop(Accelerator(cpu=True), lengths, True, lengths=[64, 32])


def test_accelerate_says_what_it_needs_to_know() -> None:
    model: Any = gpt2()
    model._original_forward = model.forward
    with pytest.raises(UnsupportedModel, match="pass accelerator=accelerator"):
        checkpoint_prepared(model, budget_gb=1)


def test_libraries_are_loaded_when_they_are_asked_for() -> None:
    folder = Path(__file__).parents[3] / "scheduler" / "pytorch"
    library = re.compile(r"^(import|from) (transformers|lightning|accelerate|trl)\b", re.MULTILINE)
    loading = [path.name for path in folder.rglob("*.py") if library.search(path.read_text())]
    assert sorted(loading) == ["lightning.py", "trainer.py"]
    assert not hasattr(callbacks, "nothing")


def test_a_callback_is_checked_when_it_is_made(tmp_path: Path) -> None:
    for kind in (CheckpointCallback, LightningCheckpointCallback):
        with pytest.raises(UnsupportedModel, match=r"no setting 'optimiser'; did you mean 'optimi"):
            kind(budget="10MB", optimiser="adamw")
        with pytest.raises(InvalidBudget, match="no CUDA and no budget"):
            kind()
    callback: Any = LightningCheckpointCallback(budget=BUDGET)
    with pytest.raises(UnsupportedModel, match=r"give transformers.Trainer CheckpointCallback"):
        train(tmp_path, callback)
