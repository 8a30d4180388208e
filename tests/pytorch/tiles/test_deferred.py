"""Logits that are not there: what may be done to them before the loss, and what may not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peft
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from scheduler import UnsupportedModel
from scheduler.pytorch import chunked_head
from tests.pytorch.tiles.heads import VOCABULARY, Plain, check_close, masked_batch

IDS = masked_batch(3, 10)["input_ids"]
WEIGHT = torch.linspace(0.5, 2, VOCABULARY, dtype=torch.float64)
Loss = Callable[[torch.Tensor], torch.Tensor]
ODD = torch.arange(10) % 2 == 1
LOSSES: dict[str, Loss] = {
    "flat": lambda x: F.cross_entropy(x.view(-1, VOCABULARY), IDS.view(-1)),
    "shifted": lambda x: F.cross_entropy(
        x[..., :-1, :].contiguous().flatten(0, 1), IDS[:, 1:].reshape(-1)
    ),
    "classes second": lambda x: nn.CrossEntropyLoss()(x[:, 1:].transpose(1, 2), IDS[:, :-1]),
    "time first": lambda x: F.cross_entropy(
        x.transpose(0, 1).reshape(-1, x.size(-1)), IDS.t().reshape(-1)
    ),
    "one row": lambda x: F.cross_entropy(x[1], IDS[1], reduction="sum"),
    "last of each": lambda x: F.cross_entropy(x[:, -1], IDS[:, -1]),
    "masked": lambda x: F.cross_entropy(x[:, ODD].flatten(0, 1), IDS[:, ODD].flatten()),
    "picked twice": lambda x: F.cross_entropy(x[[0, 0, 2]].flatten(0, 1), IDS[[0, 0, 2]].flatten()),
    "smoothed": lambda x: F.cross_entropy(
        x.mT, IDS, label_smoothing=0.1, ignore_index=int(IDS[0, 0])
    ),
    "weighted": lambda x: F.cross_entropy(
        x.mT, IDS, weight=WEIGHT, label_smoothing=0.2, ignore_index=5
    ),
    "sum": lambda x: F.cross_entropy(x.mT, IDS, weight=WEIGHT, reduction="sum") / 7,
    "each": lambda x: (F.cross_entropy(x.mT, IDS, weight=WEIGHT, reduction="none") * IDS).mean(),
    "scaled": lambda x: F.cross_entropy((2 * x / 0.7 + 1).mT, IDS),
    "biased": lambda x: F.cross_entropy((x + WEIGHT[None]).mT, IDS),
    "capped": lambda x: F.cross_entropy((3 * torch.tanh(x / 3)).mT, IDS),
    "tanh at the end": lambda x: F.cross_entropy(x.tanh().mT, IDS),
}


@pytest.mark.parametrize("loss_fn", LOSSES.values(), ids=LOSSES)
def test_losses_outside_the_model(loss_fn: Loss) -> None:
    model = Plain().double()
    found = []
    for chunks in (None, 1, 3):
        handle = chunked_head(model, chunks) if chunks else None
        model.zero_grad()
        loss = loss_fn(model(IDS))
        loss.backward()
        found.append((loss.detach(), {n: p.grad for n, p in model.named_parameters()}))
        if handle is not None:
            handle.remove()
    (loss, whole), *others = found
    for mine, grads in others:
        torch.testing.assert_close(mine, loss, rtol=1e-12, atol=0)
        check_close(grads, whole, 1e-12)  # type: ignore[arg-type]


class Odd(Plain):
    """A model that reads its logits in a way of its own."""

    def __init__(self, read: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.read = read

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = super().forward(ids)
        self.read(logits)
        return F.cross_entropy(logits.mT, ids)


READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "argmax": lambda x: x.argmax(-1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "detach": lambda x: x.detach(),
    "__getitem__": lambda x: x[..., :5],
    "view": lambda x: x.view(-1),
    "view ": lambda x: x.view(torch.int32),
    "add": lambda x: x + torch.randn(3, 10, 1),
    "mul": lambda x: x * torch.ones((), requires_grad=True),
    "tolist": lambda x: x.tolist(),
    "stack": lambda x: torch.stack([x, x]),
    "register_hook": lambda x: x.register_hook(print),
    "mul_": lambda x: x.mul_(2),
    "cross_entropy with probabilities": lambda x: F.cross_entropy(x, torch.rand(3, 10, VOCABULARY)),
    "cross_entropy over another": lambda x: F.cross_entropy(x, IDS[:, :1].expand(3, VOCABULARY)),
    "mse_loss": lambda x: F.mse_loss(x, torch.zeros(())),
}


@pytest.mark.parametrize("name", READS)
def test_what_reads_the_logits_is_named(name: str) -> None:
    model = Odd(READS[name])
    with chunked_head(model, 3), pytest.raises(UnsupportedModel) as raised:
        model(IDS)
    assert str(raised.value).startswith(name.strip())
    assert " reads the logits of 'head', which are computed in 3 chunks" in str(raised.value)


def test_refusals() -> None:
    model = Plain()

    def refused(what: str, n: Any = 3, **settings: Any) -> None:
        with pytest.raises(UnsupportedModel, match=what):
            chunked_head(settings.pop("model", model), n, **settings)

    refused("whole number from 1, got 0", 0)
    refused("whole number from 1, got 2.0", 2.0)
    refused("no module 'haed'; did you mean 'head'", head="haed")
    refused("'embed' is a Embedding with a forward of its own", head="embed")
    refused("no torch.nn.Linear", model=nn.Sequential(nn.ReLU()))
    lora = peft.LoraConfig(target_modules=["head"])
    refused(
        "forward of its own \\(LoRA",
        model=peft.get_peft_model(Plain(), lora),
        head="base_model.model.head",
    )
    with chunked_head(model, 3):
        refused("already applied to 'head'")

    def step_of(loss_fn: Loss, n: int = 3) -> torch.Tensor:
        with chunked_head(model, n):
            return loss_fn(model(IDS))

    flat = LOSSES["flat"]
    with pytest.raises(UnsupportedModel, match="31 chunks, and this step's loss has 30 tokens"):
        step_of(flat, 31)
    with pytest.raises(UnsupportedModel, match="a second loss reads the logits of 'head'"):
        step_of(lambda x: flat(x) + flat(x))
    hidden = torch.randn(30, 16)
    with chunked_head(model, 3):
        logits = model.head(hidden)
    hidden.zero_()
    with pytest.raises(UnsupportedModel, match="'head' is changed in place"):
        F.cross_entropy(logits, IDS.flatten())
    with pytest.raises(ValueError, match="to match target batch_size"):
        step_of(lambda x: F.cross_entropy(x.flatten(0, 1), IDS.flatten()[1:]))
    with pytest.raises(UnsupportedModel, match="a second derivative was asked"):
        torch.autograd.grad(step_of(flat), model.head.weight, create_graph=True)
    loss = step_of(flat)
    loss.backward(retain_graph=True)
    with pytest.raises(UnsupportedModel, match="runs a second time"):
        loss.backward()
