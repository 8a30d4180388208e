"""What else would make a training step fit, or lose less time, by the same arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, is_dataclass, replace
from typing import Any

from scheduler.common.errors import UnsupportedModel
from scheduler.memory.errors import Argument, InvalidRecipe
from scheduler.memory.fitting.facts import FitFacts
from scheduler.memory.recipe import Lora, RecipeFields

_NODE = 8
"""GPUs that are suggested where there is one: as many as a machine mostly has."""
_RANK = 16


@dataclass(frozen=True, slots=True)
class Remedy:
    """Arguments of `fit` that help, and what it finds with them.

    Attributes
    ----------
    arguments
        Names and values, in place of those that were asked.
    note
        What goes with it, as part of a sentence; mostly nothing.
    overhead
        Time that the plan loses to recomputation; None where none fits.
    smallest_budget_bytes
        No plan fits a budget below.
    """

    arguments: tuple[Argument, ...]
    note: str
    overhead: float | None
    smallest_budget_bytes: int

    @property
    def takes_gpus(self) -> bool:
        """Whether it takes more GPUs than there are."""
        return any(each.name == "gpus" for each in self.arguments)

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values."""
        said = {each.name: each.value for each in self.arguments}
        values = {
            name: asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
            for name, value in said.items()
        }
        return {
            "arguments": values,
            "note": self.note,
            "overhead": self.overhead,
            "smallest_budget_bytes": self.smallest_budget_bytes,
        }


def find_remedies(found: FitFacts) -> tuple[Remedy, ...]:
    """What does better than what was found, each change by itself, best first; more GPUs come last.

    Better: a plan fits; it loses less time; or, where none fits, less memory is needed. Of equals
    the one that changes less comes first: the head in tiles, a chunked loss, options, a stage of
    ZeRO, micro-batches, an optimizer of 8 bits, adapters, a quantized base.
    """
    kinds = (_best(found, note, changes) for note, changes in _changes(found))
    helpful = [each for each in kinds if each is not None and _rank(each) < _rank(found)]
    return tuple(sorted(helpful, key=lambda each: (each.takes_gpus, _rank(each))))


def _rank(found: FitFacts | Remedy) -> tuple[bool, float]:
    """The lower the better."""
    if found.overhead is None:
        return True, found.smallest_budget_bytes
    return False, found.overhead


def _changes(found: FitFacts) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Kinds of changes, the smallest first, each with its alternatives and what is said of it."""
    recipe, batch = found.training.recipe, found.batch
    if not found.training.tiles:
        yield "gradients equal to rounding", [{"tiles": True}]
    if recipe.loss != "chunked":
        yield "an estimate, of equal chunks", [{"loss": "chunked"}]
    stage, gpus = recipe.sharding.stage, recipe.sharding.gpus
    if found.plan is not None and not found.options and not recipe.sharding.refuses_options:
        yield "", [{"options": True}]
    most = 2 if found.options else 3  # options are refused in the third
    if gpus > 1:
        yield "", [{"zero": more} for more in range(stage + 1, most + 1)]
    else:
        stages = range(max(stage, 1), most + 1)
        yield f"{_NODE} GPUs in place of 1", [{"zero": more, "gpus": _NODE} for more in stages]
    more = {} if recipe.train == "frozen" else {"gradient_accumulation": True}
    sizes = [batch // parts for parts in (2, 4, 8, 16, 32, 64) if batch % parts == 0]
    if batch > 1:
        yield f"for a step of {batch}", [{"batch": size} | more for size in (*sizes, 1)]
    if recipe.optimizer in ("adam", "adamw") and recipe.train != "frozen":
        yield "", [{"optimizer": "adam-8bit"}]
    if recipe.train == "full":
        dtype = "fp16" if recipe.compute == "fp16" else "bf16"
        yield "adapters alone train", [{"train": "lora", "lora": Lora(_RANK, dtype=dtype)}]
    if recipe.train == "lora" and recipe.base is None:
        yield "QLoRA: frozen weights quantized", [{"base": "nf4"}]


def _best(found: FitFacts, note: str, changes: list[dict[str, Any]]) -> Remedy | None:
    """The best of some changes, the first of equals; None where nothing is known of any."""
    known = []
    for change in changes:
        try:
            other = _changed(found, change)
            known.append(
                Remedy(
                    tuple(Argument(name, value) for name, value in change.items()),
                    note,
                    other.overhead,
                    other.smallest_budget_bytes,
                )
            )
        except (InvalidRecipe, UnsupportedModel):
            continue
    return min(known, key=_rank, default=None)


def _changed(found: FitFacts, change: dict[str, Any]) -> FitFacts:
    """What is found with other arguments."""
    fields = {name: value for name, value in change.items() if name in RecipeFields.__annotations__}
    own = {name: value for name, value in change.items() if name not in fields}
    training = found.training
    recipe, tiles = replace(training.recipe, **fields), own.pop("tiles", training.tiles)
    training = replace(training, recipe=recipe, tiles=tiles)
    return replace(found, training=training, search=False, **own)
