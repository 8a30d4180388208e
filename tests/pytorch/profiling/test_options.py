"""Blocks kept under an option: chosen results stay, the rest is made again, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from scheduler import CostGraph, Plan, solve
from scheduler.common.errors import UnsupportedModel
from scheduler.common.text import format_time
from scheduler.pytorch import apply, block_graph, describe, measure, profile, verify
from scheduler.pytorch.model.find import find_blocks
from scheduler.pytorch.model.step import loss_of
from scheduler.pytorch.observe.tracker import MemoryTracker, unique_bytes
from scheduler.pytorch.profiling.profile import see
from solvers.schedule import Backward, Checkpoint, Item, Items, Keep
from tests.pytorch.models import (
    Case,
    assert_equal,
    gpt2,
    gradients,
    llama,
    noise,
    plan_of,
    run,
    smallest_budget,
)
from tests.pytorch.profiling.option_rows import profiled
from tests.pytorch.suite import tokens

BATCH = {"input_ids": tokens()[:, :32] % 60, "labels": tokens()[:, :32] % 60}
CASES = {
    "gpt2": lambda: Case(gpt2(6), BATCH),
    "llama-bf16": lambda: Case(llama(torch.bfloat16, 6, attention_dropout=0.1), BATCH),
    "llama-fp32": lambda: Case(llama(torch.float32, 6), BATCH),
}
OF_SUITE = {"experts": "qwen3_moe", "convolutions": "resnet50"}  # in place, with batch norms


@cache
def seen(name: str) -> tuple[Case, CostGraph]:
    if name in OF_SUITE:
        return profiled(OF_SUITE[name])
    this = CASES[name]()
    return this, profile(this.model, this.inputs, this.loss_fn, options=True, fake=True)


def case(name: str) -> Case:
    return seen(name)[0]


def costs(name: str) -> CostGraph:
    return seen(name)[1]


@cache
def reference(name: str) -> dict[str, torch.Tensor]:
    return step(case(name))


def step(this: Case) -> dict[str, torch.Tensor]:
    """What one step gives: gradients, and the buffers after it."""
    with same_buffers(this.model):
        found = gradients(this.model, this.inputs, this.loss_fn)
        found |= {f"buffer {key}": b.clone() for key, b in this.model.named_buffers()}
    return found


@contextmanager
def same_buffers(model: nn.Module) -> Iterator[None]:
    """Put the buffers back as they were."""
    before = [buffer.clone() for buffer in model.buffers()]
    yield
    for buffer, value in zip(model.buffers(), before, strict=True):
        buffer.copy_(value)


def kept_bytes(this: Case) -> int:
    """What is there between the forward and the backward, and was made in it."""
    with same_buffers(this.model), MemoryTracker() as tracker:
        loss = loss_of(run(this.model, this.inputs), this.loss_fn)
        found: int = tracker.live_bytes
    del loss
    return found


def planned_bytes(this: Case, layers: CostGraph, items: Sequence[Item]) -> int:
    """The same as the replay has it, without the inputs and the gradient that the loss begins."""
    steps = layers.to_chain().replay(Items(tuple(items))).moments
    kept = next(
        before.after_bytes
        for before, after in pairwise(steps)
        if isinstance(after.action, Backward)
    )
    return kept - unique_bytes(this.inputs) - layers.layers[-1].output_bytes


def assert_kept(found: int, this: Case, layers: CostGraph, items: Sequence[Item]) -> None:
    """As planned; blocks that are kept whole need no copy of what they change on themselves."""
    planned = planned_bytes(this, layers, items)
    assert found <= planned <= found + sum(buffer.nbytes for buffer in this.model.buffers())


def check(name: str, plan: Plan) -> None:
    """A real step gives what the plan promises."""
    this, layers = case(name), costs(name)
    blocks = find_blocks(this.model, "auto", this.inputs)
    with apply(plan, this.model) as handle:
        assert handle.report().ok
        measured = measure(this.model, this.inputs, this.loss_fn)
        found = step(this)
        kept = kept_bytes(this)
    assert_equal(found, reference(name))
    assert measured.forwards == {block: plan.forwards[block] for block in blocks}
    assert_kept(kept, this, layers, plan.items)
    assert measured.peak_bytes <= plan.peak_bytes <= measured.peak_bytes * 1.02


@pytest.mark.parametrize("share", [0.9, 0.6, 0.4, 0.2, 0.0])
@pytest.mark.parametrize("name", [*CASES, *OF_SUITE])
def test_plans_within_a_budget(name: str, share: float) -> None:
    layers = costs(name)
    smallest = smallest_budget(layers)
    everything = solve(layers, budget=10**15).keep_all_peak_bytes
    budget = int(smallest + share * (everything - smallest))
    plan = solve(layers, budget=budget)
    assert plan.policies or share in (0.6, 0.0) or name == "convolutions"
    check(name, plan)
    assert plan.peak_bytes <= budget


def around(layers: CostGraph, inside: list[Item]) -> list[Item]:
    """Items for the first blocks, and the others kept."""
    last = inside[-1]
    after = (last.layer if isinstance(last, Keep) else last.last) + 1
    first = next(i for i, layer in enumerate(layers.layers) if layer.options)
    return [
        *map(Keep, range(first)),
        *(moved(item, first) for item in inside),
        *map(Keep, range(first + after, len(layers))),
    ]


def moved(item: Item, by: int) -> Item:
    if isinstance(item, Keep):
        return Keep(item.layer + by, item.option)
    return Checkpoint(item.first + by, item.last + by, tuple(moved(i, by) for i in item.body))


def nested(options: list[str]) -> dict[str, list[Item]]:
    few, many = options[0], options[-1]
    inner = Checkpoint(1, 3, (Keep(1, many), Keep(2, few), Keep(3)))
    deepest = Checkpoint(0, 2, (Keep(0, many), Checkpoint(1, 1, (Keep(1, few),)), Keep(2)))
    return {
        "each": [Keep(i, options[i % len(options)]) for i in range(6)],
        "in a segment": [Checkpoint(0, 2, (Keep(0, few), Keep(1, many), Keep(2)))],
        "at its end": [Checkpoint(0, 2, (Keep(0, few), Keep(1), Keep(2, many)))],
        "alone in it": [Keep(0), Checkpoint(1, 1, (Keep(1, few),))],
        "two deep": [Checkpoint(0, 4, (Keep(0, few), inner, Keep(4))), Keep(5, many)],
        "three deep": [Checkpoint(0, 4, (deepest, Keep(3, few), Keep(4)))],
    }


@pytest.mark.parametrize("shape", nested([""]))
@pytest.mark.parametrize("name", ["gpt2", "llama-bf16", "convolutions"])
def test_options_inside_checkpoints(name: str, shape: str) -> None:
    layers = costs(name)
    blocks = [layer for layer in layers.layers if layer.options][:6]
    shared = [o.name for o in blocks[0].options if all(_has(b.options, o.name) for b in blocks)]
    check(name, plan_of(layers, around(layers, nested(shared)[shape])))


def _has(options: Sequence[Any], name: str) -> bool:
    return any(option.name == name for option in options)


def test_every_option_of_a_block() -> None:
    """Among them those that keep some random numbers and draw later ones again."""
    layers = costs("gpt2")
    first = next(layer for layer in layers.layers if layer.options)
    drawn = {call for o in first.options for call in o.keeps if call[0].startswith("aten.bern")}
    assert len(drawn) > 1
    for option in first.options:
        check("gpt2", plan_of(layers, around(layers, [Keep(0, option.name)])))


def test_a_real_profile_sees_the_same_bytes_under_the_same_option() -> None:
    this = case("llama-bf16")
    by_hand = ("save-matmuls", "every-second-matmul", "save-attention")
    real = profile(this.model, this.inputs, options=True, fake=False)
    for one, other in zip(real.layers, costs("llama-bf16").layers, strict=True):
        found, expected = [
            {
                o.name: (
                    *(o.saved_bytes, o.keeps, o.input_saved, o.output_saved),
                    *(o.forward_transient_bytes, o.backward_transient_bytes),
                )
                for o in layer.options
                if o.name in by_hand
            }
            for layer in (one, other)
        ]
        assert found == expected
        assert len(found) == (3 if one.options else 0)


def test_options_thin_the_pareto_set_by_a_gap_that_is_told() -> None:
    this = case("gpt2")
    found = see(this.model, this.inputs, options=True, fake=True)
    ways = found.each[0].ways
    assert ways is not None
    assert 0 < ways.gap < found.costs.layers[1].forward_time / 5
    assert len(ways.ways) <= 14
    told = str(describe(this.model, this.inputs, options=True, fake=True)).replace("\n", " ")
    assert "Options of transformer.h.0, transformer.h.1, " in told
    assert "save-attention, save-" in told
    assert f"takes at most {format_time(ways.gap, 'ms')} longer" in told


def test_autocast() -> None:
    this = case("gpt2")
    with torch.autocast("cpu", torch.bfloat16):
        layers = profile(this.model, this.inputs, options=True, fake=True)
        expected = gradients(this.model, this.inputs)
        plan = solve(layers, budget=smallest_budget(layers) * 3 // 2)
        assert plan.policies
        with apply(plan, this.model):
            measured = measure(this.model, this.inputs)
            found = gradients(this.model, this.inputs)
    assert_equal(found, expected)
    assert measured.peak_bytes <= plan.peak_bytes <= measured.peak_bytes * 1.02


def test_a_plan_from_a_file(tmp_path: Path) -> None:
    this, layers = case("gpt2"), costs("gpt2")
    plan = solve(layers, budget=smallest_budget(layers) * 5 // 4)
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again.policies == plan.policies != {}
    result = verify(again, this.model, this.inputs)
    assert result.ok, str(result)


def test_two_backwards_through_one_forward() -> None:
    layers = costs("gpt2")
    this = case("gpt2")
    first = next(layer for layer in layers.layers if layer.options)
    plan = plan_of(layers, around(layers, [Keep(0, first.options[0].name)]))
    with apply(plan, this.model):
        torch.manual_seed(0)
        loss = run(this.model, this.inputs).loss
        found = []
        for _ in range(2):
            this.model.zero_grad()
            loss.backward(retain_graph=True)
            found.append({n: p.grad.clone() for n, p in this.model.named_parameters()})  # type: ignore[union-attr]
        this.model.zero_grad()
    assert_equal(found[1], found[0])


def test_another_implementation_of_a_block_is_noticed() -> None:
    """A plan for fused attention on a model that writes attention out."""
    layers = costs("llama-fp32")
    other = Case(llama(torch.float32, 6, attn_implementation="eager"), BATCH)
    first = next(layer for layer in layers.layers if layer.options)
    assert _has(first.options, "save-attention")
    plan = plan_of(layers, around(layers, [Keep(0, "save-attention")]))
    with (
        apply(plan, other.model),
        pytest.raises(UnsupportedModel, match=r"runs .*attention.* 0 times.*options=True"),
    ):
        run(other.model, other.inputs)


def test_a_compiled_block_is_refused() -> None:
    layers = costs("gpt2")
    this = Case(gpt2(6), BATCH)
    block: Any = this.model.transformer.h[0]  # type: ignore[union-attr, index]
    block.forward = torch.compile(block.forward)
    first = next(layer for layer in layers.layers if layer.options)
    plan = plan_of(layers, around(layers, [Keep(0, first.options[0].name)]))
    with pytest.raises(UnsupportedModel, match=r"'transformer.h.0'.*compiled.*options"):
        apply(plan, this.model)


TIMES = count()
"""Nothing that a module has."""


class Changing(nn.Module):
    """Runs another number of operations each time."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(1 + next(TIMES) % 3):
            x = torch.tanh(self.linear(x))
        return x


