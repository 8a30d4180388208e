"""What blocks of drawn models are put together from, by word: layers, norms, state of all sorts."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, spectral_norm

WIDTH = 8


class Tally:
    """A plain object with state, shared by all blocks."""

    def __init__(self) -> None:
        self.relay = None


class Meter:
    """An object of the user's own that counts."""

    def __init__(self) -> None:
        self.runs, self.total = 0, torch.zeros(())

    def update(self, value: torch.Tensor) -> None:
        self.runs += 1
        self.total += value


BUFFERS: dict[str, Callable[[], Any]] = {
    "ema_": lambda: torch.ones(()),  # changed in place
    "ema": lambda: torch.ones(()),  # replaced
    "steps_": lambda: torch.zeros((), dtype=torch.int64),
}
STATES: dict[str, Callable[[], Any]] = {
    "count": int,
    "clock": float,
    "steps": int,
    "tensor": lambda: torch.zeros(()),
    "tensor_": lambda: torch.zeros(()),
    "none": lambda: None,
    "memo": lambda: None,
    "last": lambda: None,
    "kept": lambda: None,
    "relay": lambda: None,
    "floats": list,
    "tensors": list,
    "table": dict,
    "nested": lambda: {"seen": [0], "sums": {}},
    "window": lambda: deque(maxlen=3),
    "meter": Meter,
    "names": set,
    "array": lambda: np.zeros(2),
    "generator": lambda: torch.Generator().manual_seed(5),
    "own_random": lambda: random.Random(5),
    "numpy_random": lambda: np.random.default_rng(5),
    "iterator": itertools.count,
    "parity": int,
}
"""What a forward changes on a holder, and what it is before the first forward."""


def change(name: str, h: Any, x: Any) -> Any:
    """Change the state of this name on a holder, and give what the forward makes of it."""
    level = x.detach().float().mean()
    if name == "created":  # an attribute that no __init__ has made
        h.created = level + getattr(h, "created", 0)
        return x
    value = getattr(h, name)
    if name in ("count", "clock"):
        setattr(h, name, value + (1 if name == "count" else 0.1))
    elif name == "steps":
        h.steps += 1
        return x * (1 + 0.1 / h.steps)
    elif name == "parity":  # another branch each time
        h.parity += 1
        return torch.tanh(x) * 1.5 if h.parity % 2 else x
    elif name in ("tensor", "ema"):
        setattr(h, name, 0.5 * value + 0.5 * level)
        return x + 0.1 * getattr(h, name) if name == "ema" else x
    elif name in ("tensor_", "ema_"):
        value.mul_(0.5).add_(level)
        return x + 0.1 * value if name == "ema_" else x
    elif name == "steps_":
        value += 1
        return x + 0.1 / value
    elif name == "none":  # then added to, in place
        h.none = x.detach().float().mean(0) if value is None else value.add_(1)
    elif name == "memo":  # made once, then read
        h.memo = x.detach().float().mean(0) if value is None else value
        return x + 0.1 * h.memo
    elif name in ("last", "kept"):
        setattr(h, name, x.detach() if name == "last" else x)
    elif name == "relay":  # what the holder's reader before me left here, with its gradient
        h.relay = x
        return x if value is None else x + 0.1 * value
    elif name in ("floats", "tensors"):
        value.append(float(level) if name == "floats" else level)
    elif name == "table":
        value[len(value)] = level
    elif name == "nested":
        value["seen"][0] += 1
        value["sums"]["x"] = value["sums"].get("x", 0) + level
    elif name == "window":
        value.append(level)
        return x + 0.1 * torch.stack(tuple(value)).mean()
    elif name == "meter":
        value.update(level)
        return x + 0.1 / value.runs
    elif name == "names":
        value.add(f"run {len(value)}")
    elif name == "array":
        value[0] += 1
    elif name == "generator":
        return x + 0.1 * torch.rand((), generator=value)
    elif name in ("own_random", "numpy_random"):
        return x + 0.1 * value.random()
    elif name == "iterator":
        return x + 0.1 * (next(value) % 3)
    return x


