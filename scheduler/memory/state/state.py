"""Persistent state: the bytes that a training run holds before the first activation is saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, prod
from typing import TYPE_CHECKING

from scheduler.common.text import format_both
from scheduler.memory.errors import Argument, InvalidRecipe, check_count
from scheduler.memory.recipe import Recipe, RecipeFields, recipe_of
from scheduler.memory.state.optimizers import Dims, Optimizer, optimizer_of
from scheduler.memory.state.sizes import (
    BASES,
    BLOCKS,
    DTYPES,
    PRECISIONS,
    Sharding,
    Sizes,
    adapter_sizes,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack


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
    recipe: Recipe | None = None,
    trainable_parameters: int | float | None = None,
    lora_parameters: int | float = 0,
    lora_dtype: str | None = None,
    quantized_parameters: int | float | None = None,
    adamw_parameters: int | float = 0,
    tensors: Mapping[Dims, int] | None = None,
    expert_parameters: int | float = 0,
    fp32_parameters: int | float = 0,
    **fields: Unpack[RecipeFields],
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

    Other optimizers have other moments, some of them by the shapes of matrices: see
    `scheduler.memory.state.optimizers.OPTIMIZERS`.

    ZeRO over N GPUs divides what its stage covers: P(2/[3: N] + 2/[2, 3: N] + 12/[1 to 3: N]).
    Tensor and pipeline parallelism over t and p GPUs leave P/(t·p) parameters on each, and
    N = gpus/(t·p); experts are divided once more by expert parallelism e, and then over N/e.
    Sequence and context parallelism divide activations only: GPUs of the second hold the same
    weights and belong to N. An even split is assumed; norms that tensor parallelism copies (below
    0.1% of a model) and a first stage fuller by its embedding are not.

    Parameters are counted in whole ones, rounded up on each GPU; so is each part, in bytes.

    Parameters
    ----------
    parameters
        P, of the whole model without adapters.
    recipe, fields
        A `Recipe`, or its fields.
    trainable_parameters
        How many of P train. Else what the recipe says: all, or none where train="frozen", with
        LoRA or a `base`.
    lora_parameters, lora_dtype
        P_a, at most P, of adapters, which train by the same recipe: 2P + 16·P_a; needed with a
        recipe that has them. A `lora_dtype` of "fp32", "bf16" or "fp16" keeps and optimises them in
        it without a master copy (16, 8, 8 with Adam); else as the recipe's `lora` says.
    quantized_parameters
        How many of the frozen ones are in NF4; the others (embedding, norms, mostly the head) stay
        in bf16. Else all.
    adamw_parameters
        How many trained ones are left to AdamW beside an optimizer that does not take them:
        embedding, head and vectors with Muon, GaLore and APOLLO; with 8 bits, in fp32, embeddings
        and tensors of fewer than 4096 elements.
    tensors
        The other trained ones: dimensions, and how many tensors have them, as in
        ``{(4096, 4096): 128, (4096,): 65}``. Else they are in matrices of 4096 × 4096; needed where
        adapters train by an optimizer for which shapes count.
    expert_parameters
        How many of P are in experts: `Shape.routed_parameters`; needed with `expert_parallel`.
    fp32_parameters
        How many of P are in fp32 whatever the precision: `Shape.fp32_parameters`. They train where
        anything but adapters does; a master copy of them is counted like any other.

    Raises
    ------
    InvalidRecipe
        A name is unknown, a size is not positive, or two arguments contradict each other.
    """
    total = check_count(Argument("parameters"), parameters, InvalidRecipe)
    recipe = recipe_of(recipe, fields)
    sharding, own = recipe.sharding, PRECISIONS[recipe.precision]
    optimizer = optimizer_of(recipe.optimizer)
    experts = _part("expert_parameters", expert_parameters, total, "parameters")
    if sharding.expert > 1 and not experts:
        raise InvalidRecipe(
            Argument("expert_parallel", sharding.expert),
            " divides experts; say how many of the parameters are in them by expert_parameters "
            "(of a shape: its routed_parameters), or leave it out",
        )
    adapters = _part("lora_parameters", lora_parameters, total, "parameters of the model")
    if recipe.lora is not None and not adapters:
        raise InvalidRecipe(
            "a recipe with lora needs ",
            Argument("lora_parameters"),
            ", how many parameters its adapters have (`fit` counts them from a model's shape)",
        )
    if trainable_parameters is None:
        frozen = adapters or recipe.base or recipe.train == "frozen"
        trainable_parameters = 0 if frozen else total
    trained = _part("trainable_parameters", trainable_parameters, total, "parameters")
    dtype = recipe.lora_dtype if lora_dtype is None else lora_dtype
    lora = adapter_sizes(dtype, own, adapters)
    weights = _weights(recipe, total, trained, experts, quantized_parameters)

    # Trained parameters are taken from outside the experts first.
    trained_experts = max(0, trained - (total - experts))
    summed = recipe.summed_gradients
    forced = 0 if summed is None else DTYPES[summed]
    held = sharding.share(trained, trained_experts, sharding.stage >= 2)
    held_lora = sharding.share(adapters, 0, sharding.stage >= 2)
    gradients = (forced or own.gradient) * held + (forced or lora.gradient) * held_lora
    fallback = _part("adamw_parameters", adamw_parameters, trained + adapters, "trained ones")
    if fallback and not optimizer.plain:
        raise InvalidRecipe(
            Argument("adamw_parameters", fallback),
            f" are what an optimizer such as 'muon' leaves to AdamW; {recipe.optimizer!r} leaves "
            "nothing",
        )
    shapes = _shapes(tensors, trained + adapters - fallback, recipe.optimizer, bool(adapters))
    wide = _part("fp32_parameters", fp32_parameters, total, "parameters")
    weights += (4 - own.weight) * sharding.share(wide, 0, sharding.stage >= 3)
    wide = min(wide, trained - trained_experts)
    if not forced:
        gradients += (4 - own.gradient) * sharding.share(wide, 0, sharding.stage >= 2)
    groups = [(own, trained - wide, trained_experts), (PRECISIONS["fp32"], wide, 0)]
    groups.append((lora, adapters, 0))
    sharded = sharding.stage >= 1
    master = own.master * sharding.share(trained, trained_experts, sharded)
    master += lora.master * sharding.share(adapters, 0, sharded)
    return State(
        weights_bytes=weights,
        gradients_bytes=gradients,
        master_bytes=master,
        moments_bytes=_moments(optimizer, shapes, groups, fallback, sharding),
        adapters_bytes=lora.weight * sharding.share(adapters, 0, sharding.stage >= 3),
        recipe=recipe.words,
    )


