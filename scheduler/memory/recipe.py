"""How a model is trained: one record, checked once, which state, costs and `fit` all take."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, TypedDict

from scheduler.common.checks import check_values
from scheduler.common.text import did_you_mean, shown
from scheduler.memory.errors import (
    Argument,
    InvalidRecipe,
    check_choice,
    check_count,
    check_factor,
    check_flag,
    check_probability,
)
from scheduler.memory.state.optimizers import check_optimizer
from scheduler.memory.state.sizes import (
    BASES,
    DTYPES,
    Sharding,
    check_precision,
    check_stage,
    resolve_sharding,
)

DEVICES = ("cuda", "cpu")
LOSSES = ("hf", "hf-outputs-kept", "bf16", "chunked")
DEGREES = ("tensor", "pipeline", "context", "expert")
"""Kinds of parallelism beside ZeRO's, each with a field such as `tensor_parallel`."""
RUNTIMES = ("torch", "megatron")

_COMPUTED = {"bf16-mixed": "bf16", "fp16-mixed": "fp16"}


@dataclass(frozen=True, slots=True)
class Lora:
    """Low-rank adapters beside frozen linear layers: y = W x + B A dropout(x) · scale.

    Attributes
    ----------
    rank
        Features between A and B.
    targets
        Which linear layers have one: q, k, v (qkv where they are one layer), o, gate, up (gate_up
        where they are one), down, or "all" of those that the block has, as `linears` names them;
        and lm_head, the head. ``q_proj`` is read as q. Experts get none.
    dtype
        Of the adapters: "bf16", "fp16" or "fp32".
    dropout
        Probability of dropout before A (0: none).
    """

    rank: int
    targets: tuple[str, ...] | str = "all"
    dtype: str = "bf16"
    dropout: float = 0.0

    @property
    def size(self) -> int:
        """Bytes of one element of an adapter's weights and of what it computes."""
        return DTYPES[self.dtype]


def _by(check: Callable[..., object], **how: object) -> dict[str, object]:
    """Metadata of a field with this check; where the default is None, None is not checked."""

    def checked(_where: str, name: str, value: object) -> object:
        return check(Argument(name), value, **how)

    return {"check": checked}


def _checked(default: object, check: Callable[..., object], **how: object) -> Any:
    return field(default=default, metadata=_by(check, **how))


_one_of = partial(_checked, check=check_choice, error=InvalidRecipe)
_count = partial(_checked, check=check_count, error=InvalidRecipe)
_flag = partial(_checked, False, check=check_flag, error=InvalidRecipe)


