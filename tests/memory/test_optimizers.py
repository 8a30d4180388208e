"""What optimizers hold of a tensor, against the libraries that have them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from transformers import Adafactor, AutoConfig, AutoModelForCausalLM
from transformers.training_args import OptimizerNames

from scheduler.memory import fit, load_shape, training_state
from scheduler.memory.fitting.trained import (
    elements,
    head_tables,
    matrices,
    tables,
    trained_tensors,
)
from scheduler.memory.shape.load import shape_names
from scheduler.memory.state.optimizers import OPTIMIZERS, known_name, optimizer_of
from scheduler.memory.state.sizes import PRECISIONS
from scheduler.pytorch.fitting.held import held_state, named_moments

MIXED, FP32, BF16 = (PRECISIONS[name] for name in ("bf16-mixed", "fp32", "bf16"))
SIZES = {
    "vocab_size": 1100,
    "hidden_size": 72,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": None,
}


@pytest.mark.parametrize(
    ("spec", "dims", "sizes", "held"),
    [
        ("adamw", (3, 5), MIXED, 8 * 15),
        ("adamw", (3, 5), BF16, 4 * 15),
        ("muon", (3, 5), MIXED, 4 * 15),
        ("muon", (15,), MIXED, 8 * 15),
        ("muon", (2, 3, 5), MIXED, 8 * 30),
        ("adafactor", (2, 3, 5), BF16, 4 * 2 * 8),
        ("adafactor-momentum", (3, 5), BF16, 4 * (8 + 15)),
        # As seen in the state of bitsandbytes 0.50: 8 bits, blocks of 256, from 4096 on.
        ("adam-8bit", (4095,), BF16, 8 * 4095),
        ("adam-8bit", (5000,), BF16, 2 * (5000 + 4 * 20)),
        ("lion-8bit", (200_000,), BF16, 200_000 + 4 * 782),
        ("lion-8bit", (1000,), BF16, 4000),
        ("lion-32bit", (5000,), BF16, 20_000),
        ("ademamix-8bit", (5000,), BF16, 3 * (5000 + 4 * 20)),
        ("adam-4bit", (6400,), BF16, 2 * (3200 + 4 * 50)),
        # In pages: the scales alone, from 100,000 on.
        ("paged-adam", (99_999,), BF16, 8 * 99_999),
        ("paged-adam", (100_000,), BF16, 0),
        ("paged-adam-8bit", (200_000,), BF16, 2 * 4 * 782),
        ("paged-lion-8bit", (5000,), BF16, 5000 + 4 * 20),
        # As seen in the state of galore_torch 1.0 and apollo_torch 1.0.3.
        ("galore,rank=8", (64, 96), BF16, 4096),
        ("galore,rank=8", (96, 64), FP32, 22_528),
        ("galore-adafactor,rank=8", (64, 96), BF16, 16_800),
        ("galore-8bit,rank=64", (64, 128), BF16, 2 * (8192 + 4 * 32) + 2 * 64 * 64),
        ("apollo,rank=8", (96, 64), FP32, 8192),
        ("apollo,rank=8", (64, 96), BF16, 4096),
        ("apollo-mini", (64, 96), BF16, 2 * (64 + 2 * 96)),
        ("galore,rank=100", (64, 96), BF16, 2 * 64 * 64 + 4 * 64 * 96),
        ("galore", (96,), BF16, 4 * 96),
        # Sides beyond the limit have no covariance (SOAP), or are cut into blocks (Shampoo).
        ("soap", (30, 50), MIXED, 8 * 1500 + 8 * (900 + 2500)),
        ("soap", (30, 10_001), MIXED, 8 * 300_030 + 8 * 900),
        ("soap,max_precond_dim=40", (30, 50), MIXED, 8 * 1500 + 8 * 900),
        ("soap", (50,), MIXED, 8 * 50),
        ("shampoo", (2048, 1024), FP32, 8 * 2048 * 1024 + 16 * 2048 * 1024),
        ("shampoo,max_preconditioner_dim=4", (6, 5), FP32, 8 * 30 + 8 * (2 * 20 + 2 * 17)),
        ("shampoo", (30,), FP32, 8 * 30 + 8 * 900),
    ],
)
def test_bytes_of_a_tensor(spec: str, dims: tuple[int, ...], sizes: Any, held: int) -> None:
    assert optimizer_of(spec).bytes_of(dims, sizes) == held


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("adamw", torch.optim.AdamW),
        ("sgd", torch.optim.SGD),
        ("sgd-momentum", lambda ps: torch.optim.SGD(ps, momentum=0.9)),
        ("adagrad", torch.optim.Adagrad),
        ("rmsprop", torch.optim.RMSprop),
        ("adafactor", torch.optim.Adafactor),
        ("adafactor", Adafactor),
        ("adafactor-momentum", partial(Adafactor, beta1=0.9)),
        ("muon", lambda ps: torch.optim.Muon([p for p in ps if p.dim() == 2])),
    ],
)
def test_as_the_real_one_holds(name: str, make: Any, dtype: torch.dtype) -> None:
    """After a step, but for what it counts in single numbers."""
    weights = [nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in ((6, 10), (7,))]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer = make(weights)
    optimizer.step()
    sizes = BF16 if dtype == torch.bfloat16 else FP32
    for weight in optimizer.state:
        state = [v for v in optimizer.state[weight].values() if isinstance(v, torch.Tensor)]
        real = sum(v.nbytes for v in state if v.numel() > 1)
        ours = optimizer_of(name).bytes_of(tuple(weight.shape), sizes)
        if isinstance(optimizer, torch.optim.Adafactor) and dtype == torch.bfloat16:
            real *= (
                2  # torch's keeps the statistics of bf16 weights in bf16, transformers' does not
            )
        # torch's Adagrad sums in fp32, whatever the weights are.
        assert ours == real or name == "adagrad"


def test_names_of_transformers_and_of_classes() -> None:
    known = {known_name(name.value) for name in OptimizerNames}
    unknown = {name.value for name in OptimizerNames if known_name(name.value) is None}
    assert unknown == {
        *("adamw_anyprecision", "adalomo", "lomo", "grokadamw", "stable_adamw"),
        *("rmsprop_bnb", "rmsprop_bnb_8bit", "rmsprop_bnb_32bit"),
    }
    own = {"adam", "sgd-momentum", "muon", "adafactor-momentum", "apollo-mini", "soap", "shampoo"}
    assert {*OPTIMIZERS} - known == own - {"sgd-momentum"} | {"lion"}
    for name, meant in (("PagedAdamW8bit", "paged-adam-8bit"), ("Lion8bit", "lion-8bit")):
        assert known_name(name) == meant
    state = training_state(10**9, optimizer="paged_adamw_8bit")
    assert state.recipe == "paged-adam-8bit, bf16-mixed"
    assert state == training_state(10**9, optimizer="paged-adam-8bit")
    assert fit(
        "gpt2", optimizer="galore_adamw, rank=64", search=False
    ).training.recipe.optimizer == ("galore,rank=64")


@pytest.mark.parametrize("name", shape_names())
def test_tensors_are_all_of_a_shape(name: str) -> None:
    shape = load_shape(name)
    whole = matrices(shape), (*tables(shape), *head_tables(shape)), shape.parameters
    for optimizer in OPTIMIZERS.values():
        tensors, left = trained_tensors(shape, *whole, optimizer)
        assert elements(tensors) + left == shape.parameters
    tensors, _ = trained_tensors(shape, *whole, OPTIMIZERS["adafactor"])
    factored = sum(
        count * OPTIMIZERS["adafactor"].bytes_of(d, MIXED) for d, count in tensors.items()
    )
    # Which has apart what is one tensor in transformers, and knows shared gates.
    assert 0.7 < factored / (4 * shape.factored_statistics) < 1.01


@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_on_paper_as_on_the_model(kind: str) -> None:
    config = AutoConfig.for_model(kind, **SIZES)
    with torch.device("meta"):
        made: Any = AutoModelForCausalLM  # parts of transformers carry no types
        model = made.from_config(config)
    shape = load_shape(config)
    for name in [*OPTIMIZERS, "galore,rank=4", "soap,max_precond_dim=75"]:
        on_paper = fit(shape, sequence=8, search=False, optimizer=name, precision="fp32").state
        assert named_moments(model, name) == on_paper.moments_bytes, name


def test_an_optimizer_that_needs_its_kernels_is_known_by_name() -> None:
    """As Trainer makes those of bitsandbytes: by arguments; pages are not to be made for it."""

    class AdamW(torch.optim.SGD):
        args = type("Args", (), {"optim_bits": 8})
        is_paged = True

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            raise RuntimeError("not to be run")

    model = nn.Sequential(nn.Embedding(1000, 100), nn.Linear(100, 1001))
    state, _ = held_state(model, AdamW(model.parameters()))
    scales = [-(-n // 256) for n in (100_000, 100_100)]
    assert state.moments_bytes == 2 * 4 * (sum(scales) + 1001)


class Projection:
    def __init__(self, matrix: torch.Tensor) -> None:
        self.matrix = matrix


def test_projections_are_held_in_objects() -> None:
    class LowRank(torch.optim.SGD):
        def __init__(self, params: Any, rank: int) -> None:
            super().__init__(params)
            self.rank = rank

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p] = {"projector": Projection(torch.empty(self.rank, 10))}

    model = nn.Linear(10, 10, bias=False)
    optimizer = LowRank(model.parameters(), rank=4)
    assert held_state(model, optimizer)[0].moments_bytes == 160
    optimizer.step()
    assert held_state(model, optimizer)[0].moments_bytes == 160
