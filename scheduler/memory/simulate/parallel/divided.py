"""What of a model is on one GPU where several share it: a shape of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scheduler.memory.errors import Argument, InvalidRecipe, NoFormula
from scheduler.memory.recipe import DEGREES, Recipe
from scheduler.memory.shape.shape import Shape

PROFILE = "profile the model with scheduler.pytorch"

_DIVIDED = ("heads", "kv_heads", "mlp_width", "shared_expert_width")


def divided(shape: Shape, recipe: Recipe) -> Shape:
    """The heads, features of MLPs and words that tensor parallelism leaves to each GPU.

    Width and experts are whole: the first is divided nowhere, and of experts it is their weights
    alone that expert parallelism divides. Where there are more GPUs than heads of keys, each has
    one. Words are padded, so that every GPU has as many.

    Raises
    ------
    InvalidRecipe
        A degree does not divide what it is to divide.
    NoFormula
        Nobody has derived how this model or this training is divided.
    """
    if all(getattr(recipe, f"{kind}_parallel") == 1 for kind in DEGREES):
        return shape
    _check_formula(shape, recipe)
    if recipe.expert_parallel > 1 and not any(kind.experts for kind in shape.kinds):
        raise InvalidRecipe(
            Argument("expert_parallel", recipe.expert_parallel),
            f" divides experts, and {shape.name} has none; leave it out",
        )
    for kind in shape.kinds:
        _check_degrees(kind, recipe)
    t = recipe.tensor_parallel
    by_block = {
        name: [_part(name, n, t) for n in values] for name, values in dict(shape.by_block).items()
    }
    # Where blocks differ the fields are then the last block's.
    return replace(
        shape,
        vocabulary=-(-shape.vocabulary // t),
        by_block=by_block,
        heads=_part("heads", shape.heads, t),
        kv_heads=_part("kv_heads", shape.kv_heads, t),
        mlp_width=_part("mlp_width", shape.mlp_width, t),
        shared_expert_width=_part("shared_expert_width", shape.shared_expert_width, t),
    )


def _part(name: str, value: Any, tensor: int) -> Any:
    if name not in _DIVIDED:
        return value
    return max(value // tensor, 1) if name == "kv_heads" else value // tensor


def _check_degrees(shape: Shape, recipe: Recipe) -> None:
    t, p, e = recipe.tensor_parallel, recipe.pipeline_parallel, recipe.expert_parallel

    def divides(name: str, degree: int, count: int, what: str) -> None:
        if count % degree:
            choices = [n for n in range(1, min(count, 64) + 1) if count % n == 0]
            raise InvalidRecipe(
                Argument(name, degree),
                f" must divide the {count} {what} of {shape.name}; choose "
                f"{', '.join(map(str, choices))}",
            )

    divides("tensor_parallel", t, shape.heads, "heads")
    if t < shape.kv_heads:
        divides("tensor_parallel", t, shape.kv_heads, "heads of keys")
    elif t % shape.kv_heads:
        raise InvalidRecipe(
            Argument("tensor_parallel", t),
            f" must divide the {shape.kv_heads} heads of keys of {shape.name}, or be a multiple "
            "of them, so that each GPU has a copy of one",
        )
    divides("tensor_parallel", t, shape.mlp_width, "features of an MLP")
    if shape.shared_expert_width:
        divides("tensor_parallel", t, shape.shared_expert_width, "features of a shared expert")
    if shape.experts:
        divides("expert_parallel", e, shape.experts, "experts")
    if p > shape.layers + 2:
        raise InvalidRecipe(
            Argument("pipeline_parallel", p),
            f" is more stages than {shape.name} has layers: {shape.layers} blocks, embedding and "
            "head",
        )


def _check_formula(shape: Shape, recipe: Recipe) -> None:
    if shape.head != "causal" or shape.buckets or shape.pixels:
        raise NoFormula(
            "of several GPUs that share a model there are formulas for decoders alone, and "
            f"{shape.name} is none; train it data-parallel, or {PROFILE}",
            argument=_first_degree(recipe),
        )
    if recipe.context_parallel > 1 and (
        recipe.attention == "eager" or recipe.padding_mask or any(k.window for k in shape.kinds)
    ):
        raise NoFormula(
            Argument("context_parallel", recipe.context_parallel),
            " has a formula for causal attention by one kernel, without masks and windows; say ",
            Argument("attention", "sdpa"),
            f", or {PROFILE}",
        )
    if recipe.expert_parallel > 1 and (
        recipe.experts != "grouped" or shape.family == "llama4_text"
    ):
        raise NoFormula(
            Argument("expert_parallel", recipe.expert_parallel),
            " has a formula for experts='grouped' alone, and for Llama 4, whose experts run on "
            "every token, none",
        )
    if recipe.tensor_parallel == 1:
        return
    if recipe.train != "full" or recipe.compute == "autocast":
        raise NoFormula(
            Argument("tensor_parallel", recipe.tensor_parallel),
            " has a formula for full training without autocast; say ",
            Argument("precision", "bf16-mixed"),
            " and train all weights, or leave it out",
        )


def _first_degree(recipe: Recipe) -> str:
    return next(f"{kind}_parallel" for kind in DEGREES if getattr(recipe, f"{kind}_parallel") > 1)
