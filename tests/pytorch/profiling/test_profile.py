"""Profiles: byte-exact, the same on fake tensors, and nothing of the model changes."""

from __future__ import annotations

import copy
import resource
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import RemBertConfig, RemBertForCausalLM

from scheduler import CostGraph, LayerCost, solve
from scheduler.pytorch import Roofline, apply, measure, profile
from tests.pytorch import models
from tests.pytorch.models import (
    Case,
    assert_equal,
    bytes_of,
    case,
    costs,
    mean_square,
    noise,
    untouched,
)

CASES = ("sequential", "thin", "convolutions", "gpt2", "llama-float32", "llama-bfloat16")


def layer(graph: CostGraph, name: str) -> LayerCost:
    """A layer by name."""
    return next(layer for layer in graph.layers if layer.name == name)


def check_prediction(this: Case, graph: CostGraph, *shares: float, loose: int = 0) -> None:
    """No plan needs more than predicted, nor much less; `loose` bytes may be counted too long."""
    everything = solve(graph, budget=10**15)
    assert set(everything.forwards.values()) == {1}
    found = measure(this.model, this.inputs, this.loss_fn).peak_bytes
    assert found <= everything.peak_bytes <= found * 1.001 + loose + 64
    smallest = models.smallest_budget(graph)
    for share in shares:
        plan = solve(graph, budget=max(int(share * found), smallest))
        with apply(plan, this.model):
            peak = measure(this.model, this.inputs, this.loss_fn).peak_bytes
        assert peak <= plan.peak_bytes <= peak * 1.005 + loose + 64


# --- bytes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_fake_profile_is_the_real_one(name: str) -> None:
    this = case(name)
    assert bytes_of(profile(this.model, this.inputs, this.loss_fn, fake=True)) == bytes_of(
        costs(name)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_profile_on_meta_is_the_real_one(dtype: torch.dtype) -> None:
    with torch.device("meta"):
        model = models.llama(dtype)
    found = profile(model, models.batch(device="meta"))
    name = f"llama-{str(dtype).removeprefix('torch.')}"
    assert bytes_of(found) == bytes_of(costs(name))
    assert all(parameter.is_meta for parameter in model.parameters())


def test_gpt2_on_meta() -> None:
    with torch.device("meta"):
        model = models.gpt2()
    assert bytes_of(profile(model, models.batch(device="meta"))) == bytes_of(costs("gpt2"))


def test_a_sequential_on_meta() -> None:
    with torch.device("meta"):
        model = models.sequential(16)
    found = profile(model, torch.empty(256, 16, device="meta"), mean_square)
    assert bytes_of(found) == bytes_of(costs("sequential"))


def test_real_inputs_for_a_model_on_meta() -> None:
    with torch.device("meta"):
        model = models.llama()
    assert bytes_of(profile(model, models.batch())) == bytes_of(costs("llama-float32"))


@pytest.mark.parametrize("name", CASES)
def test_keep_all_is_predicted(name: str) -> None:
    check_keep_all(name, costs(name))


def check_keep_all(name: str, graph: CostGraph) -> None:
    """However a case is cut into layers, its step needs what it needs."""
    _, measured = untouched(name)
    predicted = solve(graph, budget=10**12).keep_all_peak_bytes
    assert measured.peak_bytes - 64 <= predicted <= measured.peak_bytes * 1.001


def test_one_block_by_hand() -> None:
    """Linear(4, 8), ReLU, Linear(8, 4) on 16 rows of fp32.

    A row of 4 is 16 bytes, of 8 is 32: input and output 256, the hidden tensors 512.
    Saved: ReLU's output 512, which the second Linear reads too; the input, which is not the
    block's own. The first Linear's output and the block's own output are saved by nobody.
    Forward: the most at once is both hidden tensors, 1024, against 256 + 512 counted.
    A forward that keeps nothing has the same peak, against 256 counted.
    Gradients: (4·8 + 8 + 8·4 + 4) · 4 = 304.
    Backward: from 512 saved and d_out 256. The second Linear makes d_hidden 512 and its gradients
    128 + 16, then d_out goes; ReLU makes another 512: 512 + 512 + 512 + 144 = 1680. The first
    Linear makes 256 + 128 + 32 when saved and d_hidden have gone. The replay counts saved 512,
    d_out 256, the new d_in 256 and 304 of gradients: 1328, and 352 more.
    """
    torch.manual_seed(0)
    model = nn.Sequential(
        *[nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)) for _ in range(3)]
    )
    graph = profile(model, noise(16, 4), mean_square)
    found = layer(graph, "1")
    assert found.output_bytes == 256
    assert found.saved_bytes == 512
    assert found.input_saved
    assert not found.output_saved
    assert found.forward_transient_bytes == 1024 - 256 - 512
    assert found.drop_transient_bytes == 1024 - 256
    # When it runs again, the scalar that starts a backward is there as well.
    assert (found.first_transient_bytes, found.again_transient_bytes) == (0, 4)
    assert found.gradient_bytes == 304
    assert found.backward_transient_bytes == 1680 - 1328 + 4  # the scalar that starts a backward
    assert found.backward_overlap_bytes == 0
    # The whole: the input and the loss.
    assert graph.input_bytes == 256 + 4
    assert [layer.name for layer in graph.layers] == ["0", "1", "2", "loss"]


