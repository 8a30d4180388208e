"""What is found of a training step on one GPU: what it needs, and what the GPU has."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from scheduler.common.text import format_bytes, more_than_budget
from scheduler.costs.costgraph import CostGraph
from scheduler.memory.fitting.peaks import Moment
from scheduler.memory.fitting.training import Training
from scheduler.memory.shape.shape import Shape
from scheduler.memory.state.state import State
from scheduler.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest sizes that fit, 0 where not even 1 does.

    Attributes
    ----------
    batch, sequence
        The largest batch at the sequence that was asked, the longest sequence at the batch that
        was, with nothing checkpointed.
    batch_checkpointed, sequence_checkpointed
        The same with the best checkpointing.
    most_sequence
        Where the search for a sequence ends: learned positions, or 2²⁴.
    """

    batch: int
    batch_checkpointed: int
    sequence: int
    sequence_checkpointed: int
    most_sequence: int


@dataclass(frozen=True, repr=False)
class FitFacts:
    """What a training step needs on one GPU, and what it has: the figures of a `Fit`.

    Gradients are in the state and, as they are made during the backward, in the costs too. They
    are counted once: what is reserved leaves out those that the costs count.

    Attributes
    ----------
    training
        The shape, the GPU and the recipe.
    batch, sequence
        Sequences on one GPU, and tokens in each.
    costs
        What `scheduler.solve` takes, gradients as they are kept on one GPU.
    budget_bytes, margin_bytes
        The GPU's memory, or what was asked in its place; what of it is no tensor's.
    kept_bytes
        Live after the forward with nothing checkpointed: activations and the input.
    moments
        The three highest moments of a step with nothing checkpointed, in order: "loss", "layer",
        "optimizer"; on top of what is reserved.
    smallest_budget_bytes, set_by
        No plan fits a budget below, and what needs it.
    plan
        The fastest plan that fits; None when none does.
    limits
        None when they were not searched.
    trained_positions
        Tokens that the model has positions for: those it has learned, or what its config calls
        max_position_embeddings; None where that is not known.
    """

    training: Training
    batch: int
    sequence: int
    costs: CostGraph = field(compare=False)
    budget_bytes: int
    margin_bytes: int
    kept_bytes: int
    moments: tuple[Moment, ...]
    smallest_budget_bytes: int
    set_by: str
    plan: Plan | None
    limits: Limits | None
    trained_positions: int | None = None

    @property
    def shape(self) -> Shape:
        """The model's shape."""
        return self.training.shape

    @property
    def state(self) -> State:
        """What is held from step to step."""
        return self.training.state

    @cached_property
    def gradients_bytes(self) -> int:
        """Gradients that the costs count, and `reserved_bytes` does not."""
        return counted_gradients(self.costs, self.state)

    @property
    def reserved_bytes(self) -> int:
        """What comes off the budget first: the state but for `gradients_bytes`, and the margin."""
        return self.state.total_bytes - self.gradients_bytes + self.margin_bytes

    @property
    def available_bytes(self) -> int:
        """What is left for activations and gradients; negative where the state alone is more."""
        return self.budget_bytes - self.reserved_bytes

    @property
    def peak_bytes(self) -> int:
        """The highest of the three moments, without what is reserved."""
        return max(moment.bytes for moment in self.moments)

    @property
    def fits(self) -> bool:
        """Whether a step fits with nothing checkpointed."""
        return self.peak_bytes <= self.available_bytes

    @property
    def overhead(self) -> float | None:
        """Time that the plan loses to recomputation; None without a plan."""
        return None if self.plan is None else self.plan.overhead

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know beside the figures, in sentences without their full stop."""
        most, name = self.trained_positions, self.shape.name
        found = [self.bucket_note] if self.bucket_note else []
        if most is None:
            return tuple(found)
        if self.sequence > most:
            found.append(
                f"the sequence of {self.sequence:,} is beyond the {most:,} positions that {name} "
                "was configured for (max_position_embeddings)"
            )
        longest = 0 if self.limits is None else self.limits.sequence_checkpointed
        if self.shape.positions and longest >= most:
            found.append(
                f"{name} has learned {most:,} positions: no sequence can be longer, whatever "
                "memory is left"
            )
        elif longest > most:
            found.append(
                f"the longest sequences are by memory alone: {name} was configured for {most:,} "
                "positions (max_position_embeddings)"
            )
        return tuple(found)

    @property
    def bucket_note(self) -> str:
        """What DistributedDataParallel may hold besides, which is not counted; mostly nothing."""
        # Over GPUs with a stage of ZeRO what is gathered and reduced is counted layer by layer.
        sharding = self.training.recipe.sharding
        if sharding.gpus == 1 or sharding.stage or not self.state.gradients_bytes:
            return ""
        return (
            "not counted: DistributedDataParallel's buckets, a second copy of the gradients unless "
            "it is made with gradient_as_bucket_view=True"
        )

    def conclusion(self) -> str:
        """Fits or not, in a sentence without its full stop."""
        if self.fits:
            return "fits with nothing checkpointed"
        if self.plan is not None:
            return f"fits with checkpointing, {100 * self.plan.overhead:.2f}% slower"
        smallest = self.smallest_text()
        return f"does not fit: the smallest feasible budget is {smallest}, set by {self.set_by}"

    def smallest_text(self) -> str:
        """The smallest feasible budget, apart from the budget where both read the same."""
        smallest = self.smallest_budget_bytes
        return f"{format_bytes(smallest)}{more_than_budget(smallest, self.budget_bytes)}"

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values; sizes in bytes, of one GPU."""
        recipe = self.training.recipe
        said = {
            name: value for name, value in asdict(recipe).items() if not name.endswith("_parallel")
        }
        said |= {"gpus": recipe.sharding.gpus, "gradient_dtype": recipe.gradients}
        plan = None if self.plan is None else {**self.plan.to_dict(), "overhead": self.overhead}
        return {
            "model": self.shape.name,
            "parameters": self.shape.parameters,
            "batch": self.batch,
            "sequence": self.sequence,
            "gpu": self.training.gpu.name,
            **said,
            "budget_bytes": self.budget_bytes,
            "margin_bytes": self.margin_bytes,
            "state": {**dict(self.state.rows()), "total": self.state.total_bytes},
            "gradients_bytes": self.gradients_bytes,
            "reserved_bytes": self.reserved_bytes,
            "available_bytes": self.available_bytes,
            "kept_bytes": self.kept_bytes,
            "moments": [asdict(moment) for moment in self.moments],
            "peak_bytes": self.peak_bytes,
            "fits": self.fits,
            "smallest_budget_bytes": self.smallest_budget_bytes,
            "set_by": self.set_by,
            "overhead": self.overhead,
            "limits": None if self.limits is None else asdict(self.limits),
            "trained_positions": self.trained_positions,
            "notes": list(self.notes),
            "plan": plan,
        }


def counted_gradients(costs: CostGraph, state: State) -> int:
    """Bytes of the state's gradients that the costs count as the backward makes them."""
    # Where GPUs divide gradients each layer's part is rounded up, so the costs may have a few more.
    return min(state.gradients_bytes, sum(layer.gradient_bytes for layer in costs.layers))
