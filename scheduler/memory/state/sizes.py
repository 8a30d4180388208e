"""What a parameter costs under each precision, base and optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from scheduler.memory.checks import check_choice, check_count
from scheduler.memory.errors import Argument, InvalidRecipe

__all__ = [
    "BASES",
    "BLOCKS",
    "DTYPES",
    "OPTIMIZERS",
    "PRECISIONS",
    "Sizes",
    "adapter_sizes",
    "check_fallback",
    "check_precision",
    "moment_sizes",
    "statistics_count",
]

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

# A byte in each of two moments, and for each block of 256 an fp32 scale.
_EIGHT_BIT = 2 * (1 + Fraction(4, 256))
OPTIMIZERS = {
    "adam": 2,
    "adamw": 2,
    "sgd": 0,
    "sgd-momentum": 1,
    "lion": 1,
    "muon": 1,
    "adafactor": 0,
    "adafactor-momentum": 1,
    "adam-8bit": 0,
}
"""Moments of a parameter's size that an optimizer keeps, what it factors or quantises apart."""
_WITH_FALLBACK = ("muon", "adam-8bit")


def check_precision(argument: Argument, value: object) -> str:
    """A recipe's name; a name of what is computed in is told apart, where it is no recipe."""
    if value == "fp16":
        raise InvalidRecipe(
            Argument(argument.name, value),
            " names what costs_from_shape computes in, not how weights are kept; "
            "say 'fp16-mixed' (fp16 weights without an fp32 master do not train)",
        )
    return check_choice(argument, value, PRECISIONS, InvalidRecipe)


def moment_sizes(optimizer: str, sizes: Sizes) -> tuple[Fraction, int]:
    """Bytes of a parameter's moments: as the optimizer keeps them, and as AdamW's full pair."""
    if optimizer == "adam-8bit":
        # What bitsandbytes does not quantise it keeps in fp32, also beside bf16 weights.
        return _EIGHT_BIT, 2 * 4
    # Adafactor, as transformers has it, works in fp32 whatever the weights are.
    moment = 4 if optimizer == "adafactor-momentum" else sizes.moment
    return Fraction(OPTIMIZERS[optimizer] * moment), 2 * sizes.moment


def check_fallback(optimizer: str, count: int) -> None:
    """Refuse parameters on AdamW beside an optimizer that would take them all."""
    if count and optimizer not in _WITH_FALLBACK:
        raise InvalidRecipe(
            Argument("adamw_parameters", count),
            f" goes with {' or '.join(map(repr, _WITH_FALLBACK))}, not {optimizer!r}",
        )


def adapter_sizes(dtype: str | None, own: Sizes, adapters: int) -> Sizes:
    """What an adapter's parameter costs: as its own dtype says, else as the model's."""
    if dtype is None:
        return own
    size = DTYPES[check_choice(Argument("lora_dtype"), dtype, DTYPES, InvalidRecipe)]
    if not adapters:
        raise InvalidRecipe(Argument("lora_dtype", dtype), " needs adapters; give lora_parameters")
    return Sizes(size, size, 0, size)


def statistics_count(optimizer: str, given: int | float | None, trained: int, adapters: int) -> int:
    """Fp32 numbers of Adafactor's rows and columns: as given, else of 4096 × 4096 matrices."""
    factored = optimizer.startswith("adafactor")
    if given is not None:
        if not factored:
            raise InvalidRecipe(
                Argument("factored_statistics"), f" goes with 'adafactor', not {optimizer!r}"
            )
        return check_count(Argument("factored_statistics"), given, InvalidRecipe, 0)
    if factored and adapters:
        raise InvalidRecipe(
            f"{optimizer!r} on adapters needs ",
            Argument("factored_statistics"),
            ", the rows and columns of their matrices together",
        )
    return ceil(Fraction(2 * trained, 4096)) if factored else 0
