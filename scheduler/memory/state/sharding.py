"""Over which GPUs parameters are divided, and how many of them each one holds."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from scheduler.common.checks import plain
from scheduler.common.text import shown
from scheduler.memory.checks import check_count
from scheduler.memory.errors import InvalidRecipe

__all__ = ["Sharding", "resolve_sharding"]


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


def resolve_sharding(
    zero: object,
    gpus: object,
    *,
    tensor: object,
    pipeline: object,
    sequence: object,
    context: object,
    expert: object,
) -> Sharding:
    """The degrees of `training_state`, checked.

    Raises
    ------
    InvalidRecipe
        A degree is not a positive whole number, a stage does not exist, or the groups do not fit
        into the GPUs.
    """
    value = plain(zero)
    stage = 3 if value == "fsdp" else value
    if isinstance(stage, bool) or not isinstance(stage, int) or stage not in range(4):
        raise InvalidRecipe(f"zero must be 0, 1, 2, 3 or 'fsdp', got {shown(value)}")
    t = check_count("tensor_parallel", tensor, InvalidRecipe)
    p = check_count("pipeline_parallel", pipeline, InvalidRecipe)
    s = check_count("sequence_parallel", sequence, InvalidRecipe)
    c = check_count("context_parallel", context, InvalidRecipe)
    e = check_count("expert_parallel", expert, InvalidRecipe)
    if s not in (1, t):
        raise InvalidRecipe(
            f"sequence_parallel must be 1 or tensor_parallel, {t}, whose GPUs it uses, got {s}; "
            "context_parallel splits sequences over other GPUs"
        )
    # Expert groups are made of the GPUs that data and context parallelism have.
    least = t * p * lcm(c, e)
    n = least if gpus is None else check_count("gpus", gpus, InvalidRecipe)
    for name, group in (("context_parallel", c), ("expert_parallel", e)):
        if n % (t * p * group):
            product = f"tensor_parallel·pipeline_parallel·{name} = {t}·{p}·{group}"
            raise InvalidRecipe(f"gpus must be a multiple of {product}, got {n}")
    return Sharding(stage, n, t, p, e)
