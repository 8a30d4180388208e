"""Over which GPUs parameters are divided, and how many of them each one holds."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from scheduler.common.checks import plain
from scheduler.common.text import shown
from scheduler.memory.errors import Argument, InvalidRecipe

__all__ = ["Sharding", "check_stage", "resolve_sharding"]


@dataclass(frozen=True, slots=True)
class Sharding:
    """The degrees, checked: `gpus` is a multiple of tensor·pipeline, and what is left of expert."""

    stage: int
    gpus: int
    tensor: int
    pipeline: int
    expert: int

    @property
    def data(self) -> int:
        """N: GPUs with the same part of the model, over which ZeRO divides."""
        return self.gpus // (self.tensor * self.pipeline)

    def share(self, count: int, experts: int, sharded: bool) -> int:
        """Parameters on the fullest GPU, out of `count`, of which `experts` are in experts.

        t·p GPUs divide the model; experts are divided once more, by e. Sharded, the first are
        divided by N and the others by N/e, so that all are by t·p·N.
        """
        model = self.tensor * self.pipeline
        dense_over = model * (self.data if sharded else 1)
        experts_over = model * (self.data if sharded else self.expert)
        return -(-(count - experts) // dense_over) + -(-experts // experts_over)

    def __str__(self) -> str:
        group = "1 GPU" if self.data == 1 else f"{self.data} GPUs"
        parts = [f"ZeRO-{self.stage} over {group}"] if self.stage else []
        if not self.stage and self.data > 1:
            parts.append(f"data parallel over {group}")
        degrees = {"tensor": self.tensor, "pipeline": self.pipeline, "expert": self.expert}
        for name, degree in degrees.items():
            if degree > 1:
                parts.append(f"{name} parallel {degree}")
        return ", ".join(parts)


def check_stage(argument: Argument, value: object) -> int | str:
    """A stage of ZeRO, or "fsdp"."""
    stage = plain(value)
    if stage == "fsdp":
        return "fsdp"
    if isinstance(stage, bool) or not isinstance(stage, int) or stage not in range(4):
        raise InvalidRecipe(argument, f" must be 0, 1, 2, 3 or 'fsdp', got {shown(stage)}")
    return stage


def resolve_sharding(
    zero: int | str,
    gpus: int | None,
    *,
    tensor: int,
    pipeline: int,
    sequence: int,
    context: int,
    expert: int,
) -> Sharding:
    """Who holds what under these degrees, each of them checked.

    Raises
    ------
    InvalidRecipe
        The groups do not fit into the GPUs.
    """
    if sequence not in (1, tensor):
        raise InvalidRecipe(
            Argument("sequence_parallel"),
            f" must be 1 or tensor_parallel, {tensor}, whose GPUs it uses, got {sequence}; "
            "context_parallel splits sequences over other GPUs",
        )
    # Expert groups are made of the GPUs that data and context parallelism have.
    model = tensor * pipeline
    total = model * lcm(context, expert) if gpus is None else gpus
    for name, group in (("context_parallel", context), ("expert_parallel", expert)):
        if total % (model * group):
            product = f"tensor_parallel·pipeline_parallel·{name} = {tensor}·{pipeline}·{group}"
            raise InvalidRecipe(Argument("gpus"), f" must be a multiple of {product}, got {total}")
    stage = 3 if isinstance(zero, str) else zero
    return Sharding(stage, total, tensor, pipeline, expert)
