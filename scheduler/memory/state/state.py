"""Persistent state: the bytes that a training run holds before the first activation is saved."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from scheduler.common.text import format_both, shown
from scheduler.memory.checks import check_choice, check_count
from scheduler.memory.errors import InvalidRecipe
from scheduler.memory.state.recipes import (
    BASES,
    OPTIMIZERS,
    PRECISIONS,
    Sizes,
    adapter_sizes,
    check_fallback,
    check_precision,
    gradient_size,
    moment_sizes,
    statistics_count,
)
from scheduler.memory.state.sharding import Sharding, resolve_sharding

__all__ = ["State", "training_state"]


@dataclass(frozen=True, slots=True)
class State:
    """Persistent bytes on one GPU, the fullest where they do not divide.

    Attributes
    ----------
    weights_bytes
        Of the model: trained weights in the precision of compute, frozen ones as they are stored.
    gradients_bytes, master_bytes, moments_bytes
        Of whatever trains, adapters included: gradients, fp32 copies, the optimizer's statistics.
    adapters_bytes
        Weights of LoRA's adapters.
    recipe
        What was asked, in words.
    """

    weights_bytes: int
    gradients_bytes: int
    master_bytes: int
    moments_bytes: int
    adapters_bytes: int
    recipe: str = ""

    @property
    def total_bytes(self) -> int:
        """All of it: the parts add up."""
        return sum(size for _, size in self.rows())

    def rows(self) -> list[tuple[str, int]]:
        """Each part's name and bytes, in the order they are listed."""
        return [
            ("weights", self.weights_bytes),
            ("adapters", self.adapters_bytes),
            ("gradients", self.gradients_bytes),
            ("master", self.master_bytes),
            ("moments", self.moments_bytes),
        ]

    def __str__(self) -> str:
        shown_rows = [(label, size) for label, size in self.rows() if size]
        lines = [f"persistent state per GPU ({self.recipe})"]
        for label, size in [*shown_rows, ("total", self.total_bytes)]:
            lines.append(f"{label:>11}   {format_both(size)}")
        return "\n".join(lines)


