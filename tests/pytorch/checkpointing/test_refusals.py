"""What the adapter refuses, in which words, and the traps that it handles."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from scheduler import (
    InvalidCosts,
    InvalidPlan,
    LayerCost,
    Plan,
    SchedulerError,
    UnsupportedModel,
    solve,
)
from scheduler.export import export
from scheduler.pytorch import apply, describe, measure, profile, profile_graph, trace, verify
from solvers.schedule import Checkpoint, Item, Items, Keep
from tests.pytorch import models
from tests.pytorch.models import (
    assert_equal,
    case,
    costs,
    gradients,
    mean_square,
    mlp,
    noise,
    plan_of,
)

X = noise(32, 16)


class Stack(nn.Module):
    """Blocks in a list, called one after the other."""

    def __init__(self, depth: int = 4, block: Callable[[], nn.Module] = mlp) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(block() for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def segments(names: list[str], *lengths: int) -> Plan:
    """Checkpoints of these lengths over layers of these names; what is left over is kept."""
    graph = [
        LayerCost(name, forward_time=1, backward_time=2, output_bytes=10, saved_bytes=100)
        for name in names
    ]
    items: list[Item] = []
    at = 0
    for length in lengths:
        body = tuple(Keep(i) for i in range(at, at + length))
        items.append(Checkpoint(at, at + length - 1, body))
        at += length
    items.extend(Keep(i) for i in range(at, len(names)))
    everything = solve(graph, budget=10**9)
    return replace(everything, schedule=Items(tuple(items)))


def blocks_of(depth: int) -> list[str]:
    return [f"blocks.{i}" for i in range(depth)]


# --- blocks -------------------------------------------------------------------------------------


def test_no_blocks() -> None:
    with pytest.raises(UnsupportedModel, match=r"Linear has no module 'layers\.0'"):
        profile(nn.Linear(16, 16), X, mean_square, ["layers.0"])
    assert len(profile(nn.Linear(16, 16), X, mean_square).layers) == 2
    found = measure(nn.Linear(16, 16), X, mean_square)
    assert found.forwards == {}
    assert found.peak_bytes > 0


def test_a_misspelt_block() -> None:
    this = case("gpt2")
    expected = r"no module 'transformer.h.O'; did you mean 'transformer\.h\.\d+'\?"
    with pytest.raises(UnsupportedModel, match=expected):
        profile(this.model, this.inputs, blocks=["transformer.h.O"])
    with pytest.raises(UnsupportedModel, match=r"GPT2LMHeadModel has no module 'qqq'$"):
        profile(this.model, this.inputs, blocks=["qqq"])
    with pytest.raises(UnsupportedModel, match="no module ''"):
        profile(this.model, this.inputs, blocks=[""])


def test_one_name_that_is_no_list() -> None:
    this = case("gpt2")
    with pytest.raises(UnsupportedModel, match=r"write blocks=\['transformer.h.0'\]"):
        profile(this.model, this.inputs, blocks="transformer.h.0")


def test_an_empty_list_of_blocks() -> None:
    with pytest.raises(UnsupportedModel, match="the list of blocks is empty"):
        profile(Stack(), X, mean_square, blocks=[])


def test_an_empty_sequential() -> None:
    with pytest.raises(SchedulerError, match="block"):
        profile(nn.Sequential(), X, mean_square)


def test_blocks_out_of_order() -> None:
    names = ["blocks.1", "blocks.0", "blocks.2"]
    with pytest.raises(UnsupportedModel, match=r"'blocks.0' is called out of order; .*once each"):
        profile(Stack(), X, mean_square, blocks=names)


def test_a_block_named_twice() -> None:
    with pytest.raises(SchedulerError, match=r"blocks.0"):
        profile(Stack(), X, mean_square, blocks=["blocks.0", "blocks.0"])


def test_a_block_called_twice() -> None:
    class Twice(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.blocks[3](super().forward(x))  # type: ignore[no-any-return]

    with pytest.raises(UnsupportedModel, match=r"'blocks.3' is called a second time"):
        profile(Twice(), X, mean_square, "blocks.*")
    assert "blocks.3" not in profile(Twice(), X, mean_square).names


def test_a_module_twice_in_a_sequential() -> None:
    block = mlp()
    model = nn.Sequential(block, mlp(), block)
    with pytest.raises(UnsupportedModel, match=r"'0' is called a second time"):
        profile(model, X, mean_square, ["0", "1"])
    assert profile(model, X, mean_square).names == ("embedding", "1", "loss")


def test_a_block_that_is_never_called() -> None:
    class Unused(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks[:-1]:
                x = block(x)
            return x

    with pytest.raises(UnsupportedModel, match=r"'blocks.3' is never called by the model"):
        profile(Unused(), X, mean_square, "blocks.*")
    assert profile(Unused(), X, mean_square).names[:-1] == ("blocks.0", "blocks.1", "blocks.2")


class Turning(nn.Module):
    """Every second call is another; `once`: only the first."""

    def __init__(self, once: bool) -> None:
        super().__init__()
        self.layer, self.calls, self.once = nn.Linear(16, 16), 0, once

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        other = self.calls == 1 if self.once else self.calls % 2
        return torch.tanh(self.layer(x)) if other else self.layer(x)


def test_a_block_that_goes_another_way_in_each_step() -> None:
    with pytest.raises(
        UnsupportedModel, match=r"block 'blocks\.0' runs other operations from step"
    ):
        profile(Stack(4, lambda: Turning(once=False)), X, mean_square)
    assert len(profile(Stack(4, lambda: Turning(once=True)), X, mean_square).layers) == 5


def test_a_block_inside_a_block() -> None:
    with pytest.raises(SchedulerError, match=r"blocks\.0"):
        profile(Stack(), X, mean_square, blocks=["blocks.0", "blocks.0.1", "blocks.1"])


class Glue(Stack):
    """A model that does something of its own between two blocks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i == 1:
                x = x * 2
        return x


