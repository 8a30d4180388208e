"""What a parameter costs under each precision and base, and how many each GPU holds."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from scheduler.common.checks import plain
from scheduler.common.text import shown
from scheduler.memory.errors import Argument, InvalidRecipe, check_choice

DTYPES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of one parameter's weight, gradient, master copy and full moment."""

    weight: int
    gradient: int
    master: int
    moment: int


_MIXED, _FP32, _HALF = Sizes(2, 2, 4, 4), Sizes(4, 4, 0, 4), Sizes(2, 2, 0, 2)
PRECISIONS = {
    "bf16-mixed": _MIXED,
    "fp16-mixed": _MIXED,
    "fp32": _FP32,
    "autocast": _FP32,
    "bf16": _HALF,
}
"""Mixed keeps an fp32 master beside half weights; autocast keeps fp32 weights alone."""

BASES = {
    "fp32": Fraction(4),
    "bf16": Fraction(2),
    "fp16": Fraction(2),
    # 4 bits, and an fp32 scale for each block of 64 weights.
    "nf4": Fraction(1, 2) + Fraction(4, 64),
    # The scales themselves are one byte, and an fp32 scale for each block of 256 of them.
    "nf4-double": Fraction(1, 2) + Fraction(1, 64) + Fraction(4, 64 * 256),
}
"""Bytes of a frozen weight (blocks: Dettmers et al., QLoRA, arXiv:2305.14314, section 3)."""
BLOCKS = ("nf4", "nf4-double")
"""Those that hold linear layers alone; embedding, head and norms stay in bf16."""


def check_precision(argument: Argument, value: object) -> str:
    """A recipe's name; a name of what is computed in is told apart, where it is no recipe."""
    if value == "fp16":
        raise InvalidRecipe(
            Argument(argument.name, value),
            " names what costs_from_shape computes in, not how weights are kept; "
            "say 'fp16-mixed' (fp16 weights without an fp32 master do not train)",
        )
    return check_choice(argument, value, PRECISIONS, InvalidRecipe)


def adapter_sizes(dtype: str | None, own: Sizes, adapters: int) -> Sizes:
    """What an adapter's parameter costs: as its own dtype says, else as the model's."""
    if dtype is None:
        return own
    size = DTYPES[check_choice(Argument("lora_dtype"), dtype, DTYPES, InvalidRecipe)]
    if not adapters:
        raise InvalidRecipe(Argument("lora_dtype", dtype), " needs adapters; give lora_parameters")
    return Sizes(size, size, 0, size)


@dataclass(frozen=True, slots=True)
class Sharding:
    """The degrees, checked: `gpus` is a multiple of tensor·pipeline, and what is left of expert."""

    stage: int
    gpus: int
    tensor: int
    pipeline: int
    context: int
    expert: int
    sequence: bool

    @property
    def data(self) -> int:
        """N: GPUs with the same part of the model, over which ZeRO divides."""
        return self.gpus // (self.tensor * self.pipeline)

    @property
    def refuses_options(self) -> bool:
        """Whether weights are gathered layer by layer, by operations that options would count."""
        return self.stage == 3 and self.data > 1

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
        degrees = {"tensor": self.tensor, "pipeline": self.pipeline}
        degrees |= {"context": self.context, "expert": self.expert}
        for name, degree in degrees.items():
            if degree > 1:
                both = " and sequence" * (name == "tensor" and self.sequence)
                parts.append(f"{name}{both} parallel {degree}")
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
    sequence: bool,
    *,
    tensor: int,
    pipeline: int,
    context: int,
    expert: int,
) -> Sharding:
    """Who holds what under these degrees, each of them checked before; here, how they fit."""
    if sequence and tensor == 1:
        raise InvalidRecipe(
            Argument("sequence_parallel"),
            " divides tokens over the GPUs of ",
            Argument("tensor_parallel"),
            ", which is 1; give it too, or ",
            Argument("context_parallel"),
            " in its place, which has GPUs of its own",
        )
    # Expert groups are made of the GPUs that data and context parallelism have.
    model = tensor * pipeline
    total = model * lcm(context, expert) if gpus is None else gpus
    for name, group in (("context_parallel", context), ("expert_parallel", expert)):
        if total % (model * group):
            product: list[str | Argument] = [Argument("tensor_parallel"), "·"]
            product += [Argument("pipeline_parallel"), "·", Argument(name)]
            said = f" = {tensor}·{pipeline}·{group}, got {total}"
            raise InvalidRecipe(Argument("gpus"), " must be a multiple of ", *product, said)
    stage = 3 if isinstance(zero, str) else zero
    return Sharding(stage, total, tensor, pipeline, context, expert, sequence)
