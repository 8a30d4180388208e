"""``fit``, and the costs of a model for the other commands."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from scheduler.common.errors import InfeasibleBudget, UnsupportedModel
from scheduler.common.text import shown
from scheduler.costs.costgraph import CostGraph
from scheduler.memory.activations.setting import Lora
from scheduler.memory.errors import InvalidRecipe, InvalidShape
from scheduler.memory.fitting.fit import default_sequence
from scheduler.memory.fitting.fit import fit as fit_model
from scheduler.memory.fitting.peaks import smallest_peak
from scheduler.memory.fitting.sqrt import explain
from scheduler.memory.fitting.training import Training
from scheduler.memory.fitting.verdict import counted_gradients
from scheduler.memory.gpus import load_gpu
from scheduler.memory.shape.shape import load_shape

__all__ = ["check_room", "fit", "model_costs", "parse_lora"]

_OF_THE_STATE = ("zero", "gpus", "base", "gradient_dtype", "gradient_accumulation", "update")
_LORA = "write it as r=16,targets=q+v,dtype=bf16,dropout=0.05; r is needed"
_ARGUMENTS = (
    (r"\btrain='(lora|frozen)'", r"--\1"),
    (r"\b(attention|precision|base)='([\w-]+)'", r"--\1 \2"),
    (r"\bflops_efficiency of [\w-]+ must", "--efficiency must"),
    (
        r"^(batch|sequence|gpus|zero|gpu|optimizer|precision|attention|loss|update|base) must ",
        r"--\1 must ",
    ),
    (r"\bgradient_(dtype|accumulation)\b", r"--gradient-\1"),
)


def fit(arguments: Namespace) -> int:
    """``fit``: one screen; status 3 when no plan fits."""
    with _as_options():
        found = fit_model(
            _model(arguments),
            **_recipe(arguments),
            **_given(arguments, ("batch", "sequence", "margin", "budget")),
            search=not arguments.no_search,
            options=bool(arguments.options),
        )
    training = found.training
    _say_unsharded(training)
    why = None
    if arguments.explain:
        why = explain(
            found.shape,
            found.batch,
            found.sequence,
            precision=training.compute,
            attention=training.attention,
            train=training.train,
            lora=training.lora,
            costs=found.costs,
        )
    if arguments.json:
        record = found.to_dict() | ({} if why is None else {"explanation": why})
        print(json.dumps(record, indent=1))
    else:
        print(found if why is None else f"{found}\n\n{why}")
    if found.plan is not None:
        return 0
    print(f"checkpoint-scheduler: error: {found.infeasible()}", file=sys.stderr)
    return 3


def model_costs(arguments: Namespace) -> tuple[CostGraph, int]:
    """The costs of ``--model`` and, with ``--optimizer``, the state that is always there.

    Gradients that the costs count are not in the second: a plan has them already.
    """
    with _as_options():
        return _model_costs(arguments)


def _model_costs(arguments: Namespace) -> tuple[CostGraph, int]:
    shape = load_shape(_model(arguments))
    recipe = _recipe(arguments)
    needs = [name for name in _OF_THE_STATE if name in recipe]
    if arguments.optimizer is None and needs:
        option = needs[0].replace("_", "-")
        raise InvalidRecipe(f"--{option} needs --optimizer: it changes the persistent state")
    if "update" in recipe:
        raise InvalidRecipe("--update goes with the command fit, which counts the optimizer's step")
    training = Training(shape=shape, **{"gpu": load_gpu("h100"), **recipe})
    sequence = default_sequence(shape) if arguments.sequence is None else arguments.sequence
    batch = 1 if arguments.batch is None else arguments.batch
    costs = training.costs(batch, sequence, options=bool(arguments.options))
    if arguments.command == "show" and not arguments.json:
        costs = _to_read(costs)
    if arguments.optimizer is None:
        return costs, 0
    _say_unsharded(training)
    state = training.state
    return costs, state.total_bytes - counted_gradients(costs, state)


def _to_read(costs: CostGraph) -> CostGraph:
    """With times of four digits: a roofline does not know more, and a table is read."""

    def short(time: float) -> float:
        return float(f"{time:.4g}")

    layers = (
        replace(
            layer,
            forward_time=short(layer.forward_time),
            backward_time=short(layer.backward_time),
        )
        for layer in costs.layers
    )
    return replace(costs, layers=tuple(layers))


@contextlib.contextmanager
def _as_options() -> Iterator[None]:
    """Let errors name options, where they name arguments: ``--lora`` for ``train='lora'``."""
    try:
        yield
    except (InvalidRecipe, InvalidShape, UnsupportedModel) as error:
        text = str(error)
        for pattern, option in _ARGUMENTS:
            text = re.sub(pattern, option, text)
        if text == str(error):
            raise
        raise type(error)(text) from error


def _say_unsharded(training: Training) -> None:
    stage = training.sharding.stage
    if stage and training.gpus == 1:
        print(
            f"checkpoint-scheduler: note: ZeRO-{stage} over 1 GPU shards nothing; give --gpus",
            file=sys.stderr,
        )


def check_room(costs: CostGraph, budget_bytes: int, reserved_bytes: int) -> None:
    """Say what is needed where the state alone is more than the budget: that is no bad input."""
    if reserved_bytes >= budget_bytes:
        least, set_by = smallest_peak(costs)
        raise InfeasibleBudget(budget_bytes, least + reserved_bytes, set_by, reserved_bytes)


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


def _recipe(arguments: Namespace) -> dict[str, Any]:
    """What `Training` takes, as far as it was given."""
    names = ("precision", "optimizer", "gpus", "base", "attention", "loss", "update", "efficiency")
    recipe = _given(arguments, (*names, "gradient_dtype", "gradient_accumulation"))
    if arguments.gpu is not None:
        recipe["gpu"] = load_gpu(arguments.gpu)
    if arguments.zero is not None:
        recipe["zero"] = int(arguments.zero) if arguments.zero.isdecimal() else arguments.zero
    if arguments.lora is not None:
        if arguments.frozen:
            raise InvalidRecipe("--frozen trains nothing and --lora trains adapters; give one")
        recipe |= {"train": "lora", "lora": parse_lora(arguments.lora)}
    elif arguments.frozen:
        recipe["train"] = "frozen"
    return recipe


def _given(arguments: Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    # Options are kept by the names that they are given by: --gradient-dtype as "gradient-dtype".
    found = {name: getattr(arguments, name.replace("_", "-")) for name in names}
    return {name: value for name, value in found.items() if value is not None}
