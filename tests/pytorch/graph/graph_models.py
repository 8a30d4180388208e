"""Small models that are graphs, with dropout, and plans for them made by chance."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from scheduler import CostGraph
from scheduler.pytorch import Measurement, TracedGraph, apply_graph, measure, profile_graph, trace
from solvers.graph.problem import LayerGraph
from solvers.graph.schedule import Actions, LayerAction
from solvers.replay import Replay
from solvers.schedule import Backward, Forward
from tests.pytorch.models import assert_equal, noise

TOKENS = 50


@dataclass(frozen=True)
class GraphCase:
    """A model, a batch and a loss; `outside`: the model's output is not the loss itself."""

    model: Any  # an nn.Module, whose parts the tests name
    inputs: Any
    loss_fn: Callable[[Any], Any]
    outside: bool = False
    leaves: tuple[str, ...] | None = None


class UNet(nn.Module):
    """Down, across, up: the features of each level are joined again by concatenation."""

    def __init__(self, channels: int = 8, dropout: float = 0.1) -> None:
        super().__init__()
        c = channels
        self.down1, self.down2 = _convolutions(3, c, dropout), _convolutions(c, 2 * c, dropout)
        self.middle = _convolutions(2 * c, 4 * c, dropout)
        self.up2, self.up1 = _convolutions(6 * c, 2 * c, dropout), _convolutions(3 * c, c, dropout)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Conv2d(c, 1, 1)

    def forward(self, image: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        one = self.down1(image)
        two = self.down2(self.pool(one))
        low = self.middle(self.pool(two))
        low = self.up2(torch.cat([F.interpolate(low, scale_factor=2.0), two], 1))
        low = self.up1(torch.cat([F.interpolate(low, scale_factor=2.0), one], 1))
        return F.mse_loss(self.head(low), target)


def _convolutions(a: int, b: int, dropout: float) -> nn.Sequential:
    first, second = nn.Conv2d(a, b, 3, padding=1), nn.Conv2d(b, b, 3, padding=1)
    return nn.Sequential(first, nn.GELU(), nn.Dropout(dropout), second)


class DenseNet(nn.Module):
    """Each layer reads all before it, concatenated; its batch norm counts each batch once."""

    def __init__(self, layers: int = 5, growth: int = 8, dropout: float = 0.1) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, growth, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(growth * i),
                nn.ReLU(),
                nn.Conv2d(growth * i, growth, 3, padding=1, bias=False),
                nn.Dropout(dropout),
            )
            for i in range(1, layers + 1)
        )
        self.head = nn.Linear(growth * (layers + 1), 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        made = [self.stem(image)]
        for layer in self.layers:
            made.append(layer(torch.cat(made, 1)))
        result: torch.Tensor = self.head(torch.cat(made, 1).mean((2, 3)))
        return result


class ResNet(nn.Module):
    """Skips around two convolutions each; one activation module serves twice in a block."""

    def __init__(
        self, blocks: int = 2, channels: int = 8, dropout: float = 0.1, in_place: bool = False
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.Sequential(*[Residual(channels, dropout, in_place) for _ in range(blocks)])
        self.head = nn.Linear(channels, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.blocks(self.stem(image)).mean((2, 3)))
        return result


class Residual(nn.Module):
    def __init__(self, channels: int, dropout: float, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.relu, self.drop = nn.ReLU(in_place), nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = self.drop(self.relu(self.norm1(self.conv1(x))))
        inside = self.norm2(self.conv2(inside))
        if self.in_place:
            inside += x
        else:
            inside = x + inside
        result: torch.Tensor = self.relu(inside)
        return result


class T5(nn.Module):
    """Encoder and decoder; one weight for both embeddings and the head.

    Every decoder block reads what the encoder made, and reads it twice.
    """

    def __init__(self, blocks: int = 3, width: int = 64, dropout: float = 0.1) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, width)
        self.encoder = nn.ModuleList(T5Block(width, dropout) for _ in range(blocks))
        self.decoder = nn.ModuleList(T5Block(width, dropout, True) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, TOKENS, bias=False)
        self.head.weight = self.embed.weight

    def forward(
        self, source: torch.Tensor, given: torch.Tensor, labels: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        memory = self.embed(source)
        for block in self.encoder:
            memory = block(memory)
        x = self.embed(given)
        for block in self.decoder:
            x = block(x, memory)
        logits = self.head(self.norm(x))
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten())}


class T5Block(nn.Module):
    def __init__(self, width: int, dropout: float, cross: bool = False) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, width)
        self.qkv = nn.Linear(width, 3 * width)
        if cross:
            self.cross_norm, self.cross_out = nn.LayerNorm(width), nn.Linear(width, width)
            self.q, self.k = nn.Linear(width, width), nn.Linear(width, width)
            self.v = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
        )
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.drop(self.out(_attend(q, k, v)))
        if memory is not None:
            q = self.q(self.cross_norm(x))
            x = x + self.drop(self.cross_out(_attend(q, self.k(memory), self.v(memory))))
        result: torch.Tensor = x + self.drop(self.mlp(x))
        return result


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]


def tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, TOKENS, shape, generator=torch.Generator().manual_seed(seed))


def itself(output: torch.Tensor) -> torch.Tensor:
    return output


def mean_square(output: torch.Tensor) -> torch.Tensor:
    return output.pow(2).mean()


def named_loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


