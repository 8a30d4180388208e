"""What a planned step must not break, and what it must refuse."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from scheduler.common.errors import InvalidPlan, UnsupportedModel
from scheduler.pytorch import GraphHandle, TracedGraph, apply_graph, profile_graph, trace
from solvers.graph.schedule import Actions, LayerAction
from solvers.schedule import Backward, Forward
from tests.pytorch.graph.graph_models import (
    GraphCase,
    graph_case,
    graph_costs,
    keep_all,
    mean_square,
    random_plan,
    step,
    traced,
)
from tests.pytorch.models import assert_equal, noise

STEEP = 0.7
"""Share of what could be dropped that the plans here drop."""


def planned(name: str, seed: int = 0) -> tuple[Any, Any, GraphHandle]:
    """Two copies of a case's model, one with a plan."""
    model = graph_case(name).model
    plain, other = copy.deepcopy(model), copy.deepcopy(model)
    actions = random_plan(graph_costs(name).to_layer_graph(), STEEP, seed)
    return plain, other, apply_graph(actions, traced(name), other)


def both(name: str, run: Callable[[Any, GraphCase], dict[str, torch.Tensor]]) -> None:
    """What `run` returns is the same with and without a plan."""
    plain, other, _ = planned(name)
    expected, found = run(plain, graph_case(name)), run(other, graph_case(name))
    assert expected
    assert_equal(found, expected)


def outcome(model: nn.Module, case: GraphCase, seed: int = 1) -> torch.Tensor:
    torch.manual_seed(seed)
    inputs = case.inputs if isinstance(case.inputs, tuple) else (case.inputs,)
    loss: torch.Tensor = case.loss_fn(model(*inputs))
    return loss


class Two(nn.Module):
    """A layer that may do anything, between two that are usual."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.inner = nn.Linear(16, 16), nn.Linear(16, 16), inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        result: torch.Tensor = self.b(self.inner(h)) * h.tanh()
        return result


def dropping(graph: TracedGraph) -> list[LayerAction]:
    """Every layer's forward again, right before its backward, from the first on."""
    n = len(graph)
    actions: list[LayerAction] = [Forward(i, i == n - 1) for i in range(n)]
    for i in reversed(range(n)):
        if i < n - 1:
            actions += [Forward(j, j == i) for j in range(i + 1)]
        actions.append(Backward(i))
    return actions


def compare(inner: nn.Module, inputs: torch.Tensor | None = None) -> None:
    """A model around `inner` trains as without a plan when every layer is dropped."""
    model = Two(inner)
    case = GraphCase(model, noise(8, 16) if inputs is None else inputs, mean_square)
    graph = trace(model, case.inputs, ["inner"])
    random.seed(5)
    expected = step(copy.deepcopy(model), case)
    random.seed(5)
    with apply_graph(dropping(graph), graph, model):
        assert_equal(step(model, case), expected)


# --- gradients ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t5-blocks", "densenet"])
def test_gradients_accumulate(name: str) -> None:
    def run(model: Any, case: GraphCase) -> dict[str, torch.Tensor]:
        for seed in (1, 2, 3):
            outcome(model, case, seed).backward()
        return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

    both(name, run)


def test_two_forwards_before_their_backwards() -> None:
    def run(model: Any, case: GraphCase) -> dict[str, torch.Tensor]:
        losses = [outcome(model, case, seed) for seed in (1, 2)]
        losses[1].backward()
        losses[0].backward()
        return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

    both("t5-blocks", run)


def test_gradients_of_some_parameters() -> None:
    def run(model: Any, case: GraphCase) -> dict[str, torch.Tensor]:
        some = dict(list(model.named_parameters())[::3])
        found = torch.autograd.grad(outcome(model, case), list(some.values()))
        assert all(p.grad is None for p in model.parameters())
        return dict(zip(some, found, strict=True))

    both("unet", run)


@pytest.mark.parametrize("late", [False, True], ids=["hook", "post-accumulate hook"])
def test_hooks_of_parameters_see_the_whole_gradient_once(late: bool) -> None:
    def run(model: Any, case: GraphCase) -> dict[str, torch.Tensor]:
        seen: dict[str, torch.Tensor] = {}
        for name, parameter in model.named_parameters():

            def look(tensor: torch.Tensor, name: str = name) -> None:
                assert name not in seen
                seen[name] = (tensor.grad if late else tensor).clone()  # type: ignore[union-attr]

            if late:
                parameter.register_post_accumulate_grad_hook(look)
            else:
                parameter.register_hook(look)
        outcome(model, case).backward()
        assert len(seen) == len(list(model.parameters()))
        return seen

    both("t5-blocks", run)


def test_a_hook_may_change_a_gradient() -> None:
    def run(model: Any, case: GraphCase) -> dict[str, torch.Tensor]:
        model.embed.weight.register_hook(lambda gradient: gradient * 3)
        return step(model, case)

    both("t5-blocks", run)