def training_state(
    parameters: int | float,
    *,
    optimizer: str = "adamw",
    precision: str = "bf16-mixed",
    gradient_dtype: str | None = None,
    gradient_accumulation: bool = False,
    trainable_parameters: int | float | None = None,
    lora_parameters: int | float = 0,
    lora_dtype: str | None = None,
    base: str | None = None,
    quantized_parameters: int | float | None = None,
    adamw_parameters: int | float = 0,
    factored_statistics: int | float | None = None,
    zero: int | str = 0,
    gpus: int | None = None,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    sequence_parallel: int = 1,
    context_parallel: int = 1,
    expert_parallel: int = 1,
    expert_parameters: int | float = 0,
) -> State:
    """Bytes that each GPU holds from step to step, in weights, gradients and optimizer state.

    Of a trained parameter, with Adam:

    ===========  ======  ========  ======  =======  ===
    precision    weight  gradient  master  moments  sum
    ===========  ======  ========  ======  =======  ===
    bf16-mixed   2       2         4       4 + 4    16
    fp32         4       4                 4 + 4    16
    autocast     4       4                 4 + 4    16
    bf16         2       2                 2 + 2    8
    ===========  ======  ========  ======  =======  ===

    Mixed precision is Micikevicius et al. (arXiv:1710.03740), its 16 bytes ZeRO
    (arXiv:1910.02054), section 3.1. Gradients summed in fp32 make it 18, as in Megatron-LM. Casts
    that autocast caches live within a step and are counted with its activations.

    Moments: SGD none; with momentum, Lion (arXiv:2302.06675) and Muon one; Adam two. Adafactor
    (arXiv:1804.04235) has for a matrix of r × c the fp32 sums of r rows and c columns, and with β1
    ("adafactor-momentum") one full moment more. Adam in 8 bits (arXiv:2110.02861; blocks of 256 as
    in bitsandbytes) has two bytes and 2·4/256 of scales, 2.031.

    ZeRO over N GPUs divides what its stage covers: P(2/[3: N] + 2/[2, 3: N] + 12/[1 to 3: N]).
    Tensor and pipeline parallelism over t and p GPUs leave P/(t·p) parameters on each, and
    N = gpus/(t·p); experts are divided once more by expert parallelism e, and then over N/e.
    Sequence and context parallelism split activations only: their GPUs hold the same weights and
    belong to N. An even split is assumed; norms that tensor parallelism copies (below 0.1% of a
    model) and a first stage fuller by its embedding are not.

    Parameters are counted in whole ones, rounded up on each GPU; so is each part, in bytes.

    Parameters
    ----------
    parameters
        P, of the whole model without adapters.
    optimizer
        One of `OPTIMIZERS`.
    precision
        One of `PRECISIONS`: how weights are kept. "bf16" is weights, gradients and moments in bf16
        without a master; `costs_from_shape` calls "bf16" what "bf16-mixed" computes in as well.
    gradient_dtype
        "fp32", "bf16" or "fp16"; else that of the weights.
    gradient_accumulation
        Gradients are summed in fp32, unless `gradient_dtype` says otherwise.
    trainable_parameters
        How many of P train. Else all, or none with LoRA or a frozen `base`.
    lora_parameters, lora_dtype
        P_a, at most P, of adapters, which train by the same recipe: 2P + 16·P_a. A `lora_dtype` of
        "fp32", "bf16" or "fp16" keeps and optimises them in it without a master copy (16, 8, 8 with
        Adam).
    base
        How weights that do not train are stored, one of `BASES`; else as those that train.
    quantized_parameters
        How many of the frozen ones are in NF4; the others (embedding, norms, mostly the head) stay
        in bf16. Else all.
    adamw_parameters
        How many trained ones keep AdamW's two full moments beside Muon (embedding, head and
        vectors) or 8-bit Adam (fp32, tensors of fewer than 4096 elements).
    factored_statistics
        Adafactor's rows and columns: `Shape.factored_statistics`. Else those of matrices of
        4096 × 4096, P/2048, 0.002 bytes a parameter; needed where adapters train.
    zero
        Stage 0 to 3, or "fsdp", which shards like stage 3.
    gpus
        All GPUs. Else as few as the parallel degrees need.
    tensor_parallel, pipeline_parallel, context_parallel, expert_parallel
        GPUs in a group of each kind.
    sequence_parallel
        1, or `tensor_parallel`, whose GPUs it uses.
    expert_parameters
        How many of P are in experts: `Shape.routed_parameters`; needed with `expert_parallel`.

    Raises
    ------
    InvalidRecipe
        A name is unknown, a size is not positive, or two arguments contradict each other.
    """
    total = check_count("parameters", parameters, InvalidRecipe)
    optimizer = check_choice("optimizer", optimizer, OPTIMIZERS, InvalidRecipe)
    precision = check_precision(precision)
    sharding = resolve_sharding(
        zero,
        gpus,
        tensor=tensor_parallel,
        pipeline=pipeline_parallel,
        sequence=sequence_parallel,
        context=context_parallel,
        expert=expert_parallel,
    )
    experts = _part("expert_parameters", expert_parameters, total, "parameters")
    if sharding.expert > 1 and not experts:
        raise InvalidRecipe(
            f"expert_parallel={sharding.expert} divides experts; say how many of the parameters "
            "are in them by expert_parameters (of a shape: its routed_parameters), or leave it out"
        )
    adapters = _part("lora_parameters", lora_parameters, total, "parameters of the model")
    frozen_by_default = adapters or base is not None
    trained = (
        (0 if frozen_by_default else total)
        if trainable_parameters is None
        else _part("trainable_parameters", trainable_parameters, total, "parameters")
    )
    if base is not None and trained == total:
        raise InvalidRecipe(
            f"base={shown(base)} stores weights that do not train, but all {total} parameters do; "
            "leave out base, or give fewer trainable_parameters"
        )
    own = PRECISIONS[precision]
    lora = adapter_sizes(lora_dtype, own, adapters)
    weights = _weights(own, total, trained, experts, base, quantized_parameters, sharding)

    # Trained parameters are taken from outside the experts first.
    trained_experts = max(0, trained - (total - experts))
    forced = gradient_size(gradient_dtype, gradient_accumulation)
    held = sharding.share(trained, trained_experts, sharding.stage >= 2)
    held_lora = sharding.share(adapters, 0, sharding.stage >= 2)
    gradients = (forced or own.gradient) * held + (forced or lora.gradient) * held_lora
    fallback = _part("adamw_parameters", adamw_parameters, trained + adapters, "trained ones")
    check_fallback(optimizer, fallback)
    groups = [(own, trained, trained_experts), (lora, adapters, 0)]
    # It changes the sum, so the recipe names it.
    summed = f"{gradient_dtype or 'fp32'} gradients" if forced else ""
    statistics = statistics_count(optimizer, factored_statistics, trained, adapters)

    sharded = sharding.stage >= 1
    master = own.master * sharding.share(trained, trained_experts, sharded)
    master += lora.master * sharding.share(adapters, 0, sharded)
    return State(
        weights_bytes=weights,
        gradients_bytes=gradients,
        master_bytes=master,
        moments_bytes=_moments(optimizer, groups, fallback, statistics, sharding),
        adapters_bytes=lora.weight * sharding.share(adapters, 0, sharding.stage >= 3),
        recipe=", ".join(part for part in (optimizer, precision, summed, str(sharding)) if part),
    )