def test_what_is_saved_by_hand() -> None:
    """Which of input and output a block's backward reads, on 8 rows of 4 fp32: 128 bytes."""
    torch.manual_seed(0)

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.inner(x)  # type: ignore[no-any-return]

    blocks = {
        "tanh": nn.Sequential(nn.Linear(4, 4), nn.Tanh()),  # saves input and output
        "linear": nn.Sequential(nn.Linear(4, 4)),  # saves its input
        "scale": nn.Sequential(nn.Hardswish(), nn.ReLU()),  # hardswish its input, ReLU its output
        "softmax": nn.Sequential(nn.Softmax(-1)),  # its output
        "flatten": nn.Sequential(nn.Flatten()),  # nothing; the output is a view of the input
        "residual": Residual(),  # its input
    }
    model = nn.Sequential()
    for name, block in blocks.items():
        model.add_module(name, block)
    graph = profile(model, noise(8, 4), mean_square)
    seen = {
        name: (layer(graph, name).input_saved, layer(graph, name).output_saved) for name in blocks
    }
    assert seen == {
        "tanh": (True, True),
        "linear": (True, False),
        "scale": (True, True),
        "softmax": (False, True),
        "flatten": (False, False),
        "residual": (True, False),
    }
    assert {layer(graph, name).saved_bytes for name in blocks} == {0}
    assert {layer(graph, name).output_bytes for name in blocks} == {128}
    check_prediction(Case(model, noise(8, 4), mean_square), graph, 0.9, 0.0, loose=128)


# --- layers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "prefix"), [("gpt2", "transformer.h."), ("llama-float32", "model.layers.")]
)
def test_the_layers_of_a_transformer(name: str, prefix: str) -> None:
    graph = costs(name)
    names = [layer.name for layer in graph.layers]
    assert names == ["embedding", *[f"{prefix}{i}" for i in range(12)], "head"]
    assert [layer.recomputable for layer in graph.layers] == [False, *[True] * 12, False]
    assert graph.time_unit == "ms"
    assert graph.name == type(case(name).model).__name__
    head, embedding = graph.layers[-1], graph.layers[0]
    assert head.saved_bytes > 0
    assert head.output_bytes == 4  # the loss
    assert embedding.output_bytes == 4 * 64 * 32 * 4
    parameters = sum(p.numel() * p.element_size() for p in case(name).model.parameters())
    counted = sum(layer.gradient_bytes for layer in graph.layers)
    tied = 64 * 32 * 4 if name == "gpt2" else 0  # one gradient, made by the head's backward
    assert counted in (parameters, parameters + tied)


@pytest.mark.parametrize("name", CASES)
def test_identical_blocks_cost_the_same(name: str) -> None:
    graph = costs(name)
    blocks = [layer for layer in graph.layers if layer.recomputable]
    # The first convolution has other channels and nobody wants its input's gradient; without
    # gradients for the data, the first block of a Sequential differs from the rest.
    first = 0 if name in ("gpt2", "llama-float32", "llama-bfloat16") else 1
    # Nor is what is there when each first runs the same, and what no later one is handed.
    apart = ("name", "_", "first_transient_bytes", "beside_bytes")
    costs_of = {
        tuple(getattr(layer, field) for field in layer.__slots__ if field not in apart)
        for layer in blocks[first:]
    }
    assert len(costs_of) == 1


