"""What a trace makes of a model: layers, views, values, what is held; and what it refuses."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from scheduler.common.errors import UnsupportedModel
from scheduler.pytorch import apply_graph, profile_graph, trace
from tests.pytorch.graph.graph_models import (
    GraphCase,
    check_plans,
    graph_case,
    graph_costs,
    itself,
    keep_all,
    mean_square,
    step,
    traced,
)
from tests.pytorch.models import assert_equal, bytes_of, noise


class Net(nn.Module):
    """Three linear layers and whatever `code` does with them."""

    def __init__(self, code: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(16, 16) for _ in range(3))
        self.drop = nn.Dropout(0.2)
        self.code = code

    def forward(self, x: torch.Tensor, *more: Any) -> Any:
        return self.code(self, x, *more)


def check(code: Callable[..., Any], *more: Any, leaves: Any = None) -> list[str]:
    """Trace, and train under a few plans as without; the layers' names."""
    model = Net(code)
    return check_plans(GraphCase(model, (noise(8, 16), *more), mean_square, True, leaves))


def test_layers_and_edges() -> None:
    graph = traced("unet-blocks")
    assert graph.names == (
        *("down1", "pool", "down2", "pool#2", "middle", "interpolate", "cat", "up2"),
        *("interpolate_1", "cat_1", "up1", "head", "mse_loss"),
    )
    named = {(graph.names[u], graph.names[v]) for u, v in graph.edges}
    assert {("down1", "pool"), ("down1", "cat_1"), ("down2", "cat"), ("down2", "pool#2")} <= named
    assert ("interpolate", "cat") in named
    assert len(named) == 14


def test_costs_have_the_edges_of_the_trace() -> None:
    costs, graph = graph_costs("densenet-blocks"), traced("densenet-blocks")
    assert [layer.name for layer in costs.layers] == [*graph.names, "loss"]
    assert costs.to_layer_graph().edges == (*graph.edges, (len(graph) - 1, len(graph)))
    assert [layer.recomputable for layer in costs.layers] == [True] * len(graph) + [False]


def test_views_belong_to_their_readers() -> None:
    assert check(lambda m, x: m.c(m.b(m.a(x).view(4, 2, 16)).flatten(0, 1))) == ["a", "b", "c"]
    assert check(lambda m, x: m.b(nn.functional.dropout(m.a(x), 0.0))) == ["a", "b"]

    def halves(m: Net, x: torch.Tensor) -> torch.Tensor:
        one, two = m.a(x).chunk(2, -1)
        result: torch.Tensor = m.b(torch.cat([one.sigmoid(), two], -1))
        return result

    assert check(halves) == ["a", "sigmoid", "cat", "b"]


def test_what_is_returned_may_be_a_view() -> None:
    assert check(lambda m, x: m.b(m.a(x)).view(-1)) == ["a", "b"]


