"""Does a training run fit a GPU, and if not, what does checkpointing make of it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from scheduler.common.errors import InfeasibleBudget
from scheduler.common.text import did_you_mean
from scheduler.common.units import check_unit, parse_bytes, resolve_budget
from scheduler.memory.errors import Argument, InvalidRecipe, check_count, check_flag
from scheduler.memory.fitting.facts import FitFacts
from scheduler.memory.fitting.remedies import Remedy, find_remedies
from scheduler.memory.fitting.search import trained_positions
from scheduler.memory.fitting.text import Spelling, fit_lines, spelled
from scheduler.memory.fitting.training import Efficiency, Training
from scheduler.memory.gpus import Gpu, load_gpu
from scheduler.memory.recipe import Recipe, RecipeFields, recipe_of
from scheduler.memory.shape.load import load_shape
from scheduler.memory.shape.shape import Shape

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True, repr=False)
class Fit(FitFacts):
    """What a training step needs on one GPU, and what it has; made by `fit`.

    Printed, it is one screen; `FitFacts` lists its figures, `to_dict` gives them as JSON values.
    """

    def infeasible(self) -> InfeasibleBudget:
        """The error that says what a fit without a plan says."""
        return InfeasibleBudget(
            self.budget_bytes,
            self.smallest_budget_bytes,
            self.set_by,
            self.reserved_bytes,
            reserved_for=self.reserved_for,
        )

    @cached_property
    def remedies(self) -> tuple[Remedy, ...]:
        """What would help where not everything can be kept, best first; none without a search."""
        return find_remedies(self) if self.search and not self.fits else ()

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values; sizes in bytes, of one GPU."""
        return super().to_dict() | {"remedies": [each.to_dict() for each in self.remedies]}

    def text(self, spell: Spelling = spelled) -> str:
        """What is printed; `spell` says how arguments are given, here as Python has them."""
        return "\n".join(fit_lines(self, self.remedies, spell))

    def __repr__(self) -> str:
        return (
            f"<Fit: {self.shape.name}, batch {self.batch} × {self.sequence} on "
            f"{self.training.gpu.name}, {self.conclusion()}>"
        )

    def __str__(self) -> str:
        return self.text()


def default_sequence(shape: Shape) -> int:
    """4096 tokens, or as many as the model has learned positions for; of images what they make."""
    return min(4096, shape.longest or 4096)


def fit(
    shape: Shape | Mapping[str, object] | str | os.PathLike[str],
    *,
    recipe: Recipe | None = None,
    gpu: str | Gpu = "h100",
    efficiency: Efficiency = None,
    batch: int = 1,
    sequence: int | None = None,
    margin: object = None,
    budget: object = None,
    budget_gb: object = None,
    search: bool = True,
    options: bool = False,
    tiles: bool | int = False,
    **fields: Unpack[RecipeFields],
) -> Fit:
    """Whether a training step fits on one GPU, and the optimal plan where it must be checkpointed.

    A step's memory is highest at one of three moments. What is always there (weights, master,
    moments; gradients where they accumulate) is the same in all: (1) up to the loss: all saved
    activations, and the logits' gradients or the working memory of a forward; (2) the backward of
    another layer: what is still saved, that layer, and gradients so far; (3) the optimizer's step:
    all gradients and its temporaries. The peak is the largest of the three, not their sum.

    It is one of the recipe's GPUs: state, activations and times are its part. Stages of a pipeline
    hold more than one microbatch, and differ: `pipeline_parallel` is refused, and told of where it
    is known.

    Parameters
    ----------
    shape
        A shape, or what `load_shape` takes.
    gpu, efficiency
        The GPU: its memory and the times of a plan. See `costs_from_shape`.
    batch, sequence
        Sequences on one GPU at once, and tokens in each; default: see `default_sequence`.
    recipe, fields
        A `Recipe`, or its fields. What ZeRO gathers and
        reduces layer by layer is working memory, and accumulated gradients are in each of the three
        moments: see `Training.costs`.
    margin
        Bytes, or text such as "4GiB"; default: see `default_margin`.
    budget, budget_gb
        Bytes, or text; or a number of GB. Default: all the memory that the GPU has for programs.
    search
        Also look for the largest batch and the longest sequence, and for what would help
        (`Fit.remedies`).
    options
        The plan may keep parts of blocks: see `costs_from_shape`. They save time, not room: the
        search does without them.
    tiles
        MLPs, norms, and the head with its loss may run in tiles: see `costs_from_shape`. That saves
        room.

    Returns
    -------
    Fit
        Also when nothing fits: `plan` is None then.

    Raises
    ------
    InvalidShape, InvalidRecipe, InvalidBudget, UnsupportedModel
        An argument has no meaning, or nobody has derived a formula for it.
    """
    _refuse(fields)
    search = check_flag(Argument("search"), search, InvalidRecipe)
    recipe = recipe_of(recipe, fields)
    if recipe.pipeline_parallel > 1:
        raise InvalidRecipe(
            Argument("pipeline_parallel", recipe.pipeline_parallel),
            " cuts a model into stages, each with a plan of its own, and fit is of one GPU alone; "
            "scheduler.memory.pipeline_costs has what scheduler.pipeline.solve_pipeline cuts",
        )
    training = Training(load_shape(shape), load_gpu(gpu), recipe, efficiency, tiles)
    if sequence is None:
        sequence = default_sequence(training.shape)
    size = training.gpu.usable_bytes
    if budget is not None or budget_gb is not None:
        size = resolve_budget(budget_gb, budget)
    aside = None
    if margin is not None:
        aside = parse_bytes(margin, what="the margin", allow_zero=True)
    options = check_flag(Argument("options"), options, InvalidRecipe)
    found = Fit(
        training,
        check_count(Argument("batch"), batch, InvalidRecipe),
        check_count(Argument("sequence"), sequence, InvalidRecipe),
        options,
        size,
        aside,
        trained_positions(shape, training.shape),
        search,
    )
    _ = found.costs  # what is wrong with a size is said now
    check_unit("budget", budget_gb, budget, size, lambda: found.peak_bytes)
    check_unit("the margin", None, margin, found.margin_bytes, lambda: found.peak_bytes)
    return found


def _refuse(given: Mapping[str, object]) -> None:
    """Say of a keyword that `fit` does not have what there is in its place."""
    known = RecipeFields.__annotations__
    for name in given:
        if name not in known:
            names = {*inspect.signature(fit).parameters, *known} - {"fields"}
            near = did_you_mean(name, sorted(names))
            raise InvalidRecipe(
                f"fit takes no {name!r}{near or '; help(fit) lists what it takes'}", argument=name
            )
