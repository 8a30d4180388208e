"""The memory arithmetic of training: what a run takes before anything is checkpointed."""

from scheduler.memory.costs import costs_from_shape
from scheduler.memory.errors import InvalidRecipe, InvalidShape
from scheduler.memory.fitting.fit import Fit, fit
from scheduler.memory.fitting.stages import pipeline_costs
from scheduler.memory.recipe import Lora, Recipe
from scheduler.memory.shape.load import load_shape
from scheduler.memory.shape.shape import Shape
from scheduler.memory.state.state import State, training_state

__all__ = [
    "Fit",
    "InvalidRecipe",
    "InvalidShape",
    "Lora",
    "Recipe",
    "Shape",
    "State",
    "costs_from_shape",
    "fit",
    "load_shape",
    "pipeline_costs",
    "training_state",
]
