"""What ALST publishes of Llama-3.1-8B (arXiv 2506.13996), beside what the model here says.

Their settings on one H100: weights, gradients and the optimizer's state on the host, a layer's
weights fetched while it runs; every block checkpointed; then the loss and the MLPs in tiles, the
checkpoints on the host too, and over several GPUs attention by heads (Ulysses), tokens otherwise.
Neither offloaded checkpoints nor sequence parallelism are built here: what is on the host is
subtracted, and a GPU of several is taken to hold its share of the tokens.

    python benchmarks/alst.py
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from scheduler import CostGraph
from scheduler.costs.peaks import Peaks
from scheduler.memory import costs_from_shape, load_shape
from scheduler.memory.fitting.facts import default_margin
from scheduler.memory.fitting.peaks import with_gradient, with_working
from scheduler.memory.fitting.search import largest
from scheduler.memory.gpus import load_gpu
from scheduler.memory.recipe import Recipe
from scheduler.memory.simulate.modules import mlp
from scheduler.memory.simulate.setting import setting
from scheduler.memory.simulate.step import head, run_once
from scheduler.memory.simulate.tiles import tiled_head
from scheduler.planning.chain.against import tiled_by_hand
from scheduler.plans.settings import Setting, blocks_of, outcome_of, singles

SHAPE = load_shape("llama-3-8b")
H100 = load_gpu("h100")
GIB = 2**30


def step_costs(tokens: int, *, tiles: bool) -> CostGraph:
    """Costs of one sequence, with all state on the host: nothing of gradients stays."""
    costs = costs_from_shape(SHAPE, 1, tokens, gpu=H100, tiles=tiles)
    weights = [
        2 * SHAPE.embedding_parameters,
        *([2 * SHAPE.block_parameters] * SHAPE.layers),
        2 * SHAPE.head_parameters,
    ]
    around = zip([0, *weights[:-1]], weights, [*weights[1:], 0], strict=True)
    fetched = [own + max(before, after) for before, own, after in around]
    layers = (
        with_working(with_gradient(layer, 0, layer.gradient_bytes), size)
        for layer, size in zip(costs.layers, fetched, strict=True)
    )
    return replace(costs, layers=tuple(layers))


def step_peak(tokens: int, *, tiles: bool, offloaded: bool) -> int:
    """The peak with every block checkpointed; `offloaded`: of checkpoints two are on the GPU."""
    costs = step_costs(tokens, tiles=tiles)
    chain = costs.to_chain()
    (way,) = tiled_by_hand(costs, chain) or [Setting("", singles(blocks_of(chain)))]
    if not offloaded:
        return outcome_of(chain, way).peak_bytes
    # A stack of two blocks: what is between the host and the ends, or a block, is the same.
    few = replace(costs, layers=(*costs.layers[:3], costs.layers[-1]))
    chain = few.to_chain()
    (way,) = tiled_by_hand(few, chain) or [Setting("", singles(blocks_of(chain)))]
    return outcome_of(chain, way).peak_bytes


def longest(*, tiles: bool, offloaded: bool) -> int:
    """The longest sequence on one H100."""
    room = H100.usable_bytes - default_margin(H100.usable_bytes)
    step = 1024

    def fits(n: int) -> bool:
        return step_peak(n * step, tiles=tiles, offloaded=offloaded) <= room

    return step * largest(fits, 4096)


def mlp_bytes(tokens: int, tiles: int) -> int:
    """The most that one MLP needs beyond its input, forward and backward."""
    at = replace(setting(SHAPE, 1, tokens, Recipe()), tiles=tiles)
    return _most(run_once(mlp, at, H100))


def head_bytes(tokens: int, tiles: int) -> int:
    """The most that norm, head and loss need beyond their input, forward and backward."""
    at = setting(SHAPE, 1, tokens, Recipe())
    forward = partial(tiled_head, tiles=tiles) if tiles else head
    return _most(run_once(forward, at, H100, scalar=True))


def _most(peaks: Peaks) -> int:
    return max(peaks.forward_peak, peaks.backward_peak)


def main() -> None:
    """Print the table."""
    tiled = longest(tiles=True, offloaded=True)
    loss = [head_bytes(16 * 1024, tiles) / GIB for tiles in (0, 16)]
    inside = [mlp_bytes(256 * 1024, tiles) / GIB for tiles in (0, 64)]
    rows = [
        ("one H100: checkpoints alone", "32K", f"{longest(tiles=False, offloaded=False):,}"),
        ("loss and MLPs in tiles too", "-", f"{longest(tiles=True, offloaded=False):,}"),
        ("checkpoints on the host too", "500K", f"{tiled:,}"),
        ("8 H100, a share of the tokens each", "3.7M", f"{8 * tiled:,}"),
        ("32 H100, likewise", "15M", f"{32 * tiled:,}"),
        ("loss in tiles, 16K tokens", "14 GiB less", f"{loss[0] - loss[1]:.1f} GiB less"),
        ("   whole, in 16 tiles", "-", f"{loss[0]:.1f}, {loss[1]:.1f} GiB"),
        ("one MLP, 256K tokens", "10 times less", f"{inside[0] / inside[1]:.1f} times less"),
        ("   whole, in 64 tiles", "-", f"{inside[0]:.1f}, {inside[1]:.1f} GiB"),
    ]
    print(f"{'':36} {'published':>14} {'here':>20}")
    for what, published, ours in rows:
        print(f"{what:36} {published:>14} {ours:>20}")


if __name__ == "__main__":
    main()