def test_code_between_blocks_is_a_layer_that_is_kept() -> None:
    costs = profile(Glue(), X, mean_square)
    kept = [layer.name for layer in costs.layers if not layer.recomputable]
    assert kept == ["before blocks.2", "head"]


def test_code_between_blocks_is_refused_when_a_segment_runs() -> None:
    model = Glue()
    reference = gradients(model, X, mean_square)
    expected = r"'blocks.2' does not receive what block 'blocks.1' returned, .*code of its own"
    with (
        apply(segments(blocks_of(4), 1, 2, 1), model),
        pytest.raises(UnsupportedModel, match=expected),
    ):
        model(X)
    # Where the code is between segments, it does no harm.
    with apply(segments(blocks_of(4), 2, 2), model):
        assert_equal(gradients(model, X, mean_square), reference)


def test_a_block_that_is_skipped_in_a_segment() -> None:
    class Skips(Stack):
        skip = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for i, block in enumerate(self.blocks):
                if not (self.skip and i == 2):
                    x = block(x)
            return x

    model = Skips()
    plan = segments(blocks_of(4), 4)
    with apply(plan, model):
        model(X)
        model.skip = True
        with pytest.raises(UnsupportedModel, match=r"blocks\.2"):
            model(X)
    with apply(segments(blocks_of(4), 1, 2, 1), model), pytest.raises(UnsupportedModel):
        gradients(model, X, mean_square)


def test_a_segment_recovers_after_an_error() -> None:
    """A step that fails half way, out of memory say, is followed by a good one."""

    class Fails(Stack):
        fail = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for i, block in enumerate(self.blocks):
                if self.fail and i == 2:
                    raise ZeroDivisionError
                x = block(x)
            return x

    model = Fails()
    reference = gradients(model, X, mean_square)
    with apply(segments(blocks_of(4), 3, 1), model):
        model.fail = True
        with pytest.raises(ZeroDivisionError):
            model(X)
        model.fail = False
        assert_equal(gradients(model, X, mean_square), reference)