def _check_lora(argument: Argument, lora: object) -> Lora:
    """Adapters, as far as they do not depend on the model's layers."""
    if not isinstance(lora, Lora):
        raise InvalidRecipe(argument, f" must be Lora(rank=..., targets=...), got {shown(lora)}")
    error = partial(InvalidRecipe, argument=argument.name)
    rank = check_count("the rank of lora", lora.rank, error)
    check_choice("the dtype of lora", lora.dtype, sorted(DTYPES), error)
    dropout = check_probability("the dropout of lora", lora.dropout, error)
    if not isinstance(lora.targets, Collection):
        raise error(
            "the targets of lora must be names, as in Lora(rank=16, targets=('q', 'v')), got "
            f"{shown(lora.targets)}"
        )
    return replace(lora, rank=rank, dropout=dropout)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a model is trained: the precision, what trains by which optimizer, over which GPUs.

    `training_state`, `costs_from_shape` and `fit` take one, or its fields as keyword arguments, or
    both: a keyword replaces the field. Each reads the fields that its figures depend on. A new
    field has its check beside it here, and a line in `RecipeFields`.

    Attributes
    ----------
    precision
        How weights are kept: "bf16-mixed" and "fp16-mixed" (weights of 2 bytes and an fp32 master),
        "fp32", "autocast" (fp32 weights and residual stream, linear layers and attention in 2
        bytes), "bf16" (no master; gradients and moments in bf16 too). What is computed in follows:
        `compute`.
    optimizer
        A name of `scheduler.memory.state.optimizers.OPTIMIZERS`, or as transformers' ``optim`` has
        it: "adamw", "adam-8bit", "paged_adamw_8bit", "lion", "adafactor", "muon", "soap". Those
        that take a size take it so: "galore,rank=64".
    zero, gpus
        ZeRO's stage, 0 to 3, or "fsdp", which shards like stage 3; and all GPUs, else as few as the
        parallel degrees need.
    train, lora
        "full"; "frozen": no weight is trained, gradients pass through to the input; "lora": frozen,
        with the adapters of `lora`, a `Lora`.
    attention
        "sdpa" (fused) or "eager" (probabilities are stored).
    loss
        "hf", "hf-outputs-kept", "bf16" or "chunked": see `loss_bytes`.
    base
        How weights that do not train are stored: "fp32", "bf16", "fp16", "nf4" or "nf4-double";
        else as those that train. In blocks of 4 bits those of the blocks' linear layers; embedding,
        head and norms stay in bf16.
    update
        "fused": the optimizer's step needs nothing more. "foreach": torch's default for optimizers
        made by hand, which holds one temporary the size of all parameters it updates.
    gradient_dtype
        What gradients are kept in: "fp32", "bf16" or "fp16"; else that of the weights. Backwards
        make them in the dtype of their weights (of their adapters) all the same.
    gradient_accumulation
        Gradients of earlier micro-batches are there from the start, in fp32 unless `gradient_dtype`
        says otherwise (with plain torch, whose sums are in the dtype of the weights, it must); the
        step looked at is one that adds to them.
    padding_mask
        A padding mask is passed to the attention. (Causal attention alone needs none.)
    device
        "cuda" or "cpu": they differ in dropout masks and in layer norm's statistics.
    experts
        How a mixture of experts is computed: "grouped", "batched" or "eager".
    tensor_parallel, pipeline_parallel, context_parallel, expert_parallel
        GPUs in a group of each kind: `tensor_parallel` divides heads, features of MLPs and words;
        `pipeline_parallel` blocks; `context_parallel` the tokens of a sequence; `expert_parallel`
        experts, over GPUs that data and context parallelism have.
    sequence_parallel
        Between those layers the GPUs of tensor parallelism also divide the tokens.
    runtime
        Whose tensor parallelism it is, "torch" (DTensor, as torchtitan has it) or "megatron": what
        linear layers read is gathered from all of those GPUs, and "torch" keeps that for the
        backward, where "megatron" keeps its own part and gathers again.
    load_factor
        Rows that the fullest GPU's experts get, over those of an even load; at least 1.

    Raises
    ------
    InvalidRecipe
        A name is unknown, a size is not positive, or two fields contradict each other. Its
        `argument` is the field at fault.
    """

    precision: str = _checked("bf16-mixed", check_precision)
    optimizer: str = _checked("adamw", check_optimizer)
    zero: int | str = _checked(0, check_stage)
    gpus: int | None = _count(None)
    train: str = _one_of("full", choices=("full", "frozen", "lora"))
    attention: str = _one_of("sdpa", choices=("sdpa", "eager"))
    loss: str = _one_of("hf", choices=LOSSES)
    base: str | None = _one_of(None, choices=BASES)
    update: str = _one_of("fused", choices=("fused", "foreach"))
    gradient_dtype: str | None = _one_of(None, choices=DTYPES)
    gradient_accumulation: bool = _flag()
    lora: Lora | None = field(default=None, metadata=_by(_check_lora))
    padding_mask: bool = _flag()
    device: str = _one_of("cuda", choices=DEVICES)
    experts: str = _one_of("grouped", choices=("grouped", "batched", "eager"))
    tensor_parallel: int = _count(1)
    pipeline_parallel: int = _count(1)
    context_parallel: int = _count(1)
    expert_parallel: int = _count(1)
    sequence_parallel: bool = _flag()
    runtime: str = _one_of("torch", choices=RUNTIMES)
    load_factor: float = _checked(1.0, check_factor, error=InvalidRecipe)

    def __post_init__(self) -> None:
        """Check every field, and that they go together."""
        check_values("the recipe", self)
        if (self.train == "lora") != (self.lora is not None):
            raise InvalidRecipe(
                "train='lora' and lora=Lora(...) go together; give both or neither", argument="lora"
            )
        _ = self.sharding

    def check_trained(self) -> None:
        """Refuse what is said of weights that do not train, or of gradients that nothing has.

        `train` says here what trains; `training_state` may be told by counts in its place.
        """
        if self.train == "frozen":
            for name in ("gradient_dtype", "gradient_accumulation"):
                if getattr(self, name):
                    said = Argument("train", self.train), " makes no gradients; leave out "
                    raise InvalidRecipe(*said, Argument(name), argument=name)
        if self.train == "full" and self.base is not None:
            raise InvalidRecipe(
                Argument("base", self.base),
                " stores weights that do not train; say ",
                Argument("train", "lora"),
                " or ",
                Argument("train", "frozen"),
            )

    @property
    def sharding(self) -> Sharding:
        """Over which GPUs the parameters are divided."""
        degrees = {kind: getattr(self, f"{kind}_parallel") for kind in DEGREES}
        return resolve_sharding(self.zero, self.gpus, self.sequence_parallel, **degrees)

    @property
    def words(self) -> str:
        """What changes the state, in words."""
        summed = self.summed_gradients
        said = self.optimizer, self.precision, f"{summed} gradients" if summed else ""
        return ", ".join(filter(None, (*said, str(self.sharding))))

    @property
    def alone(self) -> Recipe:
        """The same for what is on one GPU, as if that were the model: over its copies alone."""
        return replace(
            self,
            gpus=self.sharding.data,
            tensor_parallel=1,
            pipeline_parallel=1,
            context_parallel=1,
            sequence_parallel=False,
        )

    @property
    def compute(self) -> str:
        """What is computed in: "bf16", "fp16", "fp32" or "autocast"."""
        return _COMPUTED.get(self.precision, self.precision)

    @property
    def made_gradients(self) -> str:
        """The dtype that a backward makes gradients in: that of the weights it trains."""
        if self.lora is not None:
            return self.lora.dtype
        return "fp32" if self.precision == "autocast" else self.compute

    @property
    def summed_gradients(self) -> str | None:
        """The dtype of every gradient where the recipe says it; None: that of its weight."""
        return self.gradient_dtype or ("fp32" if self.gradient_accumulation else None)

    @property
    def gradients(self) -> str | None:
        """The dtype that gradients are kept in; None where no weight trains."""
        return None if self.train == "frozen" else self.summed_gradients or self.made_gradients

    @property
    def lora_dtype(self) -> str | None:
        """The dtype of adapters that train without a master; None: by the model's own recipe."""
        own = "fp32" if self.precision in ("fp32", "autocast") else self.compute
        return None if self.lora is None or self.lora.dtype == own else self.lora.dtype