@pytest.mark.parametrize("name", CASES)
def test_times(name: str) -> None:
    for layer in costs(name).layers:
        assert layer.recompute_time is not None
        assert 0 <= layer.recompute_time <= layer.forward_time
        assert layer.forward_time > 0
        assert layer.backward_time > 0


def test_a_mask_of_ones_is_none_where_no_other_can_be_given() -> None:
    """What a batch has may be padded in the next, and is planned so; a model's own ones are not."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = RemBertConfig(
        **sizes, vocab_size=64, num_attention_heads=2, input_embedding_size=8, bos_token_id=0
    )
    model = RemBertForCausalLM(config).train()
    tokens = torch.ones(2, 32, dtype=torch.long)
    ones, padded = tokens.clone(), tokens.clone()
    padded[1, 30:] = 0
    batch = {"input_ids": tokens, "labels": tokens}
    found = bytes_of(profile(model, batch, fake=True))
    assert found == bytes_of(profile(model, batch))
    given = bytes_of(profile(model, {**batch, "attention_mask": ones}, fake=True))
    assert found != given == bytes_of(profile(model, {**batch, "attention_mask": padded}))


def test_fake_times_come_from_the_roofline() -> None:
    slow = Roofline(flops_per_second=1e9, bytes_per_second=1e9)
    fast = Roofline(flops_per_second=4e9, bytes_per_second=4e9)
    model, inputs = models.gpt2(4), models.batch()
    found = [profile(model, inputs, fake=True, roofline=line) for line in (slow, fast, fast)]
    assert found[1] == found[2]
    for a, b in zip(found[0].layers, found[1].layers, strict=True):
        assert a.forward_time == pytest.approx(4 * b.forward_time)
        assert a.backward_time == pytest.approx(4 * b.backward_time)
        assert b.recompute_time is not None
        assert b.recompute_time <= b.forward_time
    middle = found[0].layers[2]
    assert middle.backward_time > middle.forward_time


def test_a_linear_layer_on_the_roofline() -> None:
    """64 x 16 x 32 products and sums, 4·(64·16 + 64·32 + 16·32 + 32) bytes."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 16))
        x = torch.empty(64, 16)
    flops = Roofline(flops_per_second=1e9, bytes_per_second=1e30)
    moved = Roofline(flops_per_second=1e30, bytes_per_second=1e9)
    by_flops = profile(model, x, mean_square, roofline=flops).layers[0]
    by_bytes = profile(model, x, mean_square, roofline=moved).layers[0]
    assert by_flops.forward_time == pytest.approx(2 * 64 * 16 * 32 / 1e9 * 1e3)
    counted = 4 * (64 * 16 + 64 * 32 + 16 * 32 + 32)
    assert by_bytes.forward_time == pytest.approx(counted / 1e9 * 1e3)


def test_named_blocks() -> None:
    names = [f"transformer.h.{i}" for i in range(12)]
    this = case("gpt2")
    assert bytes_of(profile(this.model, this.inputs, blocks=names)) == bytes_of(costs("gpt2"))
    some = profile(this.model, this.inputs, blocks=names[2:9])
    assert [layer.name for layer in some.layers] == ["embedding", *names[2:9], "head"]
    check_keep_all("gpt2", some)


def test_named_blocks_of_a_sequential() -> None:
    this = case("sequential")
    names = [str(i) for i in range(2, 14)]
    graph = profile(this.model, this.inputs, this.loss_fn, blocks=names)
    assert [layer.name for layer in graph.layers] == ["embedding", *names, "loss"]
    assert not graph.layers[0].recomputable
    check_keep_all("sequential", graph)


def test_one_block() -> None:
    this = case("gpt2")
    graph = profile(this.model, this.inputs, blocks=["transformer.h.3"])
    assert [layer.name for layer in graph.layers] == ["embedding", "transformer.h.3", "head"]
    check_keep_all("gpt2", graph)


def test_a_whole_stack_as_one_block() -> None:
    model = nn.Sequential(models.mlp(), nn.Sequential(*[models.mlp() for _ in range(4)]))
    this = Case(model, noise(64, 16), mean_square)
    check_prediction(this, profile(this.model, this.inputs, mean_square), 0.9, 0.0)