def _part(what: str, value: object, whole: int, of: str) -> int:
    part = check_count(what, value, InvalidRecipe, 0)
    if part > whole:
        raise InvalidRecipe(f"{what} must be at most the {whole} {of}, got {part}")
    return part


def _weights(
    own: Sizes,
    total: int,
    trained: int,
    experts: int,
    base: str | None,
    quantized: int | float | None,
    sharding: Sharding,
) -> int:
    frozen = total - trained
    trained_experts = max(0, trained - (total - experts))
    frozen_experts = experts - trained_experts
    sharded = sharding.stage >= 3
    size = Fraction(own.weight)
    if base is not None:
        size = BASES[check_choice("base", base, BASES, InvalidRecipe)]
    blocks = base in ("nf4", "nf4-double")
    if quantized is not None and not blocks:
        raise InvalidRecipe(
            f"quantized_parameters goes with base='nf4' or 'nf4-double', not {base!r}"
        )
    stored = frozen
    if blocks and quantized is not None:
        stored = _part("quantized_parameters", quantized, frozen, "frozen ones")
    # Experts are linear layers: quantised first.
    stored_experts = min(stored, frozen_experts)
    small = sharding.share(frozen - stored, frozen_experts - stored_experts, sharded)
    return (
        own.weight * sharding.share(trained, trained_experts, sharded)
        + ceil(size * sharding.share(stored, stored_experts, sharded))
        + 2 * small
    )


def _moments(
    optimizer: str,
    groups: list[tuple[Sizes, int, int]],
    fallback: int,
    statistics: int,
    sharding: Sharding,
) -> int:
    """Of groups of trained parameters (sizes, how many, in experts); `fallback` in full pairs."""
    sharded = sharding.stage >= 1
    moments = Fraction(4 * sharding.share(statistics, 0, sharded))
    for sizes, count, experts in groups:
        # The first group's fall back first, and outside its experts first.
        full = min(fallback, count)
        fallback -= full
        each, pair = moment_sizes(optimizer, sizes)
        full_experts = max(0, full - (count - experts))
        moments += each * sharding.share(count - full, experts - full_experts, sharded)
        moments += pair * sharding.share(full, full_experts, sharded)
    return ceil(moments)
