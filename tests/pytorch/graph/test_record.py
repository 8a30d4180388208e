"""What a recorded call may hold, what each step checks again, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from scheduler.common.errors import UnsupportedModel
from scheduler.pytorch import apply_graph, profile_graph, trace
from tests.pytorch.graph.graph_models import (
    GraphCase,
    check_plans,
    keep_all,
    mean_square,
    step,
)
from tests.pytorch.models import assert_equal, noise


class Net(nn.Module):
    """Three linear layers, a few blocks, and whatever `code` does with them."""

    flags: torch.Tensor

    def __init__(self, code: Callable[..., Any], **blocks: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(16, 16) for _ in range(3))
        self.drop = nn.Dropout(0.2)
        self.register_buffer("flags", torch.ones(16))
        for name, block in blocks.items():
            self.add_module(name, block)
        self.code = code

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> Any:
        return self.code(self, x, *more)


def check(
    code: Callable[..., Any], *more: torch.Tensor, leaves: Any = None, **blocks: nn.Module
) -> list[str]:
    """Trace, and train under a few plans as without, to the last bit; the layers' names."""
    model = Net(code, **blocks)
    return check_plans(GraphCase(model, (noise(8, 16), *more), mean_square, True, leaves))


def refused(
    code: Callable[..., Any], *more: torch.Tensor, leaves: Any = None, **blocks: nn.Module
) -> str:
    with pytest.raises(UnsupportedModel) as error:
        trace(Net(code, **blocks), (noise(8, 16), *more), leaves)
    assert "\n" not in str(error.value)
    return str(error.value)


# --- between the layers -----------------------------------------------------------------------


def test_a_branch_is_taken_as_recorded_or_refused() -> None:
    def code(m: Net, x: torch.Tensor, mask: torch.Tensor) -> Any:
        return m.b(m.a(x)) if mask.all() else m.b(m.a(x) * mask)

    full, part = torch.ones(8, 16), torch.ones(8, 16).tril()
    assert check(code, full) == ["a", "b"]
    assert check(code, part) == ["a", "mul", "b"]
    model = Net(code)
    graph = trace(model, (noise(8, 16), full))
    apply_graph(keep_all(graph), graph, model)
    with pytest.raises(UnsupportedModel, match="is False now and was True when it was traced"):
        model(noise(8, 16), part)


def test_a_size_that_depends_on_values() -> None:
    def code(m: Net, x: torch.Tensor, mask: torch.Tensor) -> Any:
        return m.a(x[mask])

    mask = torch.arange(8) < 5
    assert check(code, mask) == ["a"]
    model = Net(code)
    graph = trace(model, (noise(8, 16), mask))
    apply_graph(keep_all(graph), graph, model)
    with pytest.raises(UnsupportedModel, match="a plan is for one size"):
        model(noise(8, 16), ~mask)


def test_an_operation_that_fails_on_other_values() -> None:
    def code(m: Net, x: torch.Tensor, mask: torch.Tensor) -> Any:
        return m.a(x) * torch.arange(mask.sum())  # type: ignore[call-overload]

    mask = torch.arange(20) < 16
    assert check(code, mask) == ["a", "mul"]
    model = Net(code)
    graph = trace(model, (noise(8, 16), mask))
    apply_graph(keep_all(graph), graph, model)
    with pytest.raises(UnsupportedModel, match="'mul' ran when the model was traced and fails now"):
        model(noise(8, 16), ~mask)


def test_random_numbers_are_drawn_in_the_models_order() -> None:
    def code(m: Net, x: torch.Tensor) -> Any:
        h = m.drop(m.a(x))
        h = h + torch.rand(16)
        return m.c(m.drop(m.b(h)))

    assert check(code) == ["a", "drop", "add", "b", "drop#2", "c"]