def test_blocks_called_embedding_and_loss() -> None:
    model = nn.Sequential()
    for name in ("embedding", "head", "loss"):
        model.add_module(name, models.mlp())
    graph = profile(model, noise(64, 16), mean_square)
    assert [layer.name for layer in graph.layers] == ["embedding", "head", "loss", "(loss)"]
    check_prediction(Case(model, noise(64, 16), mean_square), graph, 0.0)


# --- inputs and losses --------------------------------------------------------------------------


class Scaled(nn.Module):
    """A stack that takes a tensor, or two, by position or by keyword."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(models.mlp() for _ in range(4))

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        if scale is not None:
            x = x * scale
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("kind", ["tensor", "tuple", "list", "dict"])
def test_inputs(kind: str) -> None:
    x = noise(64, 16)
    inputs: Any = {"tensor": x, "tuple": (x, x[:1] * 2), "list": [x], "dict": {"x": x}}[kind]
    this = Case(Scaled(), inputs, mean_square)
    graph = profile(this.model, inputs, mean_square)
    assert bytes_of(profile(this.model, inputs, mean_square, fake=True)) == bytes_of(graph)
    names = [layer.name for layer in graph.layers]
    assert names[-5:] == ["blocks.0", "blocks.1", "blocks.2", "blocks.3", "head"]
    check_prediction(this, graph, 0.9, 0.0)


def test_a_loss_function_for_a_transformer() -> None:
    inputs = {"input_ids": models.batch()["input_ids"]}
    this = Case(
        case("gpt2").model, inputs, lambda output: output.logits.float().logsumexp(-1).sum()
    )
    graph = profile(this.model, inputs, this.loss_fn)
    check_prediction(this, graph, 0.5, 0.0)


def test_an_output_that_is_a_dict_with_a_loss() -> None:
    class Model(Scaled):
        def forward(  # type: ignore[override]
            self, x: torch.Tensor, scale: torch.Tensor | None = None
        ) -> dict[str, torch.Tensor]:
            return {"loss": mean_square(super().forward(x, scale))}

    x = noise(64, 16)
    graph = profile(Model(), x)
    check_prediction(Case(Model(), x), graph, 0.0)


def test_a_loss_that_is_a_tuple_of_one_tensor() -> None:
    model = models.sequential(2)
    graph = profile(model, noise(8, 16), lambda output: output.sum().reshape(1))
    assert graph.layers[-1].output_bytes == 4


def test_an_attention_mask_is_an_input() -> None:
    inputs = {**models.batch(), "attention_mask": torch.ones(4, 64, dtype=torch.long)}
    inputs["attention_mask"][:2, :30] = 0
    made = 4 * 64 * 64 + 512  # counted until the end, though gone before the head's backward
    for name in ("gpt2", "llama-float32"):
        this = Case(case(name).model, inputs)
        check_prediction(this, profile(this.model, inputs), 0.6, 0.0, loose=made)


def test_an_input_that_requires_a_gradient() -> None:
    x = noise(64, 16).requires_grad_()
    this = Case(models.sequential(4), x, mean_square)
    graph = profile(this.model, x, mean_square)
    assert x.grad is None
    measured = measure(this.model, x, mean_square).peak_bytes
    assert measured <= solve(graph, budget=10**12).peak_bytes


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("length", [1, 5, 30])
@pytest.mark.parametrize("name", ["gpt2", "llama-bfloat16"])
def test_other_sizes(name: str, rows: int, length: int) -> None:
    """Small batches, where gradients and not activations set the peak."""
    model = models.gpt2(6) if name == "gpt2" else models.llama(torch.bfloat16, 6)
    this = Case(model, models.batch(rows, length))
    graph = profile(this.model, this.inputs)
    check_prediction(this, graph, 0.7, 0.0, loose=8192)


# --- what a model's own code holds on to --------------------------------------------------------


class Hoarder(nn.Module):
    """A model whose forward refers to a large tensor while its blocks run.

    Parameters
    ----------
    let_go
        "before" the blocks, "after" them, at the "end" of the forward (the head runs before), or
        it is "used" by the head.
    """

    def __init__(self, factor: int, let_go: str, block: str, depth: int = 5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.factor, self.let_go = factor, let_go
        self.embed = nn.Linear(16, 16)
        made: dict[str, Callable[[], nn.Module]] = {
            "mlp": models.mlp,
            "wide": Wide,
            "thin": lambda: models.thin(1)[0],
        }
        self.blocks = nn.ModuleList(made[block]() for _ in range(depth))
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        large = h.detach().repeat(self.factor, 1)
        extra = large.sum() * 0
        if self.let_go == "before":
            del large
        for block in self.blocks:
            h = block(h)
        if self.let_go == "after":
            del large
        h = self.head(h)
        if self.let_go == "used":
            extra = extra + large.mean()
        return h + extra  # type: ignore[no-any-return]


class Wide(nn.Module):
    """A block whose forward needs far more than it saves."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            mean = x.repeat(1, 24).exp().reshape(*x.shape, 24).mean(-1)
        return self.linear(x) + mean  # type: ignore[no-any-return]