def _part(what: str, value: object, whole: int, of: str) -> int:
    part = check_count(Argument(what), value, InvalidRecipe, 0)
    if part > whole:
        raise InvalidRecipe(Argument(what), f" must be at most the {whole} {of}, got {part}")
    return part


def _weights(
    recipe: Recipe, total: int, trained: int, experts: int, quantized: int | float | None
) -> int:
    own, base, sharding = PRECISIONS[recipe.precision], recipe.base, recipe.sharding
    if base is not None and trained == total:
        raise InvalidRecipe(
            Argument("base", base),
            f" stores weights that do not train, but all {total} parameters do; leave out base, or "
            "give fewer trainable_parameters",
        )
    frozen = total - trained
    trained_experts = max(0, trained - (total - experts))
    frozen_experts = experts - trained_experts
    sharded = sharding.stage >= 3
    size = Fraction(own.weight) if base is None else BASES[base]
    stored = frozen
    if quantized is not None:
        if base not in BLOCKS:
            raise InvalidRecipe(
                Argument("quantized_parameters"),
                f" goes with base='nf4' or 'nf4-double', not {base!r}",
            )
        stored = _part("quantized_parameters", quantized, frozen, "frozen ones")
    # Experts are linear layers: quantised first.
    stored_experts = min(stored, frozen_experts)
    small = sharding.share(frozen - stored, frozen_experts - stored_experts, sharded)
    return (
        own.weight * sharding.share(trained, trained_experts, sharded)
        + ceil(size * sharding.share(stored, stored_experts, sharded))
        + 2 * small
    )


def _shapes(
    tensors: Mapping[Dims, int] | None, count: int, optimizer: str, adapters: bool
) -> Mapping[Dims, int]:
    """The tensors that an optimizer takes, `count` parameters; else matrices in their place."""
    argument = Argument("tensors")
    if tensors is None:
        many: dict[Dims, int] = {(64, 4096): 64}
        one: dict[Dims, int] = {(4096, 4096): 1}
        known, sizes = optimizer_of(optimizer), PRECISIONS["bf16-mixed"]
        if adapters and known.rate(many, sizes) != known.rate(one, sizes):
            raise InvalidRecipe(
                f"{optimizer!r} on adapters needs ", argument, ", the shapes of their matrices"
            )
        return one
    if not isinstance(tensors, Mapping) or not all(isinstance(dims, tuple) for dims in tensors):
        raise InvalidRecipe(
            argument, " must say how many tensors have which dimensions: {(4096, 4096): 128, ...}"
        )
    for dims, number in tensors.items():
        for size in (*dims, number):
            check_count(f"every number in {argument}", size, InvalidRecipe)
    total = sum(prod(dims) * number for dims, number in tensors.items())
    if total != count:
        raise InvalidRecipe(
            argument, f" have {total:,} elements together, but the optimizer takes {count:,}"
        )
    return tensors


def _moments(
    optimizer: Optimizer,
    tensors: Mapping[Dims, int],
    groups: list[tuple[Sizes, int, int]],
    fallback: int,
    sharding: Sharding,
) -> int:
    """Of groups of trained parameters (sizes, how many, in experts); `fallback` left to AdamW."""
    sharded = sharding.stage >= 1
    moments = Fraction(0)
    for sizes, count, experts in groups:
        # The first group's fall back first, and outside its experts first.
        full = min(fallback, count)
        fallback -= full
        full_experts = max(0, full - (count - experts))
        taken = sharding.share(count - full, experts - full_experts, sharded)
        moments += optimizer.rate(tensors, sizes) * taken
        moments += optimizer.of_plain(sizes) * sharding.share(full, full_experts, sharded)
    return ceil(moments)
