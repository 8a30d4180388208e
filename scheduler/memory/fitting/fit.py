"""Does a training run fit a GPU, and if not, what does checkpointing make of it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scheduler.api import solve
from scheduler.common.errors import InfeasibleBudget
from scheduler.common.text import did_you_mean
from scheduler.common.units import parse_bytes
from scheduler.memory.errors import Argument, InvalidRecipe, check_flag
from scheduler.memory.fitting.facts import FitFacts, Limits, counted_gradients
from scheduler.memory.fitting.peaks import kept_bytes, moments, smallest_peak
from scheduler.memory.fitting.search import MOST_SEQUENCES, MOST_TOKENS, largest, trained_positions
from scheduler.memory.fitting.text import fit_lines
from scheduler.memory.fitting.training import Efficiency, Training
from scheduler.memory.gpus import Gpu, load_gpu
from scheduler.memory.recipe import Recipe, RecipeFields, no_degree, recipe_of
from scheduler.memory.shape.shape import Shape, load_shape

if TYPE_CHECKING:
    from typing_extensions import Unpack


_CONTEXT = 2**30
_COMMUNICATION = 2**30
_FRAGMENTATION = 3  # percent


@dataclass(frozen=True, repr=False)
class Fit(FitFacts):
    """What a training step needs on one GPU, and what it has; made by `fit`.

    Printed, it is one screen; `FitFacts` lists its figures, `to_dict` gives them as JSON values.
    """

    def infeasible(self) -> InfeasibleBudget:
        """The error that says what a fit without a plan says."""
        return InfeasibleBudget(
            self.budget_bytes, self.smallest_budget_bytes, self.set_by, self.reserved_bytes
        )

    def __repr__(self) -> str:
        return (
            f"<Fit: {self.shape.name}, batch {self.batch} × {self.sequence} on "
            f"{self.training.gpu.name}, {self.conclusion()}>"
        )

    def __str__(self) -> str:
        return "\n".join(fit_lines(self))


def default_margin(budget_bytes: int, gpus: int = 1) -> int:
    """What is set aside for memory that is no tensor: 1 GiB, 3% and, on several GPUs, 1 GiB.

    The first is for the CUDA context and the libraries' workspaces, 3% of the budget for what the
    allocator rounds up and cannot use again, the last for communication buffers. A convention, not
    a formula: it depends on driver, libraries and how sizes vary. Published peaks that were
    measured as reserved memory are up to 9% above the sum of tensors, most within 3%
    (benchmarks/memory.py). One measured run tells yours.
    """
    return _CONTEXT + budget_bytes * _FRAGMENTATION // 100 + (_COMMUNICATION if gpus > 1 else 0)


def default_sequence(shape: Shape) -> int:
    """4096 tokens, or as many as the model has learned positions for."""
    return min(4096, shape.positions or 4096)


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
    search: bool = True,
    options: bool = False,
    **fields: Unpack[RecipeFields],
) -> Fit:
    """Whether a training step fits on one GPU, and the optimal plan where it must be checkpointed.

    A step's memory is highest at one of three moments. What is always there (weights, master,
    moments; gradients where they accumulate) is the same in all: (1) up to the loss: all saved
    activations, and the logits' gradients or the working memory of a forward; (2) the backward of
    another layer: what is still saved, that layer, and gradients so far; (3) the optimizer's step:
    all gradients and its temporaries. The peak is the largest of the three, not their sum.

    GPUs are data-parallel. Tensor, pipeline, sequence, context and expert parallelism also split
    activations and add communication, for which there are no formulas here: their names are
    refused. `training_state` divides the persistent state by them.

    Parameters
    ----------
    shape
        A shape, or what `load_shape` takes.
    gpu, efficiency
        The GPU: its memory and the times of a plan. See `costs_from_shape`.
    batch, sequence
        Sequences on one GPU at once, and tokens in each; default: see `default_sequence`.
    recipe, fields
        A `Recipe`, or its fields, with `gpus` that are data-parallel ones. What ZeRO gathers and
        reduces layer by layer is working memory, and accumulated gradients are in each of the three
        moments: see `Training.costs`.
    margin
        Bytes, or text such as "4GiB"; default: see `default_margin`.
    budget
        Bytes, or text; default: all the memory that the GPU has for programs.
    search
        Also look for the largest batch and the longest sequence.
    options
        The plan may keep parts of blocks: see `costs_from_shape`. They save time, not room: the
        search does without them.

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
    training = Training(load_shape(shape), load_gpu(gpu), recipe, efficiency)
    if sequence is None:
        sequence = default_sequence(training.shape)
    size = training.gpu.usable_bytes if budget is None else parse_bytes(budget)
    aside = (
        default_margin(size, recipe.sharding.gpus)
        if margin is None
        else parse_bytes(margin, what="the margin", allow_zero=True)
    )
    options = check_flag(Argument("options"), options, InvalidRecipe)
    costs = training.costs(batch, sequence, options=options)
    gradients = counted_gradients(costs, training.state)
    reserved = training.state.total_bytes - gradients + aside
    found = moments(costs, training.temporaries_bytes())
    least, set_by = smallest_peak(costs)
    if found[-1].bytes > least:
        least, set_by = found[-1].bytes, found[-1].set_by
    plan = None
    if least + reserved <= size:
        plan = solve(costs, budget=size, reserved=reserved)
    return Fit(
        training=training,
        batch=int(batch),
        sequence=int(sequence),
        costs=costs,
        budget_bytes=size,
        margin_bytes=aside,
        kept_bytes=kept_bytes(costs),
        moments=found,
        smallest_budget_bytes=least + reserved,
        set_by=set_by,
        plan=plan,
        limits=_limits(training, int(batch), int(sequence), size - reserved) if search else None,
        trained_positions=trained_positions(shape, training.shape),
    )


def _refuse(given: Mapping[str, object]) -> None:
    """Say of a keyword that `fit` does not have what there is in its place."""
    known = RecipeFields.__annotations__
    for name in given:
        if name.endswith("_parallel"):
            raise no_degree("fit", name)
        if name not in known:
            names = {*inspect.signature(fit).parameters, *known} - {"fields"}
            near = did_you_mean(name, sorted(names))
            raise InvalidRecipe(
                f"fit takes no {name!r}{near or '; help(fit) lists what it takes'}", argument=name
            )


def _limits(training: Training, batch: int, sequence: int, available: int) -> Limits:
    """Search all four, each by the definition that `Fit.fits` and `Fit.plan` use."""
    temporaries = training.temporaries_bytes()

    def fits(batch: int, sequence: int, checkpointed: bool) -> bool:
        try:
            costs = training.costs(batch, sequence)
        except InvalidRecipe:
            # All but its size has been checked before: it is too large to count.
            return False
        loss, layer, optimizer = (moment.bytes for moment in moments(costs, temporaries))
        if optimizer > available:
            return False
        if max(loss, layer) <= available:
            return True
        return checkpointed and smallest_peak(costs)[0] <= available

    longest = training.shape.positions or MOST_TOKENS

    def most_batch(checkpointed: bool) -> int:
        return largest(lambda n: fits(n, sequence, checkpointed), MOST_SEQUENCES, batch)

    def most_sequence(checkpointed: bool) -> int:
        return largest(lambda n: fits(batch, n, checkpointed), longest, sequence)

    return Limits(
        batch=most_batch(False),
        batch_checkpointed=most_batch(True),
        sequence=most_sequence(False),
        sequence_checkpointed=most_sequence(True),
        most_sequence=longest,
    )
