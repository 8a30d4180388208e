"""Models that are no chain, with nothing named: `profile`, `solve`, `apply`."""

from __future__ import annotations

import copy
import pickle
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from scheduler import CostGraph, Plan, solve
from scheduler.common.errors import InvalidPlan, UnsupportedModel
from scheduler.pytorch import apply, describe, profile, profile_graph, verify
from tests.pytorch.graph.graph_models import UNet, itself
from tests.pytorch.graph.test_t5 import bart
from tests.pytorch.models import Case, assert_equal, gradients, mean_square, mlp, noise
from tests.pytorch.suite import TOKENS, t5, tokens


def unet() -> Case:
    torch.manual_seed(0)
    return Case(UNet(), (noise(4, 3, 32, 32), noise(4, 1, 32, 32)), itself)


def albert() -> Case:
    """One block, called once for each layer."""
    torch.manual_seed(0)
    config = transformers.AlbertConfig(
        embedding_size=32,
        hidden_size=48,
        intermediate_size=192,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=64,
        hidden_dropout_prob=0.1,
        **TOKENS,
    )
    model = transformers.AlbertForMaskedLM(config).train()
    return Case(model, {"input_ids": tokens(), "labels": tokens()})


CASES = {"unet": unet, "albert": albert, "t5": lambda: t5(3, 3), "bart": bart}


@cache
def case(name: str) -> Case:
    return CASES[name]()


@cache
def costs(name: str) -> CostGraph:
    one = case(name)
    return profile_graph(one.model, one.inputs, one.loss_fn, "auto")


@cache
def plan(name: str, share: float = 0.75) -> Plan:
    everything = solve(costs(name), budget=10**12).peak_bytes
    return solve(costs(name), budget=int(everything * share))


@pytest.mark.parametrize("name", CASES)
def test_trains_as_without_a_plan(name: str) -> None:
    one = case(name)
    found = verify(plan(name), one.model, one.inputs, one.loss_fn)
    assert found.ok, str(found)
    assert (found.gradients, found.state, found.left_bytes) == ("equal", "equal", 0)
    assert sum(found.forwards.values()) > len(found.forwards) >= len(costs(name).layers) - 1
    assert plan(name).peak_bytes * 0.98 <= found.peak_bytes <= plan(name).peak_bytes
    assert found.peak_bytes_without > found.peak_bytes


def test_one_call_for_any_model() -> None:
    one = case("albert")
    found = profile(one.model, one.inputs, one.loss_fn)
    assert [layer.name for layer in found.layers] == [
        layer.name for layer in costs("albert").layers
    ]
    assert found.edges == costs("albert").edges
    said = str(describe(one.model, one.inputs, one.loss_fn))
    assert "the layers of a graph with" in said
    assert "It is no chain:" in said


class Stacked(nn.Module):
    """Two stacks with an operation between them: a graph without branches."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.ModuleList([mlp(), mlp()])
        self.two = nn.ModuleList([mlp(), mlp()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in (*self.one, *self.two):
            x = block(x)
        return x


def of_what_is_trained(output: torch.Tensor) -> torch.Tensor:
    """A loss that looks for what it can train."""
    assert output.requires_grad
    return mean_square(output)


def test_a_graph_without_branches_is_applied_as_one() -> None:
    """All its layers but the loss are modules, as those of a chain are."""
    model, inputs = Stacked(), noise(64, 16)
    found = profile_graph(model, inputs, of_what_is_trained, "auto")
    assert [layer.name for layer in found.layers] == ["one.0", "one.1", "two.0", "two.1", "(loss)"]
    everything = solve(found, budget=10**12).peak_bytes
    plan = solve(found, budget=int(everything * 0.7))
    assert plan.kind == "chain"
    result = verify(plan, model, inputs, mean_square)
    assert result.ok, str(result)
    assert result.peak_bytes == plan.peak_bytes


def test_shared_blocks_are_layers_for_each_call() -> None:
    block = "albert.encoder.albert_layer_groups.0.albert_layers.0"
    names = [layer.name for layer in costs("albert").layers]
    assert [n for n in names if block in n] == [block, *(f"{block}#{i}" for i in (2, 3, 4))]


def test_other_batches() -> None:
    """Other lengths and a padded batch are traced in their first step, once each."""
    model = case("bart").model
    mask = torch.ones(4, 40, dtype=torch.long)
    mask[1, 20:] = 0
    short = {key: value[:, :40].contiguous() for key, value in case("bart").inputs.items()}
    batches = [short, {**short, "attention_mask": mask}]
    expected = [gradients(model, batch) for batch in batches]
    with apply(plan("bart"), model):
        for batch, wanted in zip(batches, expected, strict=True):
            assert_equal(gradients(model, batch), wanted)


def test_traced_once_for_each_form() -> None:
    model = case("bart").model
    with apply(plan("bart"), model) as handle:
        traces: Any = model.forward
        for length in (48, 40, 48, 40):
            inputs = case("bart").inputs.items()
            gradients(model, {key: value[:, :length].contiguous() for key, value in inputs})
        assert len(traces.scripts) == 2
        assert set(handle.report().calls.values()) == {4}
        assert handle.report().ok
    assert not handle.report().ok
    assert "forward" not in model.__dict__


def test_a_planned_model_is_copied_and_pickled() -> None:
    one = case("unet")
    expected = gradients(one.model, one.inputs, one.loss_fn)
    with apply(plan("unet"), one.model):
        gradients(one.model, one.inputs, one.loss_fn)
        copies = [copy.deepcopy(one.model), pickle.loads(pickle.dumps(one.model))]
    for model in copies:
        assert_equal(gradients(model, one.inputs, one.loss_fn), expected)
        counts: Any = model.forward
        assert counts.counts == {
            k: v for k, v in plan("unet").forwards.items() if k in counts.counts
        }


class Bounded(UNet):
    """A U-Net with one more operation."""

    def forward(self, image: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return super().forward(image, target).tanh()


def test_a_plan_for_another_model() -> None:
    with pytest.raises(
        InvalidPlan, match=r"none of the plan's layers .* is a module of this Linear"
    ):
        apply(plan("unet"), nn.Linear(2, 2))
    other = Bounded()
    said = pytest.raises(InvalidPlan, match=r"not those of this Bounded .*'tanh' is only in one")
    with apply(plan("unet"), other), said:
        other(*case("unet").inputs)


class Twisted(nn.Module):
    """A block that runs twice, with a number taken out of a tensor in between."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.ModuleList([mlp()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.one[0](x)
        result: torch.Tensor = self.one[0](first * float(first.detach().sum()))
        return result


def test_what_cannot_be_either_is_one_sentence() -> None:
    with pytest.raises(
        UnsupportedModel, match=r"nor is it a graph of layers: .*'float' makes"
    ) as e:
        profile(Twisted(), noise(4, 16), lambda output: output.sum())
    assert "\n" not in str(e.value)