class Scaled(nn.Module):
    """A block with arguments beside the activation."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x: torch.Tensor, scale: Any = 1.0) -> torch.Tensor:
        return self.inner(x) * scale  # type: ignore[no-any-return]


class ScaledStack(Stack):
    """Blocks that get `scales` beside the activation."""

    def __init__(self, *scales: Any) -> None:
        super().__init__(len(scales), Scaled)
        self.scales = scales

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block, scale in zip(self.blocks, self.scales, strict=True):
            x = block(x, scale=scale)
        return x


@pytest.mark.parametrize("scale", [0.5, torch.full((), 0.5), torch.full((16,), 0.5)])
def test_the_same_arguments_inside_a_segment(scale: Any) -> None:
    model = ScaledStack(scale, scale, scale)
    reference = gradients(model, X, mean_square)
    with apply(segments(blocks_of(3), 3), model):
        assert_equal(gradients(model, X, mean_square), reference)


def test_a_learned_argument() -> None:
    """A tensor beside the activation may carry a gradient."""
    scale = nn.Parameter(torch.full((16,), 0.5))
    model = ScaledStack(scale, scale, scale)
    model.register_parameter("scale", scale)
    reference = gradients(model, X, mean_square)
    assert "scale" in reference
    for lengths in ((3,), (1, 1, 1), (2, 1)):
        with apply(segments(blocks_of(3), *lengths), model):
            assert_equal(gradients(model, X, mean_square), reference)


class Wrapped(nn.Module):
    """A block that packs its output."""

    def __init__(self, pack: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.pack = mlp(), pack

    def forward(self, x: torch.Tensor) -> Any:
        return self.pack(self.inner(x))


class WrappedStack(nn.Module):
    """Blocks that pack their output, unpacked in between."""

    def __init__(self, pack: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Wrapped(pack) for _ in range(3))

    def forward(self, x: Any) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
            x = x["x"] if isinstance(x, dict) else x[0]
        return x  # type: ignore[no-any-return]


def test_a_block_that_returns_no_tensor() -> None:
    class Nothing(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.blocks[0](x)
            return x

    with pytest.raises(UnsupportedModel, match=r"'blocks.0' returns NoneType without a tensor"):
        profile(Nothing(1, lambda: Wrapped(lambda x: None)), X, mean_square, ["blocks.0"])


@pytest.mark.parametrize(
    "pack", [lambda x: (x,), lambda x: [x, None], lambda x: (x, 3, "a"), lambda x: {"x": x}]
)
def test_a_block_that_packs_its_output(pack: Callable[[Any], Any]) -> None:
    model = WrappedStack(pack)
    profile(model, X, mean_square)
    reference = gradients(model, X, mean_square)
    for lengths in ((3,), (1, 1, 1), (1, 2)):
        with apply(segments(blocks_of(3), *lengths), model):
            assert_equal(gradients(model, X, mean_square), reference)


def test_a_block_that_takes_no_tensor() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(16, 16)

        def forward(self, x: Any = None) -> Any:
            return self.inner(X)

    class Model(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.blocks[1](self.blocks[0]())  # type: ignore[no-any-return]

    with pytest.raises(UnsupportedModel, match=r"'blocks.0' was called without a tensor"):
        profile(Model(2, Constant), X, mean_square, "blocks.*")


# --- losses -------------------------------------------------------------------------------------


def test_no_loss() -> None:
    with pytest.raises(UnsupportedModel, match=r"no loss: give loss_fn=..., or inputs \(such as"):
        profile(Stack(), X)
    inputs = {"input_ids": models.batch()["input_ids"]}
    with pytest.raises(UnsupportedModel, match="no loss"):
        measure(case("gpt2").model, inputs)
    with pytest.raises(UnsupportedModel, match="no loss"):
        profile(Stack(), X, lambda output: None)
    with pytest.raises(UnsupportedModel, match="no loss"):
        profile(Stack(), X, lambda output: 3.0)


def test_a_loss_that_is_no_scalar() -> None:
    with pytest.raises(UnsupportedModel, match=r"the loss must be a scalar, got shape \(32, 16\)"):
        profile(Stack(), X, lambda output: output)


def test_a_loss_without_gradients() -> None:
    expected = "does not depend on any parameter that requires grad"
    with pytest.raises(UnsupportedModel, match=expected):
        profile(Stack(), X, lambda output: output.detach().sum())
    with pytest.raises(UnsupportedModel, match=expected):
        profile(Stack().requires_grad_(False), X, mean_square)


def test_without_gradients_around_it() -> None:
    """Somebody who profiles where gradients are switched off gets the profile all the same."""
    with torch.no_grad():
        graph = profile(Stack(), X, mean_square)
    assert models.bytes_of(graph) == models.bytes_of(profile(Stack(), X, mean_square))


def test_inputs_of_another_kind() -> None:
    with pytest.raises(UnsupportedModel, match=r"inputs must be a tensor, a tuple .*, got int"):
        profile(Stack(), 3, mean_square)


# --- in place -----------------------------------------------------------------------------------


def test_in_place_on_the_input() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.relu, self.linear = nn.ReLU(inplace=True), nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(self.relu(x))  # type: ignore[no-any-return]

    expected = r"block 'blocks.0' \(InPlace\): it changes its input in place"
    with pytest.raises(UnsupportedModel, match=expected):
        profile(Stack(3, InPlace), X.clone(), mean_square)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(inplace=True), nn.Linear(16, 16))
    with pytest.raises(
        UnsupportedModel, match=r"block '1' \(ReLU\): it changes its input in place"
    ):
        profile(model, X, mean_square)
    with pytest.raises(
        UnsupportedModel, match=r"block '1' \(ReLU\): it changes its input in place"
    ):
        profile(model, X, mean_square, fake=True)


def test_in_place_inside_a_block_is_fine() -> None:
    model = nn.Sequential(
        *[nn.Sequential(nn.Linear(16, 16), nn.ReLU(inplace=True)) for _ in range(4)]
    )
    this = models.Case(model, X, mean_square)
    graph = profile(model, X, mean_square)
    reference = gradients(model, X, mean_square)
    plan = solve(graph, budget=models.smallest_budget(graph))
    with apply(plan, model):
        assert_equal(gradients(model, X, mean_square), reference)
        assert measure(this.model, X, mean_square).peak_bytes <= plan.peak_bytes


# --- plans --------------------------------------------------------------------------------------


def test_a_plan_applied_twice() -> None:
    model = copy.deepcopy(case("gpt2").model)
    plan = solve(costs("gpt2"), budget=models.smallest_budget(costs("gpt2")))
    expected = r"already applied to the \d+\w+ block, 'transformer.h.\d+'; call remove\(\)"
    with apply(plan, model):
        with pytest.raises(UnsupportedModel, match=expected):
            apply(plan, model)
        with pytest.raises(UnsupportedModel, match=expected):
            profile(model, models.batch())
    apply(plan, model).remove()


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_:FutureWarning")
@pytest.mark.parametrize("name", ["gpt2", "llama-float32"])
def test_gradient_checkpointing_is_on(name: str) -> None:
    model = copy.deepcopy(case(name).model)
    plan = solve(costs(name), budget=models.smallest_budget(costs(name)))
    model.gradient_checkpointing_enable()  # type: ignore[operator]
    off = "activation" if hasattr(model, "activation_checkpointing_disable") else "gradient"
    expected = rf"gradient checkpointing on; call model.{off}_checkpointing_disable\(\) first"
    with pytest.raises(UnsupportedModel, match=expected):
        profile(model, models.batch())
    with pytest.raises(UnsupportedModel, match=expected):
        apply(plan, model)
    model.gradient_checkpointing_disable()  # type: ignore[operator]
    with apply(plan, model):
        assert_equal(gradients(model, models.batch()), models.untouched(name)[0])


def test_checkpointing_is_switched_off_by_what_the_model_offers() -> None:
    """As diffusers, timm and nobody call it."""

    class Diffusers(Stack):
        gradient_checkpointing = True

        def disable_gradient_checkpointing(self) -> None: ...

    class Timm(Stack):
        grad_checkpointing = True

        def set_grad_checkpointing(self, enable: bool = True) -> None: ...

    for model, way in (
        (Diffusers(), r"call model.disable_gradient_checkpointing\(\) first"),
        (nn.Sequential(Timm(), Timm()), r"call model.0.set_grad_checkpointing\(False\) first"),
    ):
        with pytest.raises(UnsupportedModel, match=way):
            profile(model, X, mean_square)
    other: Any = Stack()
    other.blocks[1].gradient_checkpointing = True
    with pytest.raises(UnsupportedModel, match=r"set model.blocks.1.gradient_checkpointing = Fal"):
        profile(other, X, mean_square)


def test_arguments_in_another_order() -> None:
    model, plan = Stack(), segments(blocks_of(4), 1)
    with pytest.raises(InvalidPlan, match=r"got Stack in the place of the plan.*write apply\(plan"):
        apply(model, plan)  # type: ignore[call-overload]
    with pytest.raises(InvalidPlan, match=r"got Stack in the place .*write verify\(plan, model,"):
        verify(model, plan, X)  # type: ignore[arg-type]
    with pytest.raises(InvalidCosts, match=r"got a model \(Stack\) in the place of its costs.*p"):
        solve(model, budget=10**9)
    with pytest.raises(InvalidPlan, match=r"got Stack in the place .*write export\(plan, target"):
        export(model, "torch")  # type: ignore[arg-type]
    entries: list[Any] = [profile, describe, measure, trace, profile_graph]
    for call in entries:
        with pytest.raises(UnsupportedModel, match=r"got Tensor in the place of the model"):
            call(X, model)


# --- blocks left out at random ------------------------------------------------------------------


def test_blocks_left_out_at_random_by_a_rate_of_no_name() -> None:
    """Seen when a step calls others than an earlier one."""

    class Nameless(Stack):
        left_out: tuple[int, ...] = ()
        steps = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.steps += 1
            for i, block in enumerate(self.blocks):
                if self.steps == 1 or i not in self.left_out:
                    x = block(x)
            return x

    for left_out in (0,), (2,), (3,):
        model = Nameless()
        model.left_out = left_out
        with pytest.raises(UnsupportedModel, match=r"at random|left out"):
            profile(model, X, mean_square)


def test_the_model_lacks_a_block_of_the_plan() -> None:
    expected = r"the plan's layer 'transformer.h.11' \(13th of 14\) is not a module of this GPT2"
    with pytest.raises(InvalidPlan, match=expected):
        apply(solve(costs("gpt2"), budget=10**12), models.gpt2(n_layer=11))


def test_the_model_has_a_block_more() -> None:
    expected = r"the model has a block 'transformer.h.12' that the plan does not; .*another model"
    with pytest.raises(InvalidPlan, match=expected):
        apply(solve(costs("gpt2"), budget=10**12), models.gpt2(n_layer=13))


def test_a_plan_for_another_architecture() -> None:
    with pytest.raises(InvalidPlan, match=r"layer 'transformer.h.0' \(2nd of 14\) is not a module"):
        apply(solve(costs("gpt2"), budget=10**12), case("llama-float32").model)


def test_a_plan_for_no_module_at_all() -> None:
    plan = solve(
        [LayerCost("a", forward_time=1, backward_time=1, output_bytes=1, saved_bytes=1)], budget=100
    )
    with pytest.raises(InvalidPlan, match=r"none of the plan's layers \('a', ...\) is a module"):
        apply(plan, Stack())


def test_a_plan_that_checkpoints_an_end() -> None:
    names = ["embedding", *blocks_of(4)]
    with pytest.raises(InvalidPlan, match=r"layer 'embedding' \(1st of 5\) is not a module"):
        apply(segments(names, 2), Stack())


def test_a_plan_in_another_order_than_the_blocks() -> None:
    model = Stack()
    names = ["blocks.0", "blocks.2", "blocks.1", "blocks.3"]
    with pytest.raises(SchedulerError, match=r"blocks\.[12]"), apply(segments(names, 4), model):
        gradients(model, X, mean_square)


def test_a_plan_that_does_not_say_what_its_options_keep() -> None:
    graph = [
        LayerCost(
            name,
            forward_time=1,
            backward_time=2,
            output_bytes=10,
            saved_bytes=1000,
            options=({"name": "save-less", "saved_bytes": 0, "recompute_time": 0.1},),  # type: ignore[arg-type]
        )
        for name in blocks_of(4)
    ]
    items = (*[Keep(i) for i in range(3)], Keep(3, "save-less"))
    plan = replace(solve(graph, budget=10**9), schedule=Items(items))
    expected = r"keeps 'blocks.3' with option 'save-less', and does not say which .*options=True"
    with pytest.raises(InvalidPlan, match=expected):
        apply(plan, Stack())
    nested = replace(plan, schedule=Items((Checkpoint(0, 3, items),)))
    with pytest.raises(InvalidPlan, match=expected):
        apply(nested, Stack())


def test_a_plan_for_some_of_the_blocks() -> None:
    """What `profile` gives for a part of the blocks can be applied."""
    model = Stack(6)
    names = blocks_of(6)[1:5]
    graph = profile(model, X, mean_square, blocks=names)
    reference = gradients(model, X, mean_square)
    for method in ("optimal", "every-layer"):
        budget = models.smallest_budget(graph) if method == "optimal" else 10**9
        plan = solve(graph, budget=budget, method=method)
        with apply(plan, model, names):
            assert measure(model, X, mean_square).peak_bytes <= plan.peak_bytes
            assert_equal(gradients(model, X, mean_square), reference)


# --- traps --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [(1, 1, 1, 1, 1, 1), (6,), (2, 3, 1)])
def test_batch_norm_counts_each_batch_once(lengths: tuple[int, ...]) -> None:
    items: list[Item] = []
    at = 0
    for length in lengths:
        body: tuple[Item, ...] = tuple(Keep(i) for i in range(at, at + length))
        items.append(Checkpoint(at, at + length - 1, body))
        at += length
    check_batch_norm([*items, Keep(6)])


def test_batch_norm_in_nested_checkpoints() -> None:
    deep: tuple[Item, ...] = (Keep(0),)
    for last in range(1, 6):
        deep = (Checkpoint(0, last - 1, deep), Keep(last))
    check_batch_norm([Checkpoint(0, 5, deep), Keep(6)])


def check_batch_norm(items: list[Item]) -> None:
    """Three steps leave every buffer as they leave it without a plan."""
    this = case("convolutions")
    touched, plain = models.convolutions(6), models.convolutions(6)
    for momentum, model in ((None, touched), (None, plain)):
        model.get_submodule("4.1").momentum = momentum  # type: ignore[assignment]
    with apply(plan_of(costs("convolutions"), items), touched):
        for seed in range(3):
            found = gradients(touched, this.inputs, this.loss_fn, seed)
            assert_equal(found, gradients(plain, this.inputs, this.loss_fn, seed))
    assert_equal(dict(touched.named_buffers()), dict(plain.named_buffers()))
    for number in range(6):
        norm = touched.get_submodule(f"{number}.1")
        assert int(norm.num_batches_tracked) == 3  # type: ignore[arg-type]
        assert norm.momentum == (None if number == 4 else 0.1)


def test_python_random_inside_a_block() -> None:
    """A block that draws from Python's generator: refused, or the right gradients."""
    import random

    class Drop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp(dropout=0.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x * random.random())  # type: ignore[no-any-return]

    check_randomness(Drop, lambda: random.seed(0))