class RecipeFields(TypedDict, total=False):
    """The fields of a `Recipe` as keyword arguments; a test holds the two together."""

    precision: str
    optimizer: str
    zero: int | str
    gpus: int | None
    train: str
    attention: str
    loss: str
    base: str | None
    update: str
    gradient_dtype: str | None
    gradient_accumulation: bool
    lora: Lora | None
    padding_mask: bool
    device: str
    experts: str
    tensor_parallel: int
    pipeline_parallel: int
    context_parallel: int
    expert_parallel: int
    sequence_parallel: bool
    runtime: str
    load_factor: float


def recipe_of(recipe: Recipe | None, given: RecipeFields, *, computing: bool = False) -> Recipe:
    """The recipe, or one of defaults, its fields replaced by the keyword arguments `given`.

    Where costs are computed the precision may be named by what is computed in, "fp16" too.
    """
    if recipe is not None and not isinstance(recipe, Recipe):
        raise InvalidRecipe(Argument("recipe"), f" must be a Recipe(...), got {shown(recipe)}")
    if computing and given.get("precision") == "fp16":
        given = {**given, "precision": "fp16-mixed"}
    known = [each.name for each in fields(Recipe)]
    for name in given:
        if name not in known:
            near = did_you_mean(name, known) or f"; there are {', '.join(known)}"
            raise InvalidRecipe(Argument(name), f" is no setting of a recipe{near}")
    return replace(recipe or Recipe(), **given)
