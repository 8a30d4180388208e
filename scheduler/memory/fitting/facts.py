"""What is found of a training step on one GPU: what it needs, and what the GPU has."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from scheduler.api import solve
from scheduler.common.text import format_bytes, format_smallest
from scheduler.costs.costgraph import CostGraph
from scheduler.memory.fitting.peaks import (
    Moment,
    kept_bytes,
    moments,
    smallest_peak,
    with_optimizer,
)
from scheduler.memory.fitting.search import Limits, find_limits
from scheduler.memory.fitting.training import Training
from scheduler.memory.shape.shape import Shape
from scheduler.memory.state.state import State
from scheduler.planning.request import Budget, percent_of
from scheduler.plans.plan import Plan
from scheduler.report.tables import format_percent

_CONTEXT = 2**30
_COMMUNICATION = 2**30
FRAGMENTATION = 3
"""Percent of a budget that an allocator rounds up and cannot use again."""


def default_margin(budget_bytes: int, gpus: int = 1) -> int:
    """What is set aside for memory that is no tensor: 1 GiB, 3% and, on several GPUs, 1 GiB.

    The first is for the CUDA context and the libraries' workspaces, 3% of the budget for what the
    allocator rounds up and cannot use again, the last for communication buffers. A convention, not
    a formula: it depends on driver, libraries and how sizes vary. Published peaks that were
    measured as reserved memory are up to 9% above the sum of tensors, most within 3%
    (benchmarks/memory.py). One measured run tells yours.
    """
    share = percent_of(budget_bytes, FRAGMENTATION)
    return _CONTEXT + share + (_COMMUNICATION if gpus > 1 else 0)


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
    options
        Whether plans may keep parts of blocks.
    budget_bytes
        The GPU's memory, or what was asked in its place.
    asked_margin_bytes
        What of it is no tensor's, as it was asked; None: the default.
    trained_positions
        Tokens that the model has positions for: those it has learned, or what its config calls
        max_position_embeddings; None where that is not known.
    search
        Whether the largest sizes are looked for, and what would help.
    """

    training: Training
    batch: int
    sequence: int
    options: bool
    budget_bytes: int
    asked_margin_bytes: int | None
    trained_positions: int | None = None
    search: bool = False

    @cached_property
    def costs(self) -> CostGraph:
        """What `scheduler.solve` takes: gradients as they are kept on one GPU.

        What the optimizer's step needs is part of the last backward.
        """
        costs = self.training.costs(self.batch, self.sequence, options=self.options)
        return with_optimizer(costs, self.training.temporaries_bytes())

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
    def margin_bytes(self) -> int:
        """What is set aside for memory that is no tensor's."""
        if self.asked_margin_bytes is not None:
            return self.asked_margin_bytes
        return default_margin(self.budget_bytes, self.training.recipe.sharding.gpus)

    @property
    def reserved_for(self) -> str:
        """What `reserved_bytes` are for, as part of a sentence."""
        state = format_bytes(self.state.total_bytes - self.gradients_bytes)
        without = " without gradients" if self.gradients_bytes else ""
        return f"state{without} {state}, margin {format_bytes(self.margin_bytes)}"

    @property
    def size(self) -> Budget:
        """The budget and what comes off it, of which the default margin grows with the budget."""
        return self.setting_aside(self.reserved_bytes)

    def setting_aside(self, reserved: int) -> Budget:
        """The same with something else reserved, the margin in it."""
        percent = FRAGMENTATION if self.asked_margin_bytes is None else 0
        return Budget(self.budget_bytes, reserved, percent)

    @property
    def available_bytes(self) -> int:
        """What is left for activations and gradients; negative where the state alone is more."""
        return self.size.available

    @cached_property
    def kept_bytes(self) -> int:
        """Live after the forward with nothing checkpointed: activations and the input."""
        return kept_bytes(self.costs)

    @cached_property
    def moments(self) -> tuple[Moment, ...]:
        """The three highest moments of a step with nothing checkpointed, in order.

        "loss", "layer", "optimizer"; on top of what is reserved.
        """
        temporaries = self.training.temporaries_bytes()
        # The costs have the optimizer's step in another moment.
        costs = self.training.costs(self.batch, self.sequence) if temporaries else self.costs
        return moments(costs, temporaries)

    @property
    def peak_bytes(self) -> int:
        """The highest of the three moments, without what is reserved."""
        return max(moment.bytes for moment in self.moments)

    @property
    def fits(self) -> bool:
        """Whether a step fits with nothing checkpointed."""
        return self.peak_bytes <= self.available_bytes

    @cached_property
    def _least(self) -> Moment:
        """The highest moment of the plan that needs the least."""
        least, set_by = smallest_peak(self.costs)
        after = self.moments[-1]
        if after.bytes == least and self.training.temporaries_bytes():
            return after
        return Moment("plan", least, set_by)

    @property
    def smallest_budget_bytes(self) -> int:
        """No plan fits a budget below."""
        return self.size.smallest(self.least_bytes)

    @property
    def least_bytes(self) -> int:
        """What the plan that needs the least needs, without what is reserved."""
        return self._least.bytes

    @property
    def set_by(self) -> str:
        """What needs `smallest_budget_bytes`."""
        return self._least.set_by

    @cached_property
    def plan(self) -> Plan | None:
        """The fastest plan that fits; None when none does."""
        if self.smallest_budget_bytes > self.budget_bytes:
            return None
        return solve(self.costs, budget=self.size)

    @cached_property
    def limits(self) -> Limits | None:
        """The largest sizes that fit; None when they were not searched."""
        if not self.search:
            return None
        return find_limits(self.training, self.batch, self.sequence, self.available_bytes)

    @property
    def overhead(self) -> float | None:
        """Time that the plan loses to recomputation; None without a plan."""
        return None if self.plan is None else self.plan.overhead

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know beside the figures, in sentences without their full stop."""
        most, name = self.trained_positions, self.shape.name
        found = [*self.not_counted, *self.of_sharding]
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
    def not_counted(self) -> tuple[str, ...]:
        """What may be held besides, in sentences without their full stop; mostly nothing."""
        found, recipe = [], self.training.recipe
        # Over GPUs with a stage of ZeRO what is gathered and reduced is counted layer by layer.
        if recipe.sharding.gpus > 1 and not recipe.sharding.stage and self.state.gradients_bytes:
            found.append(
                "not counted: DistributedDataParallel's buckets, a second copy of the gradients "
                "unless it is made with gradient_as_bucket_view=True"
            )
        if recipe.optimizer.startswith("paged") and self.state.gradients_bytes:
            found.append(
                "not counted: the optimizer's moments in pages, which the driver keeps on the host "
                "where the GPU has no room for them"
            )
        return tuple(found)

    @property
    def of_sharding(self) -> tuple[str, ...]:
        """What a stage of ZeRO does not do, in sentences without their full stop."""
        sharding = self.training.recipe.sharding
        if sharding.stage and sharding.gpus == 1:
            return (f"ZeRO-{sharding.stage} over 1 GPU shards nothing; give more gpus",)
        if self.options and sharding.refuses_options:
            return (
                "plans with options inside blocks are not applied under fully_shard (ZeRO-3), "
                "whose gathering they would count; leave options out, or give stage 2",
            )
        return ()

    def conclusion(self) -> str:
        """Fits or not, in a sentence without its full stop."""
        if self.fits:
            return "fits with nothing checkpointed"
        if self.plan is not None:
            return f"fits with checkpointing, {format_percent(self.plan.overhead)} slower"
        smallest = self.smallest_text()
        return f"does not fit: the smallest feasible budget is {smallest}, set by {self.set_by}"

    def smallest_text(self) -> str:
        """The smallest feasible budget, apart from the budget where both read the same."""
        return format_smallest(self.smallest_budget_bytes, self.budget_bytes)

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values; sizes in bytes, of one GPU."""
        recipe = self.training.recipe
        said = asdict(recipe)
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
