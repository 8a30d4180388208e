"""The √L rule on a real model: its figures, and where what it assumes fails.

The rule's own formulas are in `solvers.chain.uniform`; here are those that need a model's shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scheduler.common.text import figures, format_bytes
from scheduler.costs.costgraph import CostGraph
from scheduler.memory.activations import block_activations
from scheduler.memory.recipe import Recipe, RecipeFields
from scheduler.memory.shape.shape import Shape
from scheduler.plans.text import peak_text
from scheduler.report.tables import aligned, format_percent
from solvers.chain.problem import Chain
from solvers.chain.uniform import (
    best_integer_k,
    integer_peak,
    ratio_peak,
    ratio_rule,
    sqrt_peak,
    sqrt_rule,
    sqrt_saving,
    uniform_plan,
)
from solvers.replay import Replay
from solvers.schedule import Items

if TYPE_CHECKING:
    from typing_extensions import Unpack


def integer_saving(layers: int) -> float:
    """How many times less than keep-all the best whole segment length holds: L / min(⌈L/k⌉ + k).

    At most √L/2, which only a square L reaches: ⌈L/k⌉ + k ≥ L/k + k ≥ 2√L. At L = 32 it is
    32/12 = 2.67, not 2.83; at L = 80 it is 80/18 = 4.44, not 4.47.
    """
    return layers / integer_peak(layers, best_integer_k(layers)[0])


def best_ratio_k(layers: int, boundary_bytes: float, interior_bytes: float) -> int:
    """The whole k from 1 to L with the least c·⌈L/k⌉ + a·k, the smallest of equals.

    The real optimum is k* = √(L·c/a) (`ratio_rule`). Below 1 it means that not even one block
    should share its segment: m grows from k = 1 on, by a - c·L/2 at the first step.
    """
    return min(
        range(1, layers + 1),
        key=lambda k: (ratio_peak(layers, k, boundary_bytes, interior_bytes), k),
    )


def boundary_and_interior(
    shape: Shape,
    batch: int,
    sequence: int,
    recipe: Recipe | None = None,
    **fields: Unpack[RecipeFields],
) -> tuple[int, int]:
    """What a checkpoint costs and what it saves, c and a, of one of a shape's blocks, in bytes.

    c is the block's input, kept in its place: B·S·d elements. a is all that autograd keeps inside
    the block and at its input, on average where blocks differ. In a Llama block in bf16 c = 2·T·d,
    and with few key-value heads and f = 3.5·d, a is about T(16d + 4d + 28d + …) = 24·c: the rule
    takes the two for equal.
    """

    def inside(kind: Shape) -> int:
        block = block_activations(kind, batch, sequence, recipe, **fields)
        return block.saved_bytes + (block.input_bytes if block.input_saved else 0)

    boundary = block_activations(shape, batch, sequence, recipe, **fields).input_bytes
    return boundary, shape.over_blocks(inside) // shape.layers


def explain(
    shape: Shape,
    batch: int,
    sequence: int,
    recipe: Recipe | None = None,
    *,
    costs: CostGraph | None = None,
    **fields: Unpack[RecipeFields],
) -> str:
    """The √L theorem's figures for a shape, and how far its blocks are from what it assumes.

    `costs` are of the same model, embedding, head with loss, gradients and working memory included:
    uniform plans are replayed on them.
    """
    n = shape.layers
    c, a = boundary_and_interior(shape, batch, sequence, recipe, **fields)
    best = best_ratio_k(n, c, a)
    wanted = ratio_rule(n, c, a)
    rule_k = max(1, round(sqrt_rule(n)))
    lines = [
        f"The √L rule for {n} equal layers, a boundary as large as a layer's inside:",
        *_figures(n),
        "",
        f"A block of {shape.name} (batch {batch}, sequence {sequence}) is not like that:",
        f"  a boundary takes c = {format_bytes(c)}, the inside a = {format_bytes(a)}: "
        f"a/c = {figures(a / c, 1)}, not 1.",
        f"  c·L/k + a·k is least at k* = √(L·c/a) = {figures(wanted, 2)}"
        + (", below one block: " if wanted < 1 else ": ")
        + f"in whole blocks k = {best}.",
        *aligned(
            [
                (f"  k = {best}", *_in_units(ratio_peak(n, best, c, a), c)),
                (f"  k = {rule_k}, the rule's", *_in_units(ratio_peak(n, rule_k, c, a), c)),
                ("  everything kept", *_in_units(n * a, c)),
            ]
        ),
    ]
    if costs is not None:
        lines += ["", *_replayed(costs.to_chain(), sorted({1, best, rule_k}), best)]
    return "\n".join(lines)


def _figures(n: int) -> list[str]:
    """The rule's figures for n layers, and for the two sizes that are quoted most."""
    header = ("  layers", "k* = √L", "memory 2√L", "saving √L/2", "whole k", "memory", "saving")
    rows = [header]
    for layers in dict.fromkeys((n, 32, 80)):
        ks = best_integer_k(layers)
        rows.append(
            (
                f"{layers:>8}",
                figures(sqrt_rule(layers), 2),
                figures(sqrt_peak(layers), 2),
                f"{figures(sqrt_saving(layers), 2)}×",
                ", ".join(map(str, ks)),
                str(integer_peak(layers, ks[0])),
                f"{figures(integer_saving(layers), 2)}×",
            )
        )
    return aligned(rows)


def _replayed(chain: Chain, ks: list[int], best: int) -> list[str]:
    """Peaks of uniform plans on the model's own costs."""
    names = chain.names
    everything = chain.replay(chain.keep_all())
    uniform = {k: chain.replay(Items(uniform_plan(chain, k))) for k in ks}
    plans = [("everything kept", everything)]
    plans += [(f"segments of {k}", done) for k, done in uniform.items()]
    rows = [
        (
            f"  {name}",
            format_bytes(done.peak_bytes),
            format_percent(done.time / everything.time - 1) + " slower",
            f"set by {peak_text(done.peak_action, names)}",
        )
        for name, done in plans
    ]
    cells = [(a, b.rjust(10), c.rjust(13), d) for a, b, c, d in rows]
    lines = ["Replayed with embedding, head, loss and gradients, a step needs:"]
    lines += aligned(cells, left=4)
    if any(k > best and _by_head_alone(uniform[best], uniform[k], names) for k in ks):
        lines.append(
            "There the head sets both peaks; it adds to boundaries alone, so fewer of them win."
        )
    return lines


def _by_head_alone(best: Replay, longer: Replay, names: Sequence[str]) -> bool:
    """Whether longer segments need less than the best ones since the head sets both peaks."""
    last = f"the backward of {names[-1]!r}"
    both = {peak_text(done.peak_action, names) for done in (best, longer)}
    return longer.peak_bytes < best.peak_bytes and both == {last}


def _in_units(size: float, unit: int) -> tuple[str, str]:
    return format_bytes(round(size)), f"{figures(size / unit, 1)} c"
