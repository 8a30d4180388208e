"""Small models drawn from a grammar: what people do in a forward, put together at random.

A draw is words alone, so that it can be printed, and made smaller word by word: the parts of each
kind of block, the stack of blocks, and what is true of the whole model.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from tests.pytorch.parts import (
    BUFFERS,
    LAYERS,
    NORMS,
    STATES,
    WEIGHTED,
    WIDTH,
    Attention,
    Tally,
    change,
    layer,
)

SHAPES = {"rows": (64, WIDTH), "tokens": (4, 12, WIDTH), "image": (4, WIDTH, 6, 6)}
CHANGES = [*STATES, *BUFFERS, "created"]
HOLDERS = ["cell", "block", "tally"]
EXTRAS = {
    "output": ["pair", "none", "one", "dict", "dataclass"],
    "hook": ["forward", "count", "inner", "pre", "kwargs", "backward", "inner_backward", "tensor"],
    "give": ["mask", "bias", "scale", "record", "carry"],
    "share": ["block", "part", "weight"],
    "frozen": ["first", "most", "even", "vectors"],
    "eval": ["norms", "dropout", "first"],
    "with": ["residual", "autocast", "warm", "loss", "grads", "state", "read", "ids"],
}
ODDS = {"output": 0.25, "hook": 0.3, "give": 0.3, "share": 0.12, "frozen": 0.15, "eval": 0.12}


@dataclass(frozen=True)
class Draw:
    """The words of a model; `seed` gives weights, batch and plans."""

    seed: int
    domain: str
    kinds: tuple[tuple[str, ...], ...]
    stack: tuple[int, ...]
    extras: tuple[str, ...]

    def has(self, extra: str) -> bool:
        return extra in self.extras


@dataclass
class Output:
    """What a block or a model hands on as a dataclass."""

    state: torch.Tensor
    other: torch.Tensor | None = None
    loss: torch.Tensor | None = None


class Cell(nn.Module):
    """A part of a block that holds state."""


class Block(nn.Module):
    """Layers and changes of state in a row, with a residual around them."""

    def __init__(self, parts: Sequence[str], draw: Draw, tally: Tally) -> None:
        super().__init__()
        self.cell, self.tally = Cell(), tally
        self.words = tuple(parts)
        self.layers = nn.ModuleDict()
        self.output = next((e[7:] for e in draw.extras if e.startswith("output=")), "tensor")
        self.residual = draw.has("with=residual")
        self.hooked = 0
        for i, part in enumerate(parts):
            name, _, where = part.partition("@")
            holder = self.holder(where)
            if not where:
                self.layers[str(i)] = layer(name, draw.domain)
            elif name in BUFFERS and isinstance(holder, nn.Module):
                holder.register_buffer(name, BUFFERS[name]())
            elif name != "created":
                setattr(holder, name, (STATES | BUFFERS)[name]())

    def holder(self, where: str) -> Any:
        return {"cell": self.cell, "block": self, "tally": self.tally, "": None}[where]

    def forward(
        self,
        x: torch.Tensor,
        mask: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        scale: float = 1.0,
        record: dict[str, Any] | None = None,
        carry: dict[str, Any] | None = None,
    ) -> Any:
        start, weights = x, None
        for i, part in enumerate(self.words):
            name, _, where = part.partition("@")
            if where:
                x = change(name, self.holder(where), x)
            elif isinstance(self.layers[str(i)], Attention):
                x, weights = self.layers[str(i)](x, mask, bias)
            else:
                x = self.layers[str(i)](x)
        if mask is not None and x.dim() != 3:
            x = x * mask.reshape(-1, *[1] * (x.dim() - 1))
        if bias is not None and weights is None:
            x = x + bias.mean()
        if record is not None:
            record["runs"] = record.get("runs", 0) + 1
        if carry is not None:  # what another block left there, with its gradient
            x = x + 0.1 * carry["x"] if "x" in carry else x
            carry["x"] = x
        x = (start + x if self.residual else x) * scale
        other = x.mean(-1) if weights is None else weights
        if self.output == "dict":
            return {"state": x, "other": other}
        if self.output == "dataclass":
            return Output(x, other)
        return {"pair": (x, other), "none": (x, None), "one": (x,), "tensor": x}[self.output]


class Other(Block):
    """A second kind of block."""


class Model(nn.Module):
    """An embedding, a stack of blocks, and a head that knows its loss."""

    def __init__(self, draw: Draw) -> None:
        super().__init__()
        self.tally, self.given = Tally(), [e[5:] for e in draw.extras if e.startswith("give=")]
        self.reads, self.loss = draw.has("with=read"), draw.has("with=loss")
        self.embed = (
            nn.Embedding(16, WIDTH) if draw.has("with=ids") else layer("linear", draw.domain)
        )
        self.blocks = nn.ModuleList(blocks(draw, self.tally))
        self.head = layer("linear", draw.domain)
        self.bias = nn.Parameter(torch.zeros(1, 1, 12, 12))
        self.steps = 0 if draw.has("with=state") else None

    def forward(self, x: Any, mask: torch.Tensor | None = None) -> Any:
        self.tally.relay = None
        if self.steps is not None:
            self.steps += 1
        everything: dict[str, Any] = {
            "mask": mask,
            "bias": self.bias * 2,
            "scale": 1.5,
            "record": {},
            "carry": {},
        }
        given = {name: everything[name] for name in self.given}
        x, read = self.embed(x) * (1 + 0.1 / (self.steps or 1)), []
        for block in self.blocks:
            found = block(x, **given)
            if isinstance(found, dict):
                x, other = found["state"], found["other"]
            elif isinstance(found, Output):
                x, other = found.state, found.other
            else:
                x, other = found if isinstance(found, tuple) else (found, None), None
                if isinstance(x, tuple):
                    x, other = x[0], x[1] if len(x) > 1 else None
            if self.reads and other is not None:
                read.append(other.float().mean())
        x = self.head(x)
        x = x + sum(read) if read else x
        return Output(x, loss=loss_of(x)) if self.loss else x


def loss_of(output: Any) -> torch.Tensor:
    loss: torch.Tensor = output.float().pow(2).mean()
    return loss


def scaled(module: nn.Module, args: Any, output: Any) -> Any:
    return output * 1.1 if isinstance(output, torch.Tensor) else None


def counted(module: Any, *_: Any) -> None:
    module.hooked = getattr(module, "hooked", 0) + 1


def shifted(module: nn.Module, args: Any) -> Any:
    return (args[0] + 0.1, *args[1:])


def shifted_with(module: nn.Module, args: Any, kwargs: Any) -> Any:
    return (args[0] + 0.1, *args[1:]), kwargs


def halved(module: Any, inward: Any, outward: Any) -> Any:
    counted(module)
    return tuple(g if g is None else g * 0.5 for g in inward)


def tensor_hook(module: Any, args: Any) -> Any:
    x = args[0] * 1.0
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient * 2)
    return (x, *args[1:])


def blocks(draw: Draw, tally: Tally) -> list[nn.Module]:
    """The stack, with its hooks and what its blocks share."""
    made = [(Block, Other)[kind](draw.kinds[kind], draw, tally) for kind in draw.stack]
    twins = [b for b in made[1:] if b.words == made[0].words]
    for twin in twins[:1]:
        if draw.has("share=block"):
            made[made.index(twin)] = made[0]
        for key in list(twin.layers)[:1]:
            if draw.has("share=part"):
                twin.layers[key] = made[0].layers[key]
        if draw.has("share=weight"):
            for name, child in twin.named_modules():
                if isinstance(child, nn.Linear) and type(child) is nn.Linear:
                    child.weight = cast(nn.Linear, made[0].get_submodule(name)).weight
    for block in dict.fromkeys(made):
        inner: Any = next(iter(block.layers.values()), block.cell)
        for hook in (e[5:] for e in draw.extras if e.startswith("hook=")):
            if hook == "kwargs":
                block.register_forward_pre_hook(shifted_with, with_kwargs=True)
            elif hook in ("forward", "count"):
                block.register_forward_hook(scaled if hook == "forward" else counted)
            elif hook == "inner":
                inner.register_forward_hook(counted)
            elif hook in ("pre", "tensor"):
                block.register_forward_pre_hook(shifted if hook == "pre" else tensor_hook)
            else:
                (block if hook == "backward" else inner).register_full_backward_hook(halved)
    return list(made)


def build(draw: Draw) -> tuple[nn.Module, Any]:
    """The model, in its modes, and its batch: equal each time."""
    torch.manual_seed(draw.seed)
    if "shell=sequential" in draw.extras:
        ends = [layer("linear", draw.domain) for _ in range(2)]
        model: nn.Module = nn.Sequential(ends[0], *blocks(draw, Tally()), ends[1])
    else:
        model = Model(draw)
    stack = [m for m in model.modules() if isinstance(m, Block)]
    for parameter in model.parameters():
        if parameter.dim() <= 1 and draw.has("frozen=vectors"):
            parameter.requires_grad_(False)
    for i, block in enumerate(stack):
        frozen = {"first": i == 0, "even": i % 2 == 0, "most": i < len(stack) - 1}
        if any(there and draw.has(f"frozen={where}") for where, there in frozen.items()):
            block.requires_grad_(False)
    for module in model.modules():
        norm = isinstance(module, nn.modules.batchnorm._NormBase) and draw.has("eval=norms")
        drop = isinstance(module, nn.Dropout) and draw.has("eval=dropout")
        if norm or drop or (module is stack[0] and draw.has("eval=first")):
            module.eval()
    shape = SHAPES[draw.domain]
    x = torch.randn(shape, requires_grad=draw.has("with=grads"))
    if draw.has("with=ids") and not isinstance(model, nn.Sequential):
        x = torch.randint(0, 16, shape[:-1])
    if draw.has("give=mask"):
        return model, {"x": x, "mask": torch.rand(shape[: 1 + (draw.domain == "tokens")]) > 0.2}
    return model, x


def draw(seed: int, attempt: int = 0) -> Draw:
    """The draw of a seed; another one where an earlier attempt gave a model that does not train."""
    r = random.Random(f"{seed} {attempt}")
    domain = r.choice(list(SHAPES))
    cores = [*WEIGHTED, *["mlp", "linear"] * 4]
    cores += ["attention", "fused"] * (3 if domain == "tokens" else 0)
    kinds = []
    for _ in range(2 if r.random() < 0.3 else 1):
        parts = [r.choice(cores)]
        parts += r.choices([*NORMS, "layernorm", *LAYERS, "linear"], k=r.choice([0, 1, 1, 2]))
        for name in r.choices(CHANGES, k=r.choice([0, 0, 1, 1, 2])):
            # Only the model knows when a step begins, and clears what one block left for another.
            parts.append(f"{name}@{'tally' if name == 'relay' else r.choice(HOLDERS)}")
        kinds.append(tuple(r.sample(parts, len(parts))))
    stack = tuple(r.randrange(len(kinds)) for _ in range(r.randint(2, 6)))
    shell = "sequential" if r.random() < 0.25 else "model"
    extras = [f"shell={shell}"]
    for word, odds in ODDS.items():
        if r.random() < odds and (shell == "model" or word not in ("output", "give")):
            several = 2 if word in ("hook", "give") and r.random() < 0.3 else 1
            extras += [f"{word}={choice}" for choice in r.sample(EXTRAS[word], several)]
    for word in EXTRAS["with"]:
        fits = shell == "model" or word not in ("loss", "state", "read", "ids")
        fits = fits and (word != "ids" or domain == "tokens")
        if r.random() < (0.5 if word == "residual" else 0.15) and fits:
            extras.append(f"with={word}")
    return Draw(seed, domain, tuple(kinds), stack, tuple(extras))
