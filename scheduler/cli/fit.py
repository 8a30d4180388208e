"""``fit``, and the costs of a model for the other commands."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any, cast

from scheduler.cli.io import print_json, say
from scheduler.cli.modelargs import OPTIONS
from scheduler.common.text import format_both, format_bytes, shown
from scheduler.common.units import parse_bytes
from scheduler.costs.costgraph import CostGraph
from scheduler.memory.errors import Argument, InvalidRecipe, InvalidShape, NoFormula
from scheduler.memory.fitting.facts import default_margin
from scheduler.memory.fitting.fit import Fit, default_sequence
from scheduler.memory.fitting.fit import fit as fit_model
from scheduler.memory.fitting.sqrt import explain
from scheduler.memory.fitting.training import Training
from scheduler.memory.gpus import load_gpu
from scheduler.memory.recipe import Lora, RecipeFields, recipe_of
from scheduler.memory.shape.load import load_shape
from scheduler.planning.request import Budget

_LORA = "write it as r=16,targets=q+v,dtype=bf16,dropout=0.05; r is needed"
_FLAGS = {option.argument: option.flag for option in OPTIONS} | {"flops_efficiency": "efficiency"}
_FLAGS["budget"] = "budget"


@contextlib.contextmanager
def _as_options() -> Iterator[None]:
    """Let errors name options, where they name arguments: ``--lora`` for ``train='lora'``."""
    try:
        yield
    except (InvalidRecipe, InvalidShape, NoFormula) as error:
        raise type(error)(error.spelled(_option), argument=error.argument) from error


def fit(arguments: Namespace) -> int:
    """``fit``: one screen; status 3 when no plan fits."""
    found = _fitted(arguments, search=not arguments.no_search)
    why = None
    if arguments.explain:
        sizes = found.shape, found.batch, found.sequence
        why = explain(*sizes, found.training.recipe, costs=found.costs)
    if arguments.json:
        print_json(found.to_dict() | ({} if why is None else {"explanation": why}))
    else:
        text = found.text(_spelled)
        print(text if why is None else f"{text}\n\n{why}")
    if found.plan is not None:
        return 0
    say(f"error: {found.infeasible()}")
    return 3


def fitted(arguments: Namespace) -> Fit:
    """``--model`` and its recipe, as every command takes them."""
    found = _fitted(arguments)
    for note in found.of_sharding:
        say(f"note: {note}")
    return found


@_as_options()
def _fitted(arguments: Namespace, *, search: bool = False) -> Fit:
    budget = getattr(arguments, "budget", None)
    return fit_model(_model(arguments), **_given(arguments), budget=budget, search=search)


@_as_options()
def staged(arguments: Namespace, reserved: int) -> tuple[CostGraph, Budget]:
    """Costs of --model in a pipeline, and its GPU's budget without margin and `reserved`."""
    given = _given(arguments) | {"pipeline_parallel": arguments.stages}
    of_costs = ("gpu", "batch", "sequence", "efficiency", "options", "tiles", "margin")
    about = {name: given.pop(name) for name in of_costs if name in given}
    shape, gpu = load_shape(_model(arguments)), load_gpu(about.get("gpu", "h100"))
    recipe = recipe_of(None, cast(RecipeFields, given))
    training = Training(shape, gpu, recipe, about.get("efficiency"), about.get("tiles", False))
    sizes = about.get("batch", 1), about.get("sequence", default_sequence(shape))
    asked = gpu.usable_bytes if arguments.budget is None else parse_bytes(arguments.budget)
    margin = about.get("margin")
    aside = default_margin(asked, 2)
    if margin is not None:
        aside = parse_bytes(margin, what="the margin", allow_zero=True)
    aside += training.stage_bytes(*sizes, arguments.microbatches or 1) + reserved
    costs = training.pipeline_costs(*sizes, options=about.get("options", False))
    return costs, Budget(asked, aside)