@pytest.mark.parametrize("let_go", ["before", "after", "end", "used"])
@pytest.mark.parametrize("block", ["mlp", "wide", "thin"])
@pytest.mark.parametrize("factor", [1, 8, 64])
def test_large_locals_are_never_missed(factor: int, block: str, let_go: str) -> None:
    x = noise(128, 16)
    this = Case(Hoarder(factor, let_go, block), x, mean_square)
    graph = profile(this.model, x, mean_square)
    assert bytes_of(profile(this.model, x, mean_square, fake=True)) == bytes_of(graph)
    size = 128 * 16 * 4
    check_prediction(this, graph, 0.9, 0.7, 0.5, 0.0, loose=(factor + 2) * size)


@pytest.mark.parametrize("depth", [2, 3, 8])
@pytest.mark.parametrize("frozen", ["", "embed", "blocks", "blocks.0"])
@pytest.mark.parametrize("block", ["mlp", "wide"])
def test_large_locals_and_frozen_parts(block: str, frozen: str, depth: int) -> None:
    x = noise(128, 16)
    this = Case(Hoarder(8, "after", block, depth), x, mean_square)
    for name, parameter in this.model.named_parameters():
        if frozen and name.startswith(frozen):
            parameter.requires_grad_(False)
    graph = profile(this.model, x, mean_square)
    check_prediction(this, graph, 0.9, 0.7, 0.5, 0.0, loose=12 * 128 * 16 * 4)


def test_an_activation_that_the_model_holds() -> None:
    """The input of the blocks is used again after them."""

    class Skip(Scaled):
        def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
            h = x * 2
            return super().forward(h) + h

    x = noise(128, 16)
    this = Case(Skip(), x, mean_square)
    check_prediction(this, profile(this.model, x, mean_square), 0.9, 0.5, 0.0, loose=x.nbytes)


# --- nothing changes ----------------------------------------------------------------------------


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_the_model_is_left_alone(name: str, fake: bool) -> None:
    model = copy.deepcopy(case(name).model)
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = None if number % 2 else torch.full_like(parameter, 3)
    next(model.modules()).register_forward_hook(lambda *_: None)
    model.get_submodule(next(n for n, _ in model.named_children())).train(False)
    values = {n: t.clone() for n, t in model.state_dict().items()}
    keys = list(model.state_dict())
    gradients = [(p, p.grad) for p in model.parameters()]
    buffers = [(n, b, b.clone()) for n, b in model.named_buffers()]
    modules = [(m, m.training, dict(m.__dict__)) for m in model.modules()]
    flags = [p.requires_grad for p in model.parameters()]
    cache = getattr(getattr(model, "config", None), "use_cache", None)
    random = torch.get_rng_state()
    profile(model, case(name).inputs, case(name).loss_fn, fake=fake)
    assert torch.equal(torch.get_rng_state(), random)
    assert list(model.state_dict()) == keys
    assert_equal(dict(model.state_dict()), values)
    for parameter, gradient in gradients:
        assert parameter.grad is gradient
        assert gradient is None or bool((gradient == 3).all())
    assert [(n, id(b)) for n, b in model.named_buffers()] == [(n, id(b)) for n, b, _ in buffers]
    assert all(torch.equal(b, before) for _, b, before in buffers)
    for module, training, state in modules:
        assert module.training is training
        assert module.__dict__.keys() == state.keys()
        assert "forward" not in module.__dict__
        assert len(module._forward_hooks) == len(state["_forward_hooks"])
    assert [p.requires_grad for p in model.parameters()] == flags
    assert getattr(getattr(model, "config", None), "use_cache", None) is cache