def test_sizes_are_constants() -> None:
    assert check(lambda m, x: m.b(m.a(x).reshape(x.shape[0] // 2, -1, x.size(1)))) == ["a", "b"]
    assert check(lambda m, x: m.b(m.a(x) * x.shape[-1] ** -0.5)) == ["a", "mul", "b"]


def test_tensors_made_by_the_code() -> None:
    before = set(vars(model := Net(lambda m, x: m.b(m.a(x) + torch.arange(16.0)))))
    assert trace(model, noise(8, 16)).constant_bytes == 64
    assert set(vars(model)) == before
    assert check(lambda m, x: m.b(m.a(x) + torch.arange(16.0))) == ["a+add", "b"]


def test_what_needs_no_gradient_is_held() -> None:
    names = check(lambda m, x, mask: m.b(m.a(x) * (mask > 0).float().cumsum(0)), noise(8, 16))
    assert names == ["a", "mul", "b"]


def test_an_addition_is_run_with_what_it_adds() -> None:
    assert check(lambda m, x: m.b(h := m.a(x)) + h) == ["a", "b+add"]
    assert check(lambda m, x: m.c((h := m.a(x)) + m.drop(m.b(h)))) == ["a", "b", "drop+add", "c"]
    # A product needs its factors again, and a concatenation's gradient is in parts.
    assert check(lambda m, x: m.b(h := m.a(x)) * h) == ["a", "b", "mul"]
    assert check(lambda m, x: torch.cat([h := m.a(x), m.b(h)])) == ["a", "b", "cat"]


def test_what_is_changed_in_place_is_run_with_the_change() -> None:
    assert check(lambda m, x: m.b(F.relu(m.a(x), inplace=True))) == ["a+relu", "b"]
    assert check(lambda m, x: m.b(m.drop(m.a(x)).mul_(2).tanh_())) == ["a", "drop+mul_+tanh_", "b"]

    def late(m: Net, x: torch.Tensor) -> torch.Tensor:
        """As in a residual block whose skip is computed last."""
        inside, skip = m.b(m.a(x)), m.c(x)
        inside += skip
        result: torch.Tensor = inside.relu_()
        return result

    assert check(late) == ["a", "c", "b+add_+relu_"]

    def shared(m: Net, x: torch.Tensor) -> torch.Tensor:
        """The same, but where moving a layer would add gradients up in another order."""
        h = m.a(x)
        inside, skip = m.drop(h), m.c(h)
        inside += skip
        result: torch.Tensor = inside * h
        return result

    with pytest.raises(UnsupportedModel, match="operation 'add_' changes in place what others"):
        trace(Net(shared), noise(8, 16))


def test_a_layer_may_read_the_same_twice() -> None:
    assert check(lambda m, x: m.b(h := m.a(x)) + h + h * h) == ["a", "b+add", "mul+add_1"]


def test_gradients_of_views_are_added_in_the_models_order() -> None:
    """Four readers of one tensor, two of them through one view: the view is a layer then."""

    def code(m: Net, x: torch.Tensor) -> torch.Tensor:
        h = m.a(x)
        view = h.view(2, 4, 16)
        one = m.b(view).view(8, 16)
        two = m.c(h).tanh()
        three = (view * 0.3).view(8, 16)
        result: torch.Tensor = one * two + three * h
        return result

    names = check(code)
    assert "view" in names
    assert "view" not in check(lambda m, x: m.b((h := m.a(x)).view(2, 4, 16)).view(8, 16) * h)


def test_gradients_of_a_view_that_a_layer_reads_more_than_once() -> None:
    """They are summed up in the layer, unlike the model's, unless they are the first to add."""
    assert "view" in check(lambda m, x: m.b(v := m.a(x).view(2, 4, 16)) * (v * v) + m.c(v))
    assert "view" not in check(lambda m, x: m.c(m.b(v := m.a(x).view(2, 4, 16))) * (v * v))


def test_a_tuple_with_one_tensor() -> None:
    attention = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)

    class Attending(Net):
        def __init__(self) -> None:
            super().__init__(lambda m, x: m.b(m.mha(h := m.a(x)[None], h, h, None, False)[0] + h))
            self.mha = attention

    case = GraphCase(model := Attending(), noise(8, 16), mean_square)
    graph = trace(model, case.inputs)
    assert graph.names == ("a", "mha+add", "b")
    expected = step(copy.deepcopy(model), case)
    with apply_graph(keep_all(graph), graph, model):
        assert_equal(step(model, case), expected)


def test_a_trace_leaves_the_model_as_it_was() -> None:
    case = graph_case("densenet")
    model = copy.deepcopy(case.model)
    model(case.inputs).sum().backward()
    gradient = model.head.weight.grad
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    profile_graph(model, case.inputs, case.loss_fn)
    assert torch.equal(torch.get_rng_state(), state)
    assert_equal(model.state_dict(), before)
    assert model.head.weight.grad is gradient


# Not the U-Net: the real mse_loss returns its scalar in a storage of the size of what it averages.
@pytest.mark.parametrize("name", ["densenet-blocks", "resnet", "t5-blocks"])
def test_fake_tensors_give_the_same_bytes(name: str) -> None:
    case = graph_case(name)
    loss_fn = case.loss_fn if case.outside else None
    found = profile_graph(case.model, case.inputs, loss_fn, case.leaves, fake=True)
    for mine, theirs in zip(found.layers, graph_costs(name).layers, strict=True):
        assert _bytes(mine) == _bytes(theirs)
    assert found.edges == graph_costs(name).edges


def _bytes(layer: Any) -> dict[str, Any]:
    return {key: value for key, value in asdict(layer).items() if "time" not in key}


def test_a_mask_is_made_again() -> None:
    """What a layer's output is compared to has no gradient: whoever reads it makes it."""
    assert check(lambda m, x: m.b(h := m.a(x)) * (h > 0).float() + (h > 1)) == ["a", "b", "mul+add"]
    assert check(lambda m, x: m.b(h := m.a(x)).gather(-1, h.argsort(-1)))[:2] == ["a", "b"]


def test_what_the_loss_does_not_need() -> None:
    """It is made at the end of the forward where it is returned, without a backward."""
    assert check(lambda m, x: (m.a(x), m.c(m.b(x)))[1]) == ["b", "c"]
    model = Net(lambda m, x: {"more": m.a(h := m.b(x)).sigmoid(), "loss": h.sum(), "x": h + 1})
    graph = trace(model, noise(8, 16))
    assert graph.names == ("b", "sum_1")
    expected = model(noise(8, 16))
    with apply_graph(keep_all(graph), graph, model):
        found = model(noise(8, 16))
        assert_equal(found, expected)
        found["loss"].backward()
        with pytest.raises(UnsupportedModel, match="a gradient comes to one of"):
            model(noise(8, 16))["more"].sum().backward()
    assert model.a.weight.grad is None
    assert model.b.weight.grad is not None


def test_a_repeated_token() -> None:
    """The gradient of its copies is summed up as it lies in that of the concatenation."""

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.a = nn.Parameter(noise(1, 1, 16)), nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            more = self.token.repeat(len(x), 12, 1)
            return torch.cat([self.a(x), more], 1).sin()

    names = check_plans(GraphCase(Tokens(), noise(8, 5, 16), mean_square, True))
    assert names == ["repeat+a+cat", "sin"]


def test_a_bias_before_a_concatenation() -> None:
    """Its gradient is summed up as it lies in that of the concatenation."""

    class Queries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.a = nn.Parameter(noise(1, 8, 32)), nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            queries = self.a(x[:, :8].exp()) + self.query
            return torch.cat([queries, x], 1).sin()

    names = check_plans(GraphCase(Queries(), noise(2, 69, 32), mean_square, True))
    assert names[-2:] == ["a+add+cat", "sin"]


# --- refused ------------------------------------------------------------------------------------


class Loose(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(16, 16)
        self.scale = [torch.ones(16, requires_grad=True)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.a(x) * self.scale[0]
        return result


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (lambda m, x: m.b(x.relu_()), "'relu_' changes in place what others read"),
        (lambda m, x: m.b(h := m.a(x)) * h.mul_(2), "'mul_' changes in place what others read"),
        (lambda m, x: m.b(m.a(x).view(-1, 8).mul_(2).view(8, 16)), "'mul_' changes in place what"),
        (lambda m, x: (m.drop(m.a(x)), m.b(x))[0].mul_(2), "'mul_' changes in place what others"),
        (lambda m, x: m.b(m.a(x) * x.max().item()), "makes float from the values of a tensor"),
        (lambda m, x: x * 2, "returns 0 tensors"),
        (lambda m, x: m.b(m.a(x) * random.random()), "draws from Python's random module"),
        (lambda m, x: m.b(x) if m.a(x).sum() else m.c(x), "makes bool from the values"),
        (lambda m, x: (m.drop(m.a(x)), m.b(x))[1], "'drop' draws random numbers, and nothing"),
        (lambda m, x: m.b(m.a(x).max(-1)[0][:, None] * x), "'max_1' returns max with 2 tensors"),
    ],
    ids=[
        "input",
        "two readers",
        "view",
        "unused too",
        "item",
        "none",
        "random",
        "branch",
        "random too",
        "max",
    ],
)
def test_refused(code: Callable[..., Any], said: str) -> None:
    with pytest.raises(UnsupportedModel) as error:
        trace(Net(code), noise(8, 16))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_gradient_that_no_parameter_takes() -> None:
    with pytest.raises(UnsupportedModel, match=r"shape \(16,\) .* register it as an nn.Parameter"):
        trace(Loose(), noise(8, 16))


@pytest.mark.parametrize(
    ("leaves", "said"),
    [(["down3"], "no module 'down3'; did you mean"), (["down1.0", "down1"], "'down1.0' is never")],
)
def test_leaves_that_are_none(leaves: list[str], said: str) -> None:
    case = graph_case("unet")
    with pytest.raises(UnsupportedModel) as error:
        trace(case.model, case.inputs, leaves)
    assert said in str(error.value)


def test_no_loss() -> None:
    case = graph_case("resnet")
    with pytest.raises(UnsupportedModel, match="returns no scalar: give loss_fn"):
        profile_graph(case.model, case.inputs)


def test_a_call_that_does_not_fit() -> None:
    case = graph_case("resnet")
    with pytest.raises(UnsupportedModel, match="ResNet cannot be called so: too many"):
        trace(case.model, (case.inputs, case.inputs))
    with pytest.raises(UnsupportedModel, match="inputs must be a tensor, a tuple"):
        trace(case.model, 3)


def test_the_output_itself_may_be_the_loss() -> None:
    case = graph_case("unet-blocks")
    costs = profile_graph(case.model, case.inputs, itself, case.leaves)
    assert costs.edges == graph_costs("unet-blocks").edges
    assert bytes_of(costs) == bytes_of(graph_costs("unet-blocks"))