@cache
def graph_case(name: str) -> GraphCase:
    """A model by name, with "-blocks" as leaves or "-inplace", shared by the tests.

    Whoever changes it works on a deep copy.
    """
    torch.manual_seed(0)
    kind, _, blocks = name.partition("-")
    leaves: tuple[str, ...]
    if kind == "unet":
        leaves = ("down1", "down2", "middle", "up2", "up1")
        inputs: Any = (noise(4, 3, 64, 64), noise(4, 1, 64, 64))
        return GraphCase(UNet(), inputs, itself, False, leaves if blocks else None)
    if kind == "densenet":
        leaves = tuple(f"layers.{i}" for i in range(5))
        inputs = noise(8, 3, 32, 32)
        return GraphCase(DenseNet(), inputs, mean_square, True, leaves if blocks else None)
    if kind == "resnet":
        return GraphCase(ResNet(in_place=bool(blocks)), noise(8, 3, 32, 32), mean_square, True)
    inputs = (tokens(16, 64), tokens(16, 64, seed=1), tokens(16, 64, seed=2))
    leaves = tuple(f"{stack}.{i}" for stack in ("encoder", "decoder") for i in range(3))
    return GraphCase(T5(), inputs, named_loss, False, leaves if blocks else None)


@cache
def traced(name: str) -> TracedGraph:
    case = graph_case(name)
    return trace(case.model, case.inputs, case.leaves)


@cache
def graph_costs(name: str) -> CostGraph:
    case = graph_case(name)
    return profile_graph(
        case.model, case.inputs, case.loss_fn if case.outside else None, case.leaves
    )


def keep_all(graph: LayerGraph | TracedGraph) -> list[LayerAction]:
    n = len(graph)
    return [
        *(Forward(i, True) for i in range(n)),
        *(Backward(i) for i in reversed(range(n))),
    ]


def random_plan(graph: LayerGraph, share: float, seed: int) -> list[LayerAction]:
    """A plan of class "forward" in which about `share` of what could be dropped is.

    Whatever a backward or a recomputation reads is, by chance, either still there or made again,
    and so on for what that reads; each layer at most once between two backwards.
    """
    rng = random.Random(seed)
    n = len(graph)
    free = {i for i in range(n - 1) if graph.layers[i].recomputable}
    kept = {i for i in range(n) if i not in free or rng.random() >= share}
    actions: list[LayerAction] = [Forward(i, i in kept) for i in range(n)]

    def read(u: int, fresh: set[int]) -> None:
        if u in free and u not in fresh and rng.random() < share:
            run(u, u not in kept and rng.random() < 0.5, fresh)

    def run(u: int, keep: bool, fresh: set[int]) -> None:
        fresh.add(u)
        for v in graph.inputs[u]:
            read(v, fresh)
        if keep:
            kept.add(u)
        actions.append(Forward(u, keep))

    for i in reversed(range(n)):
        fresh: set[int] = set()
        if i not in kept:
            run(i, True, fresh)
        elif i < n - 1:
            for v in graph.inputs[i] if graph.layers[i].input_saved else ():
                read(v, fresh)
            if graph.layers[i].output_saved:
                read(i, fresh)
        actions.append(Backward(i))
    return actions


def step(model: nn.Module, case: GraphCase, seed: int = 1) -> dict[str, torch.Tensor]:
    """Everything that one training step leaves: gradients, buffers, loss and random state."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    inputs = case.inputs if isinstance(case.inputs, tuple) else (case.inputs,)
    loss = case.loss_fn(model(*inputs))
    loss.backward()
    found = {f"d {n}": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    found |= {f"buffer {name}": buffer.clone() for name, buffer in model.named_buffers()}
    model.zero_grad(set_to_none=True)
    return {**found, "loss": loss.detach(), "random state": torch.get_rng_state()}


@cache
def plain_step(name: str) -> dict[str, torch.Tensor]:
    case = graph_case(name)
    return step(copy.deepcopy(case.model), case)


@dataclass(frozen=True)
class Ran:
    """A plan's step: what it leaves, its measurement, its forwards, and what was predicted."""

    left: dict[str, torch.Tensor]
    measured: Measurement
    forwards: dict[str, int]
    predicted: Replay


def run_plan(name: str, actions: list[LayerAction]) -> Ran:
    """Apply a plan to a copy of a case's model, measure it and run one step."""
    case, graph = graph_case(name), traced(name)
    model = copy.deepcopy(case.model)
    modules = sorted({name for node in graph.nodes for name in node.modules})
    predicted = graph_costs(name).to_layer_graph().replay(Actions(tuple(actions)))
    with apply_graph(actions, graph, model):
        measured = measure(model, case.inputs, case.loss_fn, modules)
    model = copy.deepcopy(case.model)
    with apply_graph(actions, graph, model) as handle:
        left = step(model, case)
        return Ran(left, measured, handle.forwards, predicted)


def check_plans(case: GraphCase) -> list[str]:
    """Trace, and train under a few plans as without, to the last bit; the layers' names."""
    model = case.model
    graph = trace(model, case.inputs, case.leaves)
    costs = profile_graph(model, case.inputs, case.loss_fn, case.leaves).to_layer_graph()
    expected = step(copy.deepcopy(model), case)
    for plan in (keep_all(costs), *(random_plan(costs, 0.6, seed) for seed in range(3))):
        with apply_graph(plan, graph, copied := copy.deepcopy(model)):
            assert_equal(step(copied, case), expected)
    return list(graph.names)
