"""Plans by length on a model: each step under its own, within the budget, bit by bit the same."""

from __future__ import annotations

import copy
import operator
import pickle
import random
from typing import Any

import pytest
import torch

from scheduler import InvalidPlan, PlansByLength, UnsupportedModel, solve_by_length
from scheduler.pytorch import apply, measure, profile_by_length, verify
from scheduler.pytorch.model.step import of_length, step_size
from tests.pytorch.models import assert_equal, batch, gpt2, gradients, llama

LENGTHS = (16, 32, 64)


@pytest.fixture(scope="module")
def plans() -> PlansByLength:
    """Of a small Llama, two sequences a step; the longest must be checkpointed."""
    costs = profile_by_length(llama(n_layer=4), batch(2), LENGTHS)
    assert costs.batch == 2
    budget = solve_by_length(costs, budget="1GB")[64].peak_bytes * 6 // 10
    found = solve_by_length(costs, budget=budget)
    assert found[16].overhead == 0 < found[64].overhead
    return found


def test_every_step_is_within_the_budget_and_bitwise(plans: PlansByLength) -> None:
    model, plain, drawn = llama(n_layer=4), llama(n_layer=4), random.Random(0)
    sizes = [
        (2, 64),
        (1, 64),
        (3, 42),
        (2, 16),
        (2, 17),
        *((2, drawn.randint(1, 64)) for _ in range(4)),
    ]
    seen = set()
    with apply(plans, model) as handle:
        for rows, length in sizes:
            step, plan = batch(rows, length), plans[plans.length_for(length, rows)]
            found = measure(model, step, fake=rows == 1)
            assert found.peak_bytes <= plan.peak_bytes <= (plan.budget_bytes or 0)
            assert found.forwards.items() <= plan.forwards.items()
            assert handle.handle is not None
            assert handle.handle.plan == plan
            assert handle.report().ok
            assert_equal(gradients(model, step), gradients(plain, step))
            seen.add(plans.length_for(length, rows))
    assert seen == set(LENGTHS)
    assert "forward" not in model.__dict__


def test_two_lengths_under_way(plans: PlansByLength) -> None:
    """A backward runs under the plan that its forward had, whatever has been put on since."""
    model, plain = llama(n_layer=4), llama(n_layer=4)

    def both(model: Any) -> dict[str, torch.Tensor]:
        long, short = model(**batch(2, 64)).loss, model(**batch(2, 9)).loss
        long.backward()
        short.backward()
        return {name: p.grad for name, p in model.named_parameters()}

    with apply(plans, model) as handle:
        assert_equal(both(model), both(plain))
        # Copies have plans of their own.
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert_equal(gradients(twin, batch(2, 64)), gradients(plain, batch(2, 64)))
            assert twin.forward.handle.plan == plans[64]
            assert handle.handle is not None
            assert handle.handle.plan == plans[16]


class Skip(torch.nn.Module):
    """No chain: what is embedded is read at the end again."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = torch.nn.Embedding(64, 16), torch.nn.Linear(32, 64)
        self.wide, self.back = torch.nn.Linear(16, 128), torch.nn.Linear(128, 16)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        start = self.embed(input_ids)
        inner = self.back(torch.tanh(self.wide(start)))
        end = self.head(torch.cat([self.back(torch.tanh(self.wide(inner))), start], -1))
        return {"loss": torch.nn.functional.cross_entropy(end.flatten(0, 1), labels.flatten())}


def test_of_a_graph_of_layers() -> None:
    """Its plan replaces the model's own forward, and traces the model at each length."""
    model, plain, loss = Skip(), Skip(), operator.itemgetter("loss")
    costs = profile_by_length(model, batch(2), (8, 32), loss)
    whole: Any = costs[32].to_problem()
    budget = whole.replay(whole.keep_all()).peak_bytes - 1
    plans = solve_by_length(costs, budget=f"{budget}B", time_limit=10)
    assert plans[32].kind == "layer graph"
    with apply(plans, model):
        for length in (32, 5, 20, 32):
            step = batch(2, length)
            plan = plans[plans.length_for(length, 2)]
            assert measure(model, step, loss).peak_bytes <= plan.peak_bytes <= budget
            assert_equal(gradients(model, step, loss), gradients(plain, step, loss))
    assert "forward" not in model.__dict__


def test_verify_takes_the_plan_of_the_length(plans: PlansByLength) -> None:
    found = verify(plans, llama(n_layer=4), batch(2, 30))
    assert found.ok
    assert found.plan == plans[32]


def test_refusals(plans: PlansByLength) -> None:
    with pytest.raises(InvalidPlan, match="not a module of this GPT2LMHeadModel"):
        apply(plans, gpt2(2))
    model = llama(n_layer=4)
    with apply(plans, model):
        with pytest.raises(UnsupportedModel, match="a plan is already applied to 'LlamaForC"):
            apply(plans[64], model)
        with pytest.raises(InvalidPlan, match="a step of 3 × 64 tokens is larger than the longest"):
            model(**batch(3, 64))
        with pytest.raises(UnsupportedModel, match="no integers of shape"):
            model(inputs_embeds=torch.zeros(2, 16, 32))
        with torch.no_grad():
            model(**batch(3, 64))  # nothing is kept
    with pytest.raises(UnsupportedModel, match=r"tensor of shape \(2, 3, 8, 8\), whose memory"):
        verify(plans, model, {**batch(2, 16), "pixel_values": torch.zeros(2, 3, 8, 8)})
    with pytest.raises(UnsupportedModel, match="made for length 16 has sequences of 64 tokens"):
        profile_by_length(model, lambda _: batch(2, 64), [16])


def test_a_batch_of_another_length() -> None:
    ids, padded = torch.arange(12).view(2, 6), torch.tensor([[1] * 6, [1] * 5 + [0]])
    mask, width = torch.ones(2, 1, 6, 6), torch.zeros(2, 6, 6)
    step = {"input_ids": ids, "labels": ids, "mask": padded, "wide": mask, "embedded": width}
    for length in (1, 4, 6, 15):
        found = of_length(step, length)
        assert step_size(found) == (2, length)
        assert found["labels"] is found["input_ids"]
        assert found["wide"].shape == (2, 1, length, length)
        assert found["embedded"].shape == (2, length, 6)
        # A mask with padding stays one: models make a larger one of it.
        assert found["mask"][1, -1] == 0