def test_numpy_random_inside_a_block() -> None:
    import numpy as np

    class Drop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp(dropout=0.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x * float(np.random.rand()))  # type: ignore[no-any-return]

    check_randomness(Drop, lambda: np.random.seed(0))


def check_randomness(block: Callable[[], nn.Module], seed: Callable[[], None]) -> None:
    model = Stack(4, block)
    seed()
    reference = gradients(model, X, mean_square)
    plain = copy.deepcopy(model)
    for lengths in ((1, 1, 1, 1), (2, 2)):
        with apply(segments(blocks_of(4), *lengths), model):
            seed()
            assert_equal(gradients(model, X, mean_square), reference)
            seed()  # and what is drawn after a step is what it would have been
            for number in range(2):
                after = gradients(model, X, mean_square, number)
        seed()
        for number in range(2):
            expected = gradients(plain, X, mean_square, number)
        assert_equal(after, expected)


def test_weights_shared_between_blocks() -> None:
    model = Stack(5)
    for block in model.blocks[1:]:
        block[2].weight = model.blocks[0][2].weight  # type: ignore[index]
    reference = gradients(model, X, mean_square)
    graph = profile(model, X, mean_square)
    assert measure(model, X, mean_square).peak_bytes <= solve(graph, budget=10**9).peak_bytes
    for share in (0.8, 0.0):
        budget = max(
            models.smallest_budget(graph), int(share * measure(model, X, mean_square).peak_bytes)
        )
        plan = solve(graph, budget=budget)
        with apply(plan, model):
            assert_equal(gradients(model, X, mean_square), reference)
            assert measure(model, X, mean_square).peak_bytes <= plan.peak_bytes


