"""Runs exported jax files for real: ``python jax_step.py PLAN.py...``.

It is a program of its own, so that jax's threads live in no process of the tests. Each layer has a
width of its own, so that a program's values say which layer they are of. Prints one JSON object.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name, print_saved_residuals

ROWS, WIDTH, HIDDEN = 64, 5, 100


def block_of(i: int) -> Callable[[Any, Any], Any]:
    """Layer i: two hidden values of width HIDDEN + i, one of which has a name."""

    def block(parameters: Any, x: Any) -> Any:
        wide = checkpoint_name(x @ parameters["up"], "wide")
        return x + jnp.tanh(wide) @ parameters["down"]

    return block


def loss(parameters: Any, x: Any) -> Any:
    """The last layer."""
    return jnp.mean(jnp.square(jnp.tanh(x @ parameters["up"])))


def parameters_of(random: np.random.Generator, count: int) -> list[dict[str, Any]]:
    return [
        {
            "up": drawn(random, (WIDTH, HIDDEN + i)),
            "down": drawn(random, (HIDDEN + i, WIDTH)),
        }
        for i in range(count)
    ]


def drawn(random: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return jnp.asarray(random.normal(size=shape), jnp.float32)


class Block(nn.Module):
    """The same in flax."""

    hidden: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        up = self.param("up", nn.initializers.normal(), (WIDTH, self.hidden))
        down = self.param("down", nn.initializers.normal(), (self.hidden, WIDTH))
        wide = checkpoint_name(x @ up, "wide")
        return x + jnp.tanh(wide) @ down


class Stack(nn.Module):
    """Blocks by the names of the plan's layers, each of the class that `made` gives."""

    names: tuple[str, ...]
    made: Callable[[type[nn.Module], str], type[nn.Module]]

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for i, name in enumerate(self.names):
            x = self.made(Block, name)(HIDDEN + i, name=name.replace(".", "_"))(x)
        return jnp.mean(jnp.square(x))


def plain(blocks: list[Callable[[Any, Any], Any]]) -> Callable[[Any, Any], Any]:
    """All layers one after the other, nothing recomputed."""

    def run(parameters: Any, x: Any) -> Any:
        for block, own in zip(blocks, parameters, strict=True):
            x = block(own, x)
        return x

    return run


def apart(one: Any, other: Any) -> int:
    """The most float32 numbers that lie between two gradients; 0 where they are bitwise equal."""
    most = 0
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        bits = [np.asarray(each).view(np.int32).astype(np.int64) for each in (a, b)]
        ordered = [np.where(each < 0, -(2**31) - each, each) for each in bits]
        most = max(most, int(np.abs(ordered[0] - ordered[1]).max()))
    return most


def equations(program: Any) -> Iterator[Any]:
    """Every operation of a program, those of the programs inside it too."""
    for equation in program.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


def counts_of(function: Callable[..., Any], *values: Any) -> dict[int, int]:
    """How often each layer's tanh runs in a step: its forward, and each time again."""
    program = jax.make_jaxpr(jax.grad(function))(*values)
    widths = Counter(
        equation.outvars[0].aval.shape[-1] - HIDDEN
        for equation in equations(program.jaxpr)
        if equation.primitive.name == "tanh"
    )
    return dict(sorted(widths.items()))


def residuals_of(function: Callable[..., Any], *values: Any) -> tuple[int, dict[int, int]]:
    """Bytes that the backward keeps as jax prints them, and how many values of each layer's."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        print_saved_residuals(function, *values)
    total, widths = 0, Counter[int]()
    for line in said.getvalue().splitlines():
        found = re.match(r"f32\[([\d,]*)\]", line)
        assert found, line
        if "from the argument" in line:
            continue
        shape = [int(size) for size in found[1].split(",") if size]
        total += 4 * int(np.prod(shape))
        if shape and shape[-1] >= HIDDEN:
            widths[shape[-1] - HIDDEN] += 1
    return total, dict(sorted(widths.items()))


def compared(run: Callable[..., Any], kept: Callable[..., Any], *values: Any) -> dict[str, Any]:
    # Compiled whole: one operation at a time would be compiled anew for each layer's width.
    gradients = [jax.jit(jax.grad(each))(*values) for each in (run, kept)]
    (total, own), (most, _) = residuals_of(run, *values), residuals_of(kept, *values)
    return {
        "apart": apart(*gradients),
        "counts": counts_of(run, *values),
        "counts of keep-all": counts_of(kept, *values),
        "residual bytes": total,
        "residual bytes of keep-all": most,
        "residuals": own,
    }


def loaded(path: Path) -> Any:
    specification = importlib.util.spec_from_file_location("plan", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def main(path: Path) -> None:
    plan = loaded(path)
    count = len(plan.LAYERS)
    random = np.random.default_rng(0)
    x = drawn(random, (ROWS, WIDTH))
    blocks = [*map(block_of, range(count - 1)), loss]
    values = (parameters_of(random, count), x)
    told: dict[str, Any] = {"jax": compared(plan.apply_plan(blocks), plain(blocks), *values)}
    names = tuple(plan.LAYERS[:-1])
    stack, kept = Stack(names, plan.flax_block), Stack(names, lambda block, _: block)
    # The shapes alone: what flax would draw takes long to compile.
    own, others = (jax.eval_shape(each.init, jax.random.key(0), x) for each in (stack, kept))
    told["same parameters"] = own == others
    own = jax.tree.map(lambda leaf: drawn(random, leaf.shape), own)
    told["flax"] = compared(stack.apply, kept.apply, own, x)
    try:
        plan.apply_plan(blocks[1:])
    except ValueError as error:
        told["refused"] = str(error)
    print(json.dumps(told))


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    for argument in sys.argv[1:]:
        main(Path(argument))
