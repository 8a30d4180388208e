"""What a model of the zoo is: how it is made, and a batch that it trains on."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Made:
    """A model in training mode, a batch of it, and its loss (None: its output's own)."""

    model: nn.Module
    batch: Any
    loss_fn: Callable[[Any], Any] | None


@dataclass(frozen=True)
class Entry:
    """A model of the zoo; `makes` are ways to make it, of which the first that trains counts."""

    name: str
    kind: str
    makes: tuple[Callable[[], Iterator[Made]], ...]

    def in_tenth(self, tenth: int) -> bool:
        """Whether it belongs to this tenth of all: a matter of its name alone."""
        return zlib.crc32(self.name.encode()) % 10 == tenth


def seed() -> None:
    """Set every random state to the same."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def mean_square(output: Any) -> torch.Tensor:
    """A loss for a model that has none: of the first tensor that takes a gradient."""
    values = output.values() if isinstance(output, dict) else output
    leaves = tree_leaves(list(values) if not isinstance(values, torch.Tensor) else [values])
    return next(
        leaf.float().square().mean()
        for leaf in leaves
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    )