@pytest.mark.parametrize("rows", [1, 64])
def test_an_embedding_tied_to_the_head(rows: int) -> None:
    """With one row the peak is at the embedding's backward, where both gradients are summed."""
    model, inputs = case("gpt2").model, models.batch(rows, 2)
    graph = profile(model, inputs)
    for plan in (solve(graph, budget=10**12), solve(graph, budget=models.smallest_budget(graph))):
        with apply(plan, model):
            assert measure(model, inputs).peak_bytes <= plan.peak_bytes


def test_a_frozen_input_of_a_checkpoint() -> None:
    """The reentrant variant gives no gradients here."""
    model = Stack()
    assert not X.requires_grad
    reference = gradients(model, X, mean_square)
    with apply(segments(blocks_of(4), 1, 1, 1, 1), model):
        found = gradients(model, X, mean_square)
    assert len(found) == 16
    assert_equal(found, reference)


def test_inputs_that_require_a_gradient() -> None:
    model = Stack()

    def step() -> torch.Tensor:
        x = X.clone().requires_grad_()
        torch.manual_seed(1)
        mean_square(model(x)).backward()
        assert x.grad is not None
        return x.grad

    reference = step()
    with apply(segments(blocks_of(4), 2, 2), model):
        assert torch.equal(step(), reference)