@pytest.mark.parametrize("leaf", [True, False], ids=["leaf", "in a larger graph"])
def test_inputs_that_require_a_gradient(leaf: bool) -> None:
    model = graph_case("resnet").model
    found: list[dict[str, torch.Tensor]] = []
    for apply in (False, True):
        start = noise(8, 3, 32, 32).requires_grad_()
        image = start if leaf else start * 2
        other = copy.deepcopy(model)
        if apply:
            graph = trace(other, image)
            costs = profile_graph(other, image, mean_square).to_layer_graph()
            apply_graph(random_plan(costs, STEEP, 1), graph, other)
        torch.manual_seed(1)
        mean_square(other(image)).backward()
        assert start.grad is not None
        found.append({"input": start.grad, "stem": other.stem.weight.grad})
    assert_equal(found[1], found[0])


def test_frozen_layers_in_front_are_run_once() -> None:
    """What needs no gradient is made in its turn, draws its random numbers and is held."""
    case = graph_case("densenet")
    model = copy.deepcopy(case.model)
    for part in (model.stem, model.layers[0]):
        part.requires_grad_(False)
    graph = trace(model, case.inputs)
    assert not any(name.startswith(("stem", "layers.0")) for name in graph.names)
    costs = profile_graph(model, case.inputs, mean_square).to_layer_graph()
    expected = step(copy.deepcopy(model), case)
    with apply_graph(random_plan(costs, STEEP, 0), graph, model):
        assert_equal(step(model, case), expected)


# --- state --------------------------------------------------------------------------------------


