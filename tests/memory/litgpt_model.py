"""A block as LitGPT computes it with adapters on queries and values, to be measured.

Written from its description (one qkv layer, updates copied into zeros, rotary on part of a head),
without anything of LitGPT that its memory does not depend on.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from scheduler.memory.shape.shape import Shape

RANK = 8


class RmsNorm(nn.Module):
    """Root mean square norm in fp32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        root = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-5)
        return (self.weight * (wide * root)).to(x.dtype)


class Projection(nn.Module):
    """Queries, keys and values by one layer, with adapters on the first and the last."""

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.width = width
        self.frozen = nn.Linear(width, 3 * width, bias=bias)
        self.adapter_a = nn.Parameter(torch.randn(2 * RANK, width))
        self.adapter_b = nn.Parameter(torch.randn(2 * width, RANK, 1))

    def forward(self, x: Tensor) -> Tensor:
        inside = functional.linear(functional.dropout(x, 0.05), self.adapter_a)
        update = functional.conv1d(inside.transpose(1, 2), self.adapter_b, groups=2)
        update = update.permute(2, 0, 1)
        places = torch.arange(3 * self.width).view(3, -1)[[0, 2]].flatten()
        rows = update.reshape(-1, 2 * self.width)
        padded = update.new_zeros(len(rows), 3 * self.width).index_copy(1, places, rows)
        padded = padded.view(*update.shape[:2], -1).transpose(0, 1) * 2.0
        return self.frozen(x) + padded  # type: ignore[no-any-return]


class Block(nn.Module):
    """One block; `turned` features of each head are turned by rotary."""

    def __init__(self, shape: Shape, shared_norm: bool, turned: int) -> None:
        super().__init__()
        norm = RmsNorm if shape.norm == "rms" else nn.LayerNorm
        width, inside, bias = shape.width, shape.mlp_width, shape.mlp_bias
        self.shape, self.turned = shape, turned
        self.first_norm = norm(width)
        self.second_norm = None if shared_norm else norm(width)
        self.qkv = Projection(width, bias)
        self.out = nn.Linear(width, width, bias=bias)
        self.gate = nn.Linear(width, inside, bias=bias) if shape.gated else None
        self.up = nn.Linear(width, inside, bias=bias)
        self.down = nn.Linear(inside, width, bias=bias)
        self.to(torch.bfloat16)
        for name, parameter in self.named_parameters():
            parameter.requires_grad = "adapter" in name

    def turn(self, x: Tensor, table: Tensor) -> Tensor:
        part, rest = x[..., : self.turned], x[..., self.turned :]
        low, high = part.chunk(2, dim=-1)
        made = part * table.cos() + torch.cat((-high, low), dim=-1) * table.sin()
        return torch.cat((made.to(x.dtype), rest), dim=-1)

    def attention(self, x: Tensor, table: Tensor) -> Tensor:
        batch, sequence, _ = x.shape
        heads, width = self.shape.heads, self.shape.head_width
        qkv = self.qkv(x).view(batch, sequence, heads, 3, width).permute(3, 0, 2, 1, 4)
        query, key, value = self.turn(qkv[0], table), self.turn(qkv[1], table), qkv[2]
        made = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(made.transpose(1, 2).reshape(x.shape))  # type: ignore[no-any-return]

    def mlp(self, x: Tensor) -> Tensor:
        up = self.up(x)
        inside = functional.gelu(up) if self.gate is None else functional.silu(self.gate(x)) * up
        return self.down(inside)  # type: ignore[no-any-return]

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        normed = self.first_norm(x)
        made = self.attention(normed, table)
        if self.shape.parallel:
            other = normed if self.second_norm is None else self.second_norm(x)
            return self.mlp(other) + made + x
        x = made + x
        assert self.second_norm is not None
        return self.mlp(self.second_norm(x)) + x


def kept_bytes(block: Block, batch: int, sequence: int, first: bool) -> int:
    """Bytes of the storages that a forward keeps, parameters and rotary's tables apart."""
    table = torch.randn(sequence, block.turned)
    width = block.shape.width
    x = torch.randn(batch, sequence, width, dtype=torch.bfloat16, requires_grad=not first)
    own = {parameter.untyped_storage().data_ptr() for parameter in block.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        made = block(x, table)
    tables = [t for t in kept.values() if t.shape == table.shape and t.dtype == torch.float32]
    assert made.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) - sum(
        tensor.untyped_storage().nbytes() for tensor in tables
    )


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages that operations make, until nobody holds them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live: int = 0
        self.peak: int = 0
        self.known: set[int] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        taken = {tensor.untyped_storage()._cdata for tensor in given}
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.known | taken:
                    self.known.add(storage._cdata)
                    self.live += storage.nbytes()
                    self.peak = max(self.peak, self.live)
                    weakref.finalize(storage, self.forget, storage._cdata, storage.nbytes())
        return made

    def forget(self, storage: int, size: int) -> None:
        self.known.discard(storage)
        self.live -= size


def loss_peak(batch: int, sequence: int, vocabulary: int, chunk: int) -> int:
    """Most bytes of a chunked head and loss, logits handed on in fp32 and held by the caller."""
    hidden = torch.randn(batch, sequence, 8, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(vocabulary, 8, dtype=torch.bfloat16)
    labels = torch.randint(0, vocabulary, (batch, sequence))
    with Live() as live:
        logits = [(part @ weight.t()).float() for part in torch.split(hidden, chunk, dim=1)]
        logits[-1] = logits[-1][:, :-1]
        losses = [
            functional.cross_entropy(
                part.reshape(-1, vocabulary), wanted.reshape(-1), reduction="none"
            )
            for part, wanted in zip(logits, torch.split(labels[:, 1:], chunk, dim=1), strict=True)
        ]
        live.peak = live.live
        torch.cat(losses).mean().backward()  # type: ignore[no-untyped-call]
    return int(live.peak)
