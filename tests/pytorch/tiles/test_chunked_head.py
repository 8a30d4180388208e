"""A head in chunks: the same losses and gradients, and never the logits."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate.utils import convert_outputs_to_fp32
from torch import nn

from scheduler.pytorch import chunked_head
from scheduler.pytorch.observe.dispatch import tensors_of
from scheduler.pytorch.observe.tracker import MemoryTracker, storage_bytes
from tests.pytorch.tiles.heads import VOCABULARY, check_close, masked_batch, model_of, sizes, step


@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "qwen3", "gemma2", "granite", "bert", "t5", "bart"]
)
def test_models_have_the_same_gradients(name: str) -> None:
    model, inputs = model_of(name), masked_batch()
    loss, whole = step(model, **inputs)
    with chunked_head(model, 5):
        in_chunks, mine = step(model, **inputs)
    torch.testing.assert_close(in_chunks, loss, rtol=1e-6, atol=0)
    check_close(mine, whole, 1e-6)
    again, _ = step(model, **inputs)
    assert torch.equal(again, loss)  # it is taken away


@pytest.mark.parametrize("name", ["llama", "bert"])
@pytest.mark.parametrize("autocast", [False, True], ids=["bf16", "autocast"])
def test_rounding_is_that_of_the_whole_step(name: str, autocast: bool) -> None:
    # Within two units in the last place of the error that the step has without chunks.
    exact_model, inputs = model_of(name), masked_batch()
    _, exact = step(exact_model, **inputs)
    model = exact_model if autocast else copy.deepcopy(exact_model).bfloat16()
    found = []
    for chunks in (None, 1, 7):
        handle = chunked_head(model, chunks) if chunks else None
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            model.zero_grad()
            loss = model(**inputs).loss
        loss.backward()
        grads = {name: p.grad.float() for name, p in model.named_parameters() if p.grad is not None}
        found.append((loss.dtype, grads))
        if handle is not None:
            handle.remove()
    (dtype, whole), *others = found
    for mine_dtype, mine in others:
        assert mine_dtype == dtype
        for key, size in sizes(exact).items():
            error = float((whole[key] - exact[key]).norm())
            assert float((mine[key] - exact[key]).norm()) <= error + 2 * 2**-8 * size, key


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "gemma2", "bert"])
def test_no_logits_are_ever_made(name: str, dtype: torch.dtype) -> None:
    model, inputs = model_of(name, 2000).to(dtype), masked_batch(8, 64)
    logits = inputs["input_ids"].numel() * 2000 * dtype.itemsize
    largest = 0

    def seen(func: Any, args: Any, kwargs: Any, result: Any) -> None:
        nonlocal largest
        largest = max([largest, *map(storage_bytes, tensors_of(result))])

    for chunks in (None, 32):
        largest = 0
        handle = chunked_head(model, chunks) if chunks else None
        with MemoryTracker(seen):
            model(**inputs).loss.backward()
        model.zero_grad()
        # Beside it, the attention's numbers are the largest.
        assert (largest >= logits) if handle is None else (largest < logits / 3)


def test_the_forward_keeps_two_gradients() -> None:
    model, hidden = nn.Linear(8, VOCABULARY), torch.randn(64, 8, requires_grad=True)
    target = torch.arange(64)
    with chunked_head(model, 4), MemoryTracker() as tracker:
        logits = model(hidden)
        loss = F.cross_entropy(logits, target)
        kept = tracker.live_bytes
        loss.backward()
        after = tracker.live_bytes
    numbers = 64 * 8 + VOCABULARY * 8 + VOCABULARY
    assert 4 * numbers <= kept <= 4 * numbers + 8 * 64 + 64  # and which token is which
    assert after <= kept
    assert logits.untyped_storage().nbytes() == 0


def test_only_what_is_needed_is_made() -> None:
    model, hidden = nn.Linear(8, VOCABULARY, bias=False), torch.randn(64, 8)
    target = torch.arange(64)
    kept = []
    for of_hidden, of_weight in ((True, False), (False, True)):
        model.weight.requires_grad_(of_weight)
        leaf = hidden.clone().requires_grad_(of_hidden)
        with chunked_head(model, 4), MemoryTracker() as tracker:
            loss = F.cross_entropy(model(leaf), target)
            kept.append(tracker.live_bytes)
            loss.backward()
        assert (leaf.grad is not None) is of_hidden
        assert (model.weight.grad is not None) is of_weight
    assert kept[1] - kept[0] == 4 * (VOCABULARY - 64) * 8


def test_without_gradients_the_model_is_as_before() -> None:
    model = model_of("llama")
    ids = masked_batch()["input_ids"]
    whole = model.eval()(ids).logits
    with chunked_head(model, 4):
        assert torch.equal(model(ids).logits, whole)
        model.train()
        with torch.no_grad():
            assert torch.equal(model(ids).logits, whole)
        assert model.generate(ids[:1, :3], max_new_tokens=2).shape == (1, 5)
        logits = model(ids).logits
        with torch.no_grad():  # a metric: it does not use the logits up
            metric = F.cross_entropy(logits.mT, ids)
        loss = F.cross_entropy(logits.mT, ids)
    assert torch.equal(metric, loss)
    assert not metric.requires_grad
    loss.backward()


def test_accelerate_and_ddp(tmp_path: Path) -> None:
    model, inputs = model_of("llama"), masked_batch()
    _, whole = step(model, **inputs)
    place = f"file://{tmp_path / 'store'}"
    dist.init_process_group("gloo", init_method=place, rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
        with chunked_head(wrapped, 3):
            model.zero_grad()
            # Autograd's graph goes through the logits, so DDP finds what is used.
            logits = convert_outputs_to_fp32(wrapped)(input_ids=inputs["input_ids"]).logits
            labels = F.pad(inputs["labels"], (0, 1), value=-100)[:, 1:]
            F.cross_entropy(logits.mT, labels).backward()
    finally:
        dist.destroy_process_group()
    check_close({n: p.grad for n, p in model.named_parameters()}, whole, 1e-6)