class Counting(nn.BatchNorm2d):
    """A batch norm with a buffer and an attribute of its own."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(()))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen += x.numel()
        return super().forward(x)


class Channels(nn.Module):
    """A norm of pictures, for other shapes too: channels are the last dimension there."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Any) -> Any:
        if x.dim() == 2:
            return self.norm(x[:, :, None, None])[:, :, 0, 0]
        return self.norm(x.transpose(1, 2)[..., None])[..., 0].transpose(1, 2)


class Shift(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 1.1).add_(0.1)


class Noise(nn.Module):
    def __init__(self, source: Callable[[], float]) -> None:
        super().__init__()
        self.source = source

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1 + 0.1 * self.source())


class Teacher(nn.Module):
    """A frozen copy of a weight, that each forward moves towards it."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Parameter(torch.ones(()))
        self.teacher = nn.Parameter(torch.zeros(()), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.teacher.lerp_(self.student, 0.1)
        return x * self.student + self.teacher


class Attention(nn.Module):
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.qkv, self.fused = nn.Linear(WIDTH, 3 * WIDTH), fused

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None, bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        q, k, v = (part.unsqueeze(1) for part in self.qkv(x).chunk(3, -1))
        added = 0 if mask is None else torch.where(mask, 0.0, -1e4)[:, None, None, :]
        added = added if bias is None else added + bias
        if self.fused:
            attn = added.to(q.dtype) if isinstance(added, torch.Tensor) else None
            return F.scaled_dot_product_attention(q, k, v, attn_mask=attn)[:, 0], None
        weights = F.dropout(torch.softmax(q @ k.mT / WIDTH**0.5 + added, -1), 0.1, self.training)
        return (weights @ v.to(weights.dtype))[:, 0], weights[:, 0]


NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm2d(WIDTH),
    "cumulative": lambda: nn.BatchNorm2d(WIDTH, momentum=None),
    "sync": lambda: nn.SyncBatchNorm(WIDTH),
    "counting": lambda: Counting(WIDTH),
    "instance": lambda: nn.InstanceNorm2d(WIDTH, affine=True, track_running_stats=True),
    "group": lambda: nn.GroupNorm(2, WIDTH),
}
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
    "relu_": lambda: nn.ReLU(inplace=True),
    "shift_": Shift,
    "dropout": lambda: nn.Dropout(0.2),
    "dropout_": lambda: nn.Dropout(0.2, inplace=True),
    "python": lambda: Noise(random.random),
    "numpy": lambda: Noise(np.random.rand),
    "teacher": Teacher,
}
WEIGHTED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "linear": lambda m: m,
    "spectral": parametrizations.spectral_norm,
    "weightnorm": parametrizations.weight_norm,
    "old_spectral": spectral_norm,
}


def layer(name: str, domain: str) -> nn.Module:
    """The module of a part that is no state."""
    image = domain == "image"
    if name in WEIGHTED:
        made = nn.Conv2d(WIDTH, WIDTH, 3, padding=1) if image else nn.Linear(WIDTH, WIDTH)
        return WEIGHTED[name](made)
    if name == "layernorm":
        return nn.GroupNorm(1, WIDTH) if image else nn.LayerNorm(WIDTH)
    if name == "mlp":
        wide = (nn.Conv2d(WIDTH, 32, 1), nn.Conv2d(32, WIDTH, 1))
        ends = wide if image else (nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH))
        return nn.Sequential(ends[0], nn.GELU(), nn.Dropout(0.1), ends[1])
    if name in ("attention", "fused"):
        return Attention(name == "fused")
    if name in NORMS:
        # Rows have one element a channel, of which there is no variance.
        norm = NORMS["group" if (name, domain) == ("instance", "rows") else name]()
        return norm if image else Channels(norm)
    return LAYERS[name]()
