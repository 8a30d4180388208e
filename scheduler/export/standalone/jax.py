"""For jax and flax: the plan as nested checkpoints of functions, its options as policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

LAYERS: list[str] = []
CHECKPOINTS: list[tuple[str, str]] = []
OPTIONS: dict[str, str] = {}
RECOMPUTED: set[str] = set()


def policy(option: str) -> Any:
    """What stays under an option: one of jax's policies, or values by their checkpoint_name.

    Several names are joined with "+" in the option's name.
    """
    own = getattr(jax.checkpoint_policies, option, None)
    return own or jax.checkpoint_policies.save_only_these_names(*option.split("+"))


def apply_plan(blocks: Sequence[Callable[[Any, Any], Any]]) -> Callable[[Any, Any], Any]:
    """One function of all layers, ``run(parameters, x)``, that recomputes as the plan says.

    `blocks` are functions ``block(parameters, x) -> x``, one for each of LAYERS (the ends, such as
    an embedding and a loss, too), and the parameters are a list with a tree for each.
    """
    if len(blocks) != len(LAYERS):
        raise ValueError(f"the plan has {len(LAYERS)} layers, and {len(blocks)} blocks are given")
    position = {name: i for i, name in enumerate(LAYERS)}
    spans = [(position[first], position[last]) for first, last in CHECKPOINTS]

    def layer(i: int) -> Callable[[Any, Any], Any]:
        def run(parameters: Any, x: Any) -> Any:
            return blocks[i](parameters[0], x)

        option = OPTIONS.get(LAYERS[i])
        return run if option is None else jax.checkpoint(run, policy=policy(option))

    def part(first: int, last: int, inside: list[tuple[int, int]]) -> Callable[[Any, Any], Any]:
        steps: list[tuple[int, int, Callable[[Any, Any], Any]]] = []
        at, rest = first, inside
        while rest:
            (a, b), *after = rest
            within = [span for span in after if span[1] <= b]
            steps += [(i, i + 1, layer(i)) for i in range(at, a)]
            steps.append((a, b + 1, jax.checkpoint(part(a, b, within))))
            at, rest = b + 1, after[len(within) :]
        steps += [(i, i + 1, layer(i)) for i in range(at, last + 1)]

        def run(parameters: Any, x: Any) -> Any:
            for start, end, step in steps:
                x = step(parameters[start - first : end - first], x)
            return x

        return run

    return part(0, len(LAYERS) - 1, spans)


def flax_block(block: Any, name: str) -> Any:
    """The class to build layer `name` from in flax.linen: nn.remat of `block`, or itself.

    Give its modules names, ``flax_block(Block, name)(name="h_3")``: those that flax chooses differ
    with nn.remat, and a checkpoint of the parameters would no longer load.
    """
    from flax import linen as nn

    if name in OPTIONS:
        return nn.remat(block, policy=policy(OPTIONS[name]))
    return nn.remat(block) if name in RECOMPUTED else block