def test_a_block_whose_operations_change_is_refused() -> None:
    model = nn.Sequential(Changing(), Changing())
    with pytest.raises(UnsupportedModel, match=r"block '.' runs other operations from step to"):
        profile(model, noise(4, 8), lambda out: out.sum(), options=True)


def test_the_graph_of_a_block(tmp_path: Path) -> None:
    this = case("llama-fp32")
    graph = block_graph(this.model, this.inputs, fake=True)
    names = [node.name for node in graph.nodes]
    assert sum(name.startswith("aten.mm.default#") for name in names) == 7
    assert sum(name.startswith("backward aten.mm.default#") for name in names) == 14
    # The gradient that a step hands a block is not added to another.
    assert not any("aten.add_" in name for name in names)
    # silu reads what the gate's product made, through a view; so does its backward.
    gate, silu = names.index("aten.mm.default#4"), names.index("aten.silu.default#0")
    assert (gate, silu) in graph.edges
    readers = [graph.nodes[reader].backward for made, reader in graph.edges if made == gate]
    assert sorted(readers) == [False, *[True] * (len(readers) - 1)]
    assert len(readers) > 1
    graph.save(tmp_path / "block.json")
    assert "aten.mm.default#4" in str(graph)
    small = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with pytest.raises(UnsupportedModel, match=r"no block '9'; the blocks are 0, 1"):
        block_graph(small, noise(4, 8), lambda out: out.sum(), block="9")