def test_a_failing_profile_leaves_the_model_alone() -> None:
    model = copy.deepcopy(case("convolutions").model)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    with pytest.raises(RuntimeError):
        profile(model, noise(2, 5, 16, 16), mean_square)
    with pytest.raises(ValueError, match="the loss must be a scalar"):
        profile(model, case("convolutions").inputs, lambda output: output)
    assert_equal(dict(model.state_dict()), before)
    assert all("forward" not in m.__dict__ and not m._forward_hooks for m in model.modules())
    assert torch.is_grad_enabled()


def test_a_profile_does_not_depend_on_earlier_gradients() -> None:
    model = copy.deepcopy(case("gpt2").model)
    model(**models.batch()).loss.backward()
    assert bytes_of(profile(model, models.batch())) == bytes_of(costs("gpt2"))


def test_evaluation_mode() -> None:
    """Without dropout less is saved, and the prediction follows; it is said."""
    model = copy.deepcopy(case("gpt2").model).eval()
    with pytest.warns(UserWarning, match=r"^GPT2LMHeadModel is in eval mode, as from_pretrained"):
        graph = profile(model, models.batch())
    assert graph.layers[3].saved_bytes < costs("gpt2").layers[3].saved_bytes
    check_prediction(Case(model, models.batch()), graph, 0.5, 0.0)


def test_a_profile_goes_through_a_file(tmp_path: Any) -> None:
    costs("gpt2").save(tmp_path / "costs.json")
    assert CostGraph.load(tmp_path / "costs.json") == costs("gpt2")


# --- 70B ----------------------------------------------------------------------------------------


def test_llama_70b_without_its_memory() -> None:
    before = _resident()
    with torch.device("meta"):
        model = models.llama(
            torch.bfloat16,
            80,
            hidden_size=8192,
            intermediate_size=28672,
            num_attention_heads=64,
            num_key_value_heads=8,
            vocab_size=32000,
            max_position_embeddings=4096,
        )
    ids = torch.zeros(8, 4096, dtype=torch.long, device="meta")
    inputs = {"input_ids": ids, "labels": ids}
    graph = profile(model, inputs)
    assert len(graph) == 82
    keep_all = solve(graph, budget=10**15).keep_all_peak_bytes
    plan = solve(graph, budget=keep_all // 2)
    assert plan.status == "optimal"
    with apply(plan, model):
        measured = measure(model, inputs)
    assert measured.seconds is None
    assert measured.peak_bytes <= plan.peak_bytes <= keep_all // 2
    assert measured.peak_bytes == pytest.approx(plan.peak_bytes, rel=1e-4)
    assert measured.forwards == {name: plan.forwards[name] for name in measured.forwards}
    assert len(measured.forwards) == 80
    assert _resident() - before < 2 * 2**30


def _resident() -> int:
    """Most bytes that were ever resident."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class Masked(nn.Module):
    """Its blocks are handed what is added to their scores, of which autograd saves nothing."""

    def __init__(self, *, learned: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(16, 16)
        self.blocks = nn.ModuleList(Scores() for _ in range(3))
        self.head = nn.Linear(16, 4)
        self.bias = nn.Parameter(torch.ones(256)) if learned else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = x.new_zeros(256, 256).tril()
        if self.bias is not None:
            mask = mask + self.bias
        h = self.embed(x)
        for block in self.blocks:
            h = block(h, mask)
        return self.head(h)  # type: ignore[no-any-return]


class Scores(nn.Module):
    """A block that mixes rows by their products."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.linear(x) @ x.T + mask
        return scores.softmax(-1) @ x


@pytest.mark.parametrize("learned", [False, True])
def test_masks_are_held_by_who_starts_again(learned: bool) -> None:
    x = noise(256, 16)
    this = Case(Masked(learned=learned), x, mean_square)
    graph = profile(this.model, x, mean_square)
    assert [layer.beside_bytes for layer in graph.layers] == [0, 0, 0, 256 * 256 * 4, 0]
    check_prediction(this, graph, 0.9, 0.7, 0.5, 0.0)


def test_an_input_that_has_no_gradient() -> None:
    model = nn.Sequential(nn.Linear(2048, 16), *(models.mlp() for _ in range(3)))
    model[0].requires_grad_(False)
    x = noise(64, 2048)
    this = Case(model, x, mean_square)
    check_prediction(this, profile(model, x, mean_square, blocks=["1", "2", "3"]), 0.9)