def set_aside(found: Fit, reserved: int, *, state: bool) -> tuple[Budget, str]:
    """The budget and what comes off it with `reserved` bytes more; what that is for, in words.

    Without the state where that is left out.
    """
    parts = [found.reserved_for] if state else [f"margin {format_bytes(found.margin_bytes)}"]
    parts += [f"reserved {format_bytes(reserved)}"] if reserved else []
    size = (found.reserved_bytes if state else found.margin_bytes) + reserved
    return found.setting_aside(size), ", ".join(parts)


def aside_line(found: Fit, size: Budget, what: str, *, state: bool) -> str:
    """What of the budget is set aside, in a line."""
    left = size.available
    return (
        f"{found.shape.name}, {found.state.recipe}: of {format_both(size.asked)}, "
        f"{found.training.gpu.name}, {format_bytes(size.reserved)} are set aside ({what})"
        f"{'' if state else '; the state is left out (--state none)'}; "
        f"{format_bytes(left) if left > 0 else 'nothing'} is left for the step"
    )


def _option(argument: Argument) -> str:
    """An argument as it is given here; as Python spells it where there is no option."""
    if argument.name not in _FLAGS:
        return str(argument)
    if argument.name == "train" and argument.value is not None:
        return f"--{argument.value}"
    flag = argument.value is None or argument.value is True
    value = "" if flag else f" {argument.value}"
    if isinstance(argument.value, Lora):
        value = f" {_adapters(argument.value)}"
    return f"--{_FLAGS[argument.name]}{value}"


def _spelled(arguments: Sequence[Argument]) -> str:
    """Arguments as they are given here; that adapters train is said by --lora."""
    return " ".join(_option(each) for each in arguments if each.value != "lora")


def _adapters(lora: Lora) -> str:
    """Adapters on all layers as ``--lora`` writes them."""
    dtype = "" if lora.dtype == Lora(lora.rank).dtype else f",dtype={lora.dtype}"
    return f"r={lora.rank}{dtype}"


def parse_lora(text: str) -> Lora:
    """Adapters as ``--lora`` writes them: ``r=16,targets=q,v,dtype=bf16``.

    A part without ``=`` continues the part before it, so targets may be joined by , or +.
    """
    parts: list[tuple[str, str]] = []
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if equals:
            parts.append((name, value))
        elif parts and parts[-1][0] == "targets":
            parts[-1] = ("targets", f"{parts[-1][1]}+{name}")
        else:
            raise InvalidRecipe(f"--lora {shown(text)} has a part {shown(part)} without =; {_LORA}")
    values: dict[str, Any] = {}
    for name, value in parts:
        if name in values:
            raise InvalidRecipe(f"--lora {shown(text)} gives {name} twice; {_LORA}")
        values[name] = value
    if "r" not in values or not values.keys() <= {"r", "targets", "dtype", "dropout"}:
        odd = [name for name in values if name not in ("r", "targets", "dtype", "dropout")]
        what = f"an unknown part {odd[0]!r}" if odd else "no r"
        raise InvalidRecipe(f"--lora {shown(text)} has {what}; {_LORA}")
    try:
        rank = int(values.pop("r"))
        dropout = float(values.pop("dropout", "0"))
    except ValueError as error:
        raise InvalidRecipe(
            f"--lora {shown(text)} has no number where one is due; {_LORA}"
        ) from error
    targets = values.pop("targets", "all")
    named = "all" if targets == "all" else tuple(targets.split("+"))
    return Lora(rank, named, dropout=dropout, **values)


def _model(arguments: Namespace) -> str:
    if arguments.model is None:
        raise InvalidRecipe("no model given; add one, as in --model llama-3-8b")
    model: str = arguments.model
    return model


def _given(arguments: Namespace) -> dict[str, Any]:
    """The arguments and the fields of a `Recipe` that options were given for."""
    # Options are kept by the names that they are given by: --gradient-dtype as "gradient-dtype".
    found = {option.argument: getattr(arguments, option.flag) for option in OPTIONS}
    given = {name: value for name, value in found.items() if value is not None}
    if arguments.frozen:
        given["train"] = "frozen"
    if arguments.lora is not None:
        if arguments.frozen:
            raise InvalidRecipe("--frozen trains nothing and --lora trains adapters; give one")
        given |= {"train": "lora", "lora": parse_lora(arguments.lora)}
    return given
