"""Costs of a model that is trained in a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING

from scheduler.costs.costgraph import CostGraph
from scheduler.memory.fitting.training import Efficiency, Training
from scheduler.memory.gpus import Gpu, load_gpu
from scheduler.memory.recipe import Recipe, RecipeFields, recipe_of
from scheduler.memory.shape.load import load_shape
from scheduler.memory.shape.shape import Shape

if TYPE_CHECKING:
    from typing_extensions import Unpack


def pipeline_costs(
    shape: Shape | Mapping[str, object] | str | PathLike[str],
    batch: int,
    sequence: int,
    *,
    recipe: Recipe | None = None,
    gpu: str | Gpu = "h100",
    efficiency: Efficiency = None,
    options: bool = False,
    tiles: bool | int = False,
    **fields: Unpack[RecipeFields],
) -> CostGraph:
    """Costs of one microbatch that `solve_pipeline` takes: each layer with its `state_bytes`.

    They are those of `costs_from_shape` on one GPU of each stage, with what the layer holds from
    step to step: weights, all its gradients, and the optimizer's state, divided as the recipe says.
    The embedding is the first layer, the head the last; with `pipeline_parallel` above 1 a table
    that is tied is held by both, as the runtimes have it. With ZeRO-3 a stage keeps its weights
    gathered through a step (torchtitan's ``reshard_after_forward`` in a pipeline).

    `input_bytes` are the token ids of a microbatch. Rotary tables, labels and masks, which a stage
    has once, are not in the costs: `Training.stage_bytes` has them, for `reserved`.

    Parameters
    ----------
    shape, batch, sequence, recipe, gpu, efficiency, options, tiles, fields
        As in `costs_from_shape`; the batch is one microbatch's on one GPU, and the sequence whole.

    Raises
    ------
    InvalidShape, InvalidRecipe, UnsupportedModel
        As in `costs_from_shape`; there are formulas for decoders alone.
    """
    model, machine = load_shape(shape), load_gpu(gpu)
    training = Training(model, machine, recipe_of(recipe, fields), efficiency, tiles)
    return training.pipeline_costs(batch, sequence, options=options)