def test_the_gradient_of_an_input_is_left_alone() -> None:
    x = X.clone().requires_grad_()
    model = Stack()
    profile(model, x, mean_square)
    assert x.grad is None
    measure(model, x, mean_square)
    assert x.grad is None


def test_two_backward_passes_through_one_graph() -> None:
    model = Stack()
    torch.manual_seed(1)
    loss = mean_square(model(X))
    loss.backward(retain_graph=True)
    loss.backward()
    expected = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    with apply(segments(blocks_of(4), 2, 2), model):
        torch.manual_seed(1)
        loss = mean_square(model(X))
        loss.backward(retain_graph=True)
        loss.backward()
    assert_equal({n: p.grad for n, p in model.named_parameters() if p.grad is not None}, expected)


def test_two_forwards_before_their_backwards() -> None:
    """As in contrastive learning: segments do not mix two calls up."""
    model = Stack()

    def step() -> dict[str, torch.Tensor]:
        torch.manual_seed(1)
        first, second = model(X), model(X * 2)
        (mean_square(first) + mean_square(second)).backward()
        found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        model.zero_grad(set_to_none=True)
        return found

    reference = step()
    with apply(segments(blocks_of(4), 3, 1), model):
        assert_equal(step(), reference)


def mixture(**settings: Any) -> nn.Module:
    """A Mixtral whose experts are chosen by what is computed."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        vocab_size=64,
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=1,
        **settings,
    )
    torch.manual_seed(0)
    model: nn.Module = MixtralForCausalLM(config).train()
    return model


def test_mixture_of_experts() -> None:
    """Experts are chosen again when recomputed; on one machine the choice is the same."""
    model, inputs = mixture(), models.batch(4, 32)
    reference = gradients(model, inputs)
    graph = profile(model, inputs)
    assert measure(model, inputs).peak_bytes <= solve(graph, budget=10**12).peak_bytes
    plan = solve(graph, budget=models.smallest_budget(graph))
    with apply(plan, model):
        assert_equal(gradients(model, inputs), reference)
        assert measure(model, inputs).peak_bytes <= plan.peak_bytes


def test_mixture_of_experts_with_a_router_loss() -> None:
    """The loss reads the routers inside the blocks."""
    model, inputs = mixture(output_router_logits=True), models.batch(4, 32)
    reference = gradients(model, inputs)
    plan = segments([f"model.layers.{i}" for i in range(3)], 1, 1, 1)
    with apply(plan, model):
        assert_equal(gradients(model, inputs), reference)
    plan = solve(profile(model, inputs), budget="1GB", method="every-layer")
    assert verify(plan, model, inputs).ok


def test_a_fake_mixture_of_experts() -> None:
    """Its grouped product has no fake version in fp32."""
    with pytest.raises(UnsupportedModel, match="fake tensors cannot run this model"):
        profile(mixture(), models.batch(4, 32), fake=True)