class Chance(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * random.random()


class Counting(nn.Module):
    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x * self.count


class Stashing(torch.autograd.Function):
    """Saves its input where autograd does not look."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.x = x
        return x.square()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return 2 * ctx.x * grad_outputs[0]


class Stash(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = Stashing.apply(x)
        return result


@pytest.mark.parametrize(
    "inner",
    [
        Chance(),
        Stash(),
        nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(16), nn.Dropout(0.5)),
        nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True),
        nn.Sequential(nn.Linear(16, 16), nn.ReLU(inplace=True), nn.Linear(16, 16)),
        nn.utils.parametrizations.weight_norm(nn.Linear(16, 16)),
    ],
    ids=["python's random", "stash", "batch norm", "attention", "in place inside", "weight norm"],
)
def test_layers_of_all_kinds(inner: nn.Module) -> None:
    compare(inner)


def test_what_autograd_does_not_pack_is_counted_as_saved() -> None:
    costs = profile_graph(Two(Stash()), noise(8, 16), mean_square, ["inner"])
    assert costs.layers[1].name == "inner"
    assert costs.layers[1].saved_bytes >= 8 * 16 * 4


def test_a_layer_that_counts_its_calls_counts_steps() -> None:
    """What it gives depends on the count, too."""
    model, x = Two(Counting()), noise(8, 16)
    plain = copy.deepcopy(model)
    graph = trace(model, x, ["inner"])
    costs = profile_graph(model, x, mean_square, ["inner"])
    assert all(layer.recomputable for layer in costs.layers[:-1])
    assert_equal(dict(model.state_dict()), dict(plain.state_dict()))
    with apply_graph(dropping(graph), graph, model):
        for one in (plain, model) * 2:
            mean_square(one(x)).backward()
    assert_equal(dict(model.state_dict()), dict(plain.state_dict()))
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)  # type: ignore[arg-type]


def test_autocast() -> None:
    case = graph_case("t5-blocks")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        graph = trace(case.model, case.inputs, case.leaves)
        costs = profile_graph(case.model, case.inputs, None, case.leaves).to_layer_graph()
    actions = random_plan(costs, STEEP, 0)

    def run(model: nn.Module) -> dict[str, torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
            loss = outcome(model, case)
        loss.backward()
        return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

    expected, model = run(copy.deepcopy(case.model)), copy.deepcopy(case.model)
    with apply_graph(actions, graph, model):
        assert_equal(run(model), expected)
        with pytest.raises(UnsupportedModel, match="called with other arguments"):
            outcome(model, case)


def test_without_gradients_the_model_is_its_own() -> None:
    _, model, handle = planned("resnet")
    with torch.no_grad():
        assert not model(noise(3, 3, 16, 16)).requires_grad
    assert set(handle.forwards.values()) == {0}


def test_a_deep_copy_trains_by_itself() -> None:
    plain, model, handle = planned("densenet")
    other = copy.deepcopy(model)
    handle.remove()
    case = graph_case("densenet")
    assert_equal(step(other, case), step(plain, case))
    assert all(p.grad is None for p in model.parameters())
    assert sum(handle.forwards.values()) == 0


# --- hooks of modules -----------------------------------------------------------------------------


def test_hooks_of_layers_run_with_them() -> None:
    plain, model, handle = planned("t5-blocks")
    case = graph_case("t5-blocks")
    calls: list[str] = []
    for one in (plain, model):
        for block in one.decoder:
            block.register_forward_hook(lambda *_: calls.append("forward"))
            block.register_full_backward_hook(lambda *_: calls.append("backward"))
    expected = step(plain, case)
    calls.clear()
    assert_equal(step(model, case), expected)
    ran = sum(count for name, count in handle.forwards.items() if name.startswith("decoder"))
    assert ran > calls.count("forward") == 3  # a list that a hook has is as after one forward
    assert calls.count("backward") == 3


def test_hooks_of_what_contains_layers_are_refused() -> None:
    _, model, _ = planned("unet")
    model.down1.register_forward_hook(lambda *_: None)
    with pytest.raises(UnsupportedModel, match="module 'down1' has a hook"):
        outcome(model, graph_case("unet"))


# --- refused --------------------------------------------------------------------------------------


def test_another_call_than_the_one_traced() -> None:
    _, model, _ = planned("resnet")
    for wrong in (noise(4, 3, 32, 32), noise(8, 3, 32, 32).double(), noise(8, 3, 32, 32).mT):
        with pytest.raises(UnsupportedModel, match="called with other arguments"):
            model(wrong)
    with pytest.raises(UnsupportedModel, match="called with other arguments"):
        model(noise(8, 3, 32, 32).requires_grad_())


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.eval(),
        lambda model: model.stem.requires_grad_(False),
        lambda model: setattr(model, "head", nn.Sequential(model.head)),
    ],
    ids=["mode", "frozen", "structure"],
)
def test_another_model_than_the_one_traced(change: Callable[[Any], Any]) -> None:
    _, model, handle = planned("resnet")
    change(model)
    with pytest.raises(UnsupportedModel, match="is not as it was traced"):
        model(noise(8, 3, 32, 32))
    handle.remove()
    with pytest.raises(UnsupportedModel, match="is not as it was traced"):
        apply_graph(keep_all(traced("resnet")), traced("resnet"), model)


def test_a_second_plan() -> None:
    _, model, _ = planned("resnet")
    with pytest.raises(UnsupportedModel, match="already applied"):
        apply_graph(keep_all(traced("resnet")), traced("resnet"), model)
    with pytest.raises(UnsupportedModel, match="already applied"):
        trace(model, graph_case("resnet").inputs)


def test_a_second_backward() -> None:
    _, model, _ = planned("resnet")
    loss = mean_square(model(noise(8, 3, 32, 32)))
    loss.backward(retain_graph=True)
    with pytest.raises(UnsupportedModel, match="a second backward through one forward"):
        loss.backward()


def test_a_backward_of_the_backward() -> None:
    _, model, _ = planned("resnet")
    loss = mean_square(model(noise(8, 3, 32, 32)))
    with pytest.raises(UnsupportedModel, match="create_graph=True"):
        torch.autograd.grad(loss, list(model.parameters()), create_graph=True)


def test_an_output_that_is_changed_in_place() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
    graph = trace(model, noise(8, 16))
    apply_graph(keep_all(graph), graph, model)
    output = model(noise(8, 16))
    with torch.no_grad():
        output.mul_(2)
    with pytest.raises(UnsupportedModel, match="output of '1' was changed in place"):
        output.sum().backward()


def _forward_twice(actions: list[LayerAction]) -> list[LayerAction]:
    return [actions[0], actions[0], *actions[1:]]


def _swapped(actions: list[LayerAction]) -> list[LayerAction]:
    return [*actions[:-2], actions[-1], actions[-2]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda actions: actions[:-1], "ends before the backward of 'down1'"),
        (lambda actions: [actions[1], *actions], "output of 'down1' is not live"),
        (lambda a: [Forward(0, False), *a], "not of class 'forward'"),
        (lambda a: [*a, Forward(99, True)], "names layer 99 of 13"),
        (_forward_twice, "keeps what is already kept"),
        (_swapped, "runs before that of"),
    ],
    ids=["short", "order", "class", "unknown", "twice", "swapped"],
)
def test_plans_that_are_none(change: Callable[..., list[LayerAction]], said: str) -> None:
    case, graph = graph_case("unet-blocks"), traced("unet-blocks")
    with pytest.raises(InvalidPlan) as error:
        apply_graph(change(keep_all(graph)), graph, copy.deepcopy(case.model))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_loss_outside_the_model_comes_between() -> None:
    case, graph = graph_case("densenet-blocks"), traced("densenet-blocks")
    costs = graph_costs("densenet-blocks").to_layer_graph()
    n = len(graph)
    actions = keep_all(costs)
    assert costs.replay(Actions(tuple(actions))).time
    late = [*actions[:n], Forward(n - 1, False), *actions[n:]]
    model = copy.deepcopy(case.model)
    with pytest.raises(InvalidPlan, match=f"layer {n} is the loss outside the model"):
        apply_graph(late, graph, model)
    with apply_graph(actions, graph, model):
        assert_equal(step(model, case), step(copy.deepcopy(case.model), case))
