"""The adapter's own time per block call, beside plain `torch.utils.checkpoint`.

Blocks that compute next to nothing, each checkpointed by itself: bare, by torch, by an applied
plan. Steps are interleaved, so that whatever else the machine does hits all three alike; medians.

    python benchmarks/torch_overhead.py [--repeats 400] [--blocks 16]
"""

from __future__ import annotations

import argparse
import sys
import time
from statistics import median

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from scheduler import LayerCost, solve
from scheduler.pytorch import apply
from scheduler.report.tables import aligned

MOST = 1.2
"""What the adapter may take, as a multiple of plain checkpointing."""


class Stack(nn.Module):
    """Tiny blocks, checkpointed by torch where `plain`."""

    def __init__(self, count: int, *, plain: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)) for _ in range(count)
        )
        self.plain = plain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the blocks."""
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.plain else block(x)
        return x


def models(count: int) -> dict[str, Stack]:
    """The three; the adapter's plan checkpoints every block, also the last."""
    planned = Stack(count)
    layers = [
        LayerCost(f"blocks.{i}", forward_time=1, backward_time=2, output_bytes=1, saved_bytes=99)
        for i in range(count)
    ]
    last = LayerCost("head", forward_time=1, backward_time=2, output_bytes=1, saved_bytes=1)
    apply(solve([*layers, last], budget=10**9, method="every-layer"), planned)
    return {"bare": Stack(count), "plain checkpoint": Stack(count, plain=True), "plan": planned}


def microseconds(repeats: int, count: int) -> dict[str, float]:
    """Median time of a block call, forward, recomputation and backward, by model."""
    x = torch.randn(2, 4)
    made = models(count)
    times: dict[str, list[float]] = {name: [] for name in made}
    for attempt in range(-5, repeats):  # the first warm up
        for name, model in made.items():
            start = time.perf_counter()
            model(x).sum().backward()
            if attempt >= 0:
                times[name].append((time.perf_counter() - start) / count * 1e6)
    return {name: median(values) for name, values in times.items()}


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--repeats", type=int, default=400, help="steps of each kind")
    parser.add_argument("--blocks", type=int, default=16, help="blocks of each model")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found = microseconds(options.repeats, options.blocks)
    plain = found["plain checkpoint"]
    rows = [("", "µs a block call", "of plain checkpoint")]
    rows += [(name, f"{value:.0f}", f"{value / plain:.2f}") for name, value in found.items()]
    print("\n".join(aligned(rows)))
    ratio = found["plan"] / plain
    print(f"\nThe plan takes {ratio:.2f} times plain checkpointing; at most {MOST} is wanted.")


if __name__ == "__main__":
    main(sys.argv[1:])