def test_what_needs_no_gradient_may_be_changed_in_place() -> None:
    def code(m: Net, x: torch.Tensor, ids: torch.Tensor) -> Any:
        shifted = ids.new_zeros(ids.shape)
        shifted[..., 1:] = ids[..., :-1].clone()
        early = m.drop(m.a(x)) + shifted  # what it is now, in each recomputation
        shifted[..., 0] = 7
        shifted.masked_fill_(shifted < 0, 2)
        fresh = torch.zeros(8, 16)
        fresh[:4] = shifted[4:]
        return m.b(early) * shifted * fresh

    assert check(code, noise(8, 16)) == ["a", "drop+add", "b", "mul", "mul_1"]


def test_a_gradient_may_be_written_into_zeros() -> None:
    def code(m: Net, x: torch.Tensor) -> Any:
        whole = torch.zeros(8, 16)
        whole[:, 1:] = m.a(x)[:, :-1]
        return m.b(whole)

    assert check(code) == ["a", "setitem", "b"]


def test_an_autograd_function_between_layers() -> None:
    class Backwards(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.exp()

        @staticmethod
        def backward(ctx: Any, *grad_outputs: Any) -> Any:
            return -grad_outputs[0]

    def code(m: Net, x: torch.Tensor) -> Any:
        return m.b(Backwards.apply(m.a(x) * m.c.bias))

    assert check(code) == ["a", "mul", "backwards", "b"]
    bound: Any = Backwards.apply  # which cannot be seen
    for given in (lambda m, x: m.a(x), lambda m, x: m.c.bias):
        said = refused(lambda m, x, given=given: m.b(bound(given(m, x)) * x))
        assert "whose gradient does not come from the operations that made it" in said


def test_what_is_done_without_gradients_or_under_autocast() -> None:
    def code(m: Net, x: torch.Tensor) -> Any:
        with torch.no_grad():
            target = m.c(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = m.a(x)
        return m.b(h.float()) - target

    assert check(code) == ["a", "float_1", "b+sub"]


def test_a_view_that_repeats_and_is_read_twice() -> None:
    """Its gradient is added up before it is summed; apart, it would be summed before."""

    def code(m: Net, x: torch.Tensor) -> Any:
        wide = m.a(x)[None].expand(7, 8, 16)
        return m.b(wide) * wide.sin()

    assert "expand" in check(code)


# --- several tensors --------------------------------------------------------------------------


class Both(nn.Module):
    """Makes a bias of its own beside its output, as the first block of a T5."""

    def __init__(self, drop: float = 0.0, shared: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table, self.inner = nn.Embedding(4, 16), nn.Linear(16, 16)
        self.drop, self.shared = nn.Dropout(drop), shared

    def forward(
        self, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.inner(x)
        if bias is None:
            rows = h[:4] if self.shared else self.table(torch.arange(8) % 4).view(2, 4, 16)
            bias = self.drop(rows).transpose(0, 1).sigmoid() if self.shared else self.drop(rows)
        return x + self.drop(h.tanh()) * bias.sum(), bias


def two(m: Any, x: torch.Tensor) -> Any:
    x, bias = m.one(m.a(x))
    x, bias = m.two(x, bias)
    x, bias = m.three(x, bias)
    return m.b(x) * bias.mean()


def blocks(**options: Any) -> dict[str, nn.Module]:
    return {name: Both(**options) for name in ("one", "two", "three")}


def test_a_block_that_hands_over_two_tensors_is_two_layers() -> None:
    names = check(two, leaves=["one", "two", "three"], **blocks())
    assert names == ["a", "one[1]", "one", "two", "three", "b", "mean", "mul_1"]


@pytest.mark.parametrize("options", [{"drop": 0.1}, {"shared": True}], ids=["draws", "shared"])
def test_a_block_whose_two_tensors_are_entangled_stays_in_pieces(options: Any) -> None:
    names = check(two, leaves=["one", "two", "three"], **blocks(**options))
    assert "one.inner" in names
    assert "two" in names


def test_several_tensors_are_returned_and_one_is_trained_on() -> None:
    model = Net(lambda m, x: {"loss": m.b(h := m.a(x)).pow(2).mean(), "hidden": h, "none": None})
    case = GraphCase(model, noise(8, 16), lambda output: output["loss"])
    graph = trace(model, case.inputs)
    assert graph.names == ("a", "b", "pow_1", "mean")
    expected, hidden = step(copy.deepcopy(model), case), model(case.inputs)["hidden"]
    with apply_graph(keep_all(graph), graph, model):
        assert_equal(step(model, case), expected)
        output = model(case.inputs)
        assert torch.equal(output["hidden"], hidden)
        assert output["none"] is None
        with pytest.raises(UnsupportedModel, match="a gradient comes to one of 2 tensors"):
            (output["loss"] + output["hidden"].sum()).backward()


# --- refused ----------------------------------------------------------------------------------


class Stash(nn.Module):
    """Leaves a tensor where another may find it."""

    def __init__(self, kept: list[Any]) -> None:
        super().__init__()
        self.inner, self.kept = nn.Linear(16, 16), kept

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept[:] = [self.inner(x)]
        result: torch.Tensor = self.kept[0].tanh()
        return result


class Find(nn.Module):
    def __init__(self, kept: list[Any]) -> None:
        super().__init__()
        self.kept = kept

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x * self.kept[0]
        return result


class Box:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class Boxed(nn.Module):
    def forward(self, x: Any) -> Any:
        return Box(x.sin()) if isinstance(x, torch.Tensor) else x.tensor.sin()


def test_a_tensor_that_goes_around_the_arguments() -> None:
    kept: list[Any] = []
    stash, find = Stash(kept), Find(kept)
    said = refused(
        lambda m, x: m.find(m.stash(m.a(x))), leaves=["stash", "find"], stash=stash, find=find
    )
    assert "module 'find' reads a tensor that it is not given" in said
    said = refused(lambda m, x: m.stash(m.a(x)) * kept[0], leaves=["stash"], stash=stash)
    assert "that a layer made and did not return" in said
    said = refused(lambda m, x: m.b(torch.vmap(lambda row: row * 2)(m.a(x))))
    assert "reads a tensor that it is not given as an argument" in said


def test_a_tensor_in_an_object() -> None:
    said = refused(lambda m, x: m.box(m.a(x)).tensor, leaves=["box"], box=Boxed())
    assert "module 'box' returns an object of type Box" in said
    said = refused(lambda m, x: m.box(Box(m.a(x))), leaves=["box"], box=Boxed())
    assert "module 'box' is called with an object of type Box" in said
    assert "Net returns an object of type Box" in refused(lambda m, x: Box(m.a(x)))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (lambda m, x: m.a(x.clamp_(0)), "'clamp_' changes in place what others read"),
        (lambda m, x: m.a(x) * m.flags.add_(1), "'add_' changes in place what others read"),
        (
            lambda m, x: ((y := x * 2), y[:4].zero_(), m.a(y))[2],
            "'zero_' changes in place what others read",
        ),
        (
            lambda m, x: ((z := torch.zeros(16)), (y := m.a(x) + z), z.add_(1), y * z)[3],
            "changes a tensor of shape (16,) in place, which it read before",
        ),
        (lambda m, x: m.b(m.a(x).requires_grad_()), "'requires_grad_' sets an attribute"),
        (lambda m, x: m.b(m.a(x) * float(x.sum())), "'float' makes float from the values"),
        (lambda m, x: m.b(m.a(x) * x.sum().numpy()), "'numpy' makes ndarray from the values"),
    ],
    ids=["input", "buffer", "view", "constant", "attribute", "float", "numpy"],
)
def test_refused(code: Callable[..., Any], said: str) -> None:
    assert said in refused(code)


def test_fake_tensors_have_no_values_to_branch_on() -> None:
    model = Net(lambda m, x: m.a(x) if x.sum() > 0 else m.b(x))
    with pytest.raises(UnsupportedModel, match="which fake tensors do not have"):
        profile_graph(model, noise(8, 16), mean_square, fake=True)


def test_a_pattern_of_leaves() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3)))
    assert trace(model, noise(8, 16), ["[01]"]).names == ("0", "1", "2.0", "2.1")
    with pytest.raises(UnsupportedModel, match="no module of Sequential matches"):
        trace(model, noise(8, 16), ["block.*"])
