"""Small models with random weights, and what one training step of each gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from scheduler import CostGraph, InfeasibleBudget, Plan, solve
from scheduler.plans.policies import chosen
from scheduler.pytorch import Measurement, measure, profile
from solvers.schedule import Item, Items

Loss = Callable[[Any], Any] | None
VOCABULARY = 64
torch.set_num_threads(1)  # tiny operations: more threads only wait for each other


@dataclass(frozen=True)
class Case:
    """A model, a batch and a loss: all that a training step needs."""

    model: nn.Module
    inputs: Any
    loss_fn: Loss = None


def mlp(width: int = 16, hidden: int = 64, dropout: float = 0.1) -> nn.Sequential:
    """Linear, GELU, Linear, Dropout: a block whose inside is far larger than its boundary."""
    return nn.Sequential(
        nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width), nn.Dropout(dropout)
    )


def sequential(depth: int, width: int = 16, hidden: int = 64) -> nn.Sequential:
    """`depth` equal blocks with dropout."""
    torch.manual_seed(0)
    return nn.Sequential(*[mlp(width, hidden) for _ in range(depth)])


def thin(depth: int, width: int = 16) -> nn.Sequential:
    """Blocks that save next to nothing but their boundaries, so that plans nest deep."""
    torch.manual_seed(0)
    return nn.Sequential(
        *[nn.Sequential(nn.Linear(width, width), nn.Dropout(0.1), nn.Tanh()) for _ in range(depth)]
    )


def convolutions(depth: int, channels: int = 4) -> nn.Sequential:
    """Convolution, batch norm, ReLU: with buffers that a forward changes."""
    torch.manual_seed(0)
    sizes = [3, *[channels] * depth]
    return nn.Sequential(
        *[
            nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU())
            for a, b in pairwise(sizes)
        ]
    )


def gpt2(n_layer: int = 12, dropout: float = 0.1, **settings: Any) -> GPT2LMHeadModel:
    """A GPT-2 in training mode, without a generation cache."""
    config = GPT2Config(
        use_cache=settings.pop("use_cache", False),
        n_layer=n_layer,
        n_embd=32,
        n_head=2,
        n_positions=64,
        vocab_size=VOCABULARY,
        bos_token_id=0,
        eos_token_id=1,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        **settings,
    )
    torch.manual_seed(0)
    model: GPT2LMHeadModel = GPT2LMHeadModel(config).train()
    return model


def llama(
    dtype: torch.dtype = torch.float32, n_layer: int = 12, **settings: Any
) -> LlamaForCausalLM:
    """A Llama in training mode, built in `dtype`, without a generation cache."""
    config = LlamaConfig(
        **{
            "use_cache": False,
            "hidden_size": 32,
            "intermediate_size": 88,
            "num_hidden_layers": n_layer,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
            "vocab_size": VOCABULARY,
            "bos_token_id": 0,
            "eos_token_id": 1,
            **settings,
        }
    )
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        model: LlamaForCausalLM = LlamaForCausalLM(config).train()
        return model
    finally:
        torch.set_default_dtype(before)


def batch(rows: int = 4, length: int = 64, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Token ids that are their own labels."""
    made = torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(0))
    ids = made.to(device)
    return {"input_ids": ids, "labels": ids}


def noise(*shape: int) -> torch.Tensor:
    """Reproducible input."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def mean_square(output: torch.Tensor) -> torch.Tensor:
    """A loss for models without one."""
    return output.float().pow(2).mean()


@cache
def case(name: str) -> Case:
    """A model by name, shared by the tests: whoever changes it works on a deep copy."""
    if name == "sequential":
        return Case(sequential(16), noise(256, 16), mean_square)
    if name == "thin":
        return Case(thin(16), noise(1024, 16), mean_square)
    if name == "convolutions":
        return Case(convolutions(6), noise(4, 3, 16, 16), mean_square)
    if name == "gpt2":
        return Case(gpt2(), batch())
    return Case(llama(getattr(torch, name.removeprefix("llama-"))), batch())


@cache
def costs(name: str) -> CostGraph:
    """The real profile of a case."""
    this = case(name)
    return profile(this.model, this.inputs, this.loss_fn)


@cache
def untouched(name: str) -> tuple[dict[str, torch.Tensor], Measurement]:
    """Gradients and measurement of a case without a plan."""
    this = case(name)
    found = gradients(this.model, this.inputs, this.loss_fn)
    return found, measure(this.model, this.inputs, this.loss_fn)


def run(model: nn.Module, inputs: Any) -> Any:
    """Call a model with a tensor, a tuple or a dict."""
    if isinstance(inputs, torch.Tensor):
        return model(inputs)
    return model(**inputs) if isinstance(inputs, dict) else model(*inputs)


def without_cache(model: nn.Module) -> None:
    """Switch the generation cache off, whose keys and values a step without a plan keeps."""
    config = getattr(model, "config", None)
    if config is not None:
        config.use_cache = False


def gradients(
    model: nn.Module, inputs: Any, loss_fn: Loss = None, seed: int = 1
) -> dict[str, torch.Tensor]:
    """Gradients of one step by parameter, from a seeded start; the model's own are cleared."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    output = run(model, inputs)
    (loss_fn(output) if loss_fn else output.loss).backward()
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """The same tensors, bit by bit."""
    assert found.keys() == expected.keys()
    different = [name for name in expected if not torch.equal(found[name], expected[name])]
    assert different == []


def smallest_budget(layers: CostGraph) -> int:
    """The smallest budget, in bytes, that has a plan."""
    try:
        solve(layers, budget="1B")
    except InfeasibleBudget as error:
        return error.smallest_budget_bytes
    raise AssertionError("one byte is enough")


def plan_of(layers: CostGraph, items: Sequence[Item]) -> Plan:
    """The plan with these items, replayed on the costs."""
    chain, ticks, schedule = layers.to_chain(), layers.ticks_per_unit, Items(tuple(items))
    done, everything = chain.replay(schedule), chain.replay(chain.keep_all())
    return Plan(
        layers.names,
        schedule,
        budget_bytes=done.peak_bytes,
        peak_bytes=done.peak_bytes,
        time=done.time / ticks,
        keep_all_peak_bytes=everything.peak_bytes,
        keep_all_time=everything.time / ticks,
        time_unit=layers.time_unit,
        method="optimal",
        status="feasible",
        lower_bound_time=0,
        costs_sha256=layers.sha256,
        **chosen(layers, schedule.options()),
        _costs=layers,
    )


def bytes_of(layers: CostGraph) -> list[dict[str, Any]]:
    """Every field of the graph and its layers that is not a time."""
    records = [
        {key: value for key, value in asdict(layer).items() if "time" not in key}
        for layer in layers.layers
    ]
    return [{"input_bytes": layers.input_bytes}, *records]
