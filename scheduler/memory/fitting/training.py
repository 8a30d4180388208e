"""One way to train one model on one kind of GPU: its state and its costs, which go together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import ceil
from typing import TypeAlias

from scheduler.common.errors import InvalidCosts
from scheduler.costs.costgraph import CostGraph
from scheduler.memory.activations.setting import TRAINED, Lora, linears, setting
from scheduler.memory.checks import check_choice
from scheduler.memory.costs import costs_from_shape
from scheduler.memory.errors import InvalidRecipe
from scheduler.memory.fitting.peaks import with_gradient, with_working
from scheduler.memory.gpus import Gpu, load_gpu
from scheduler.memory.shape.shape import Shape
from scheduler.memory.state.recipes import (
    BASES,
    DTYPES,
    PRECISIONS,
    check_precision,
    compute_precision,
    gradient_size,
)
from scheduler.memory.state.sharding import Sharding, resolve_sharding
from scheduler.memory.state.state import State, training_state

__all__ = ["UPDATES", "Efficiency", "Training"]

UPDATES = ("fused", "foreach")
Efficiency: TypeAlias = float | tuple[float, float] | None

_BLOCKS = ("nf4", "nf4-double")


@dataclass(frozen=True)
class Training:
    """A shape, a GPU and a recipe, checked; from it follow state and costs on one GPU.

    Attributes
    ----------
    shape
        The model's.
    gpu, efficiency
        See `costs_from_shape`.
    precision, optimizer, zero, gpus
        See `training_state`; `gpus` are data-parallel ones.
    train, lora, attention, loss
        See `costs_from_shape`.
    base
        How weights that do not train are stored: see `training_state`. In blocks of 4 bits those
        of the blocks' linear layers; embedding, head and norms stay in bf16.
    update
        "fused": the optimizer's step needs nothing more. "foreach": torch's default for optimizers
        made by hand, which holds one temporary the size of all parameters it updates.
    gradient_dtype
        What gradients are kept in: see `training_state`. Backwards make them in the dtype of their
        weights (of their adapters) all the same.
    gradient_accumulation
        Gradients of earlier micro-batches are there from the start, in fp32 unless `gradient_dtype`
        says otherwise (with plain torch, whose sums are in the dtype of the weights, it must); the
        step looked at is one that adds to them.

    Raises
    ------
    InvalidRecipe
        A name is unknown, a size is not positive, or two arguments contradict each other.
    """

    shape: Shape
    gpu: Gpu
    precision: str = "bf16-mixed"
    optimizer: str = "adamw"
    zero: int | str = 0
    gpus: int = 1
    train: str = "full"
    lora: Lora | None = None
    attention: str = "sdpa"
    loss: str = "hf"
    base: str | None = None
    update: str = "fused"
    gradient_dtype: str | None = None
    gradient_accumulation: bool = False
    efficiency: Efficiency = None
    state: State = field(init=False)
    sharding: Sharding = field(init=False)

    def __post_init__(self) -> None:
        """Check the recipe and count its state."""
        load_gpu(self.gpu).at(self.efficiency)
        check_precision(self.precision)
        check_choice("train", self.train, TRAINED, InvalidRecipe)
        check_choice("update", self.update, UPDATES, InvalidRecipe)
        asked = gradient_size(self.gradient_dtype, self.gradient_accumulation)
        if self.train == "frozen" and asked:
            what = "gradient_dtype" if self.gradient_dtype else "gradient_accumulation"
            raise InvalidRecipe(f"train='frozen' makes no gradients; leave out {what}")
        if self.base is not None:
            check_choice("base", self.base, BASES, InvalidRecipe)
            if self.train == "full":
                raise InvalidRecipe(
                    f"base={self.base!r} stores weights that do not train; "
                    "say train='lora' or train='frozen'"
                )
        alone = {"tensor": 1, "pipeline": 1, "sequence": 1, "context": 1, "expert": 1}
        sharding = resolve_sharding(self.zero, self.gpus, **alone)
        object.__setattr__(self, "sharding", sharding)
        object.__setattr__(self, "state", self._state())

    @property
    def compute(self) -> str:
        """The precision as `costs_from_shape` calls it."""
        return compute_precision(self.precision)

    @property
    def gradients(self) -> str | None:
        """The dtype that gradients are kept in; None where no weight trains."""
        if self.train == "frozen":
            return None
        if self.gradient_dtype is not None:
            return self.gradient_dtype
        return "fp32" if self.gradient_accumulation else self._made

    @property
    def _made(self) -> str:
        """The dtype that a backward makes gradients in: that of the weights it trains."""
        if self.lora is not None:
            return self.lora.dtype
        return "fp32" if self.precision == "autocast" else self.compute

    def unsharded_costs(self, batch: int, sequence: int, *, options: bool = False) -> CostGraph:
        """`costs_from_shape`: every gradient and weight whole on the GPU."""
        return costs_from_shape(
            self.shape,
            batch,
            sequence,
            precision=self.compute,
            attention=self.attention,
            gpu=self.gpu,
            efficiency=self.efficiency,
            train=self.train,
            lora=self.lora,
            loss=self.loss,
            options=options,
        )

    def costs(self, batch: int, sequence: int, *, options: bool = False) -> CostGraph:
        """Costs on one GPU, whose own gradients add up to those of `state`.

        `options` is of `costs_from_shape`.

        A layer's gradients are made whole, in the dtype of its weights. What of them is kept is
        `gradient_bytes`, the rest working memory of its backward:

        - ZeRO-2 and 3 over N GPUs keep a part of 1/N, of whole parameters; the others are reduced.
        - Another `gradient_dtype` is a tensor of its own: the made one passes beside the kept one.
        - With `gradient_accumulation` nothing is made to stay: the sums are there from the start
          (in `state`), and the made one passes until it is added.

        The last two are upper bounds: torch casts and adds parameter by parameter.

        With ZeRO-3 a layer's weights are whole while it runs, and those of the layer that runs
        next are fetched meanwhile: both are working memory, forward and backward.

        A base in blocks of 4 bits is turned into 2 bytes a weight for each product: working memory
        of the block's largest linear layer.

        Raises
        ------
        InvalidRecipe
            Also where sizes are so large that a step's bytes or times pass 2**62.
        """
        try:
            costs = self._costs(batch, sequence, options)
            costs.to_chain()  # it adds up all times
        except InvalidCosts as error:
            share = "" if self.efficiency is None else ", or a larger efficiency"
            raise InvalidRecipe(
                f"batch {batch} × sequence {sequence} is too large to count: bytes or nanoseconds "
                f"of a step pass 2**62; give a smaller batch or sequence{share}"
            ) from error
        return costs

    def _costs(self, batch: int, sequence: int, options: bool) -> CostGraph:
        costs = self.unsharded_costs(batch, sequence, options=options)
        layers = costs.layers
        n, stage = self.sharding.data, self.sharding.stage
        if self.gradients is not None:
            made, kept = DTYPES[self._made], DTYPES[self.gradients]
            over = n if stage >= 2 else 1
            parts = [self._gradient(layer.gradient_bytes, made, kept, over) for layer in layers]
            layers = tuple(with_gradient(la, *part) for la, part in zip(layers, parts, strict=True))
        working = [0] * len(layers)
        if stage == 3 and n > 1:
            sizes = self._weights_of_layers(len(layers))
            # Forward fetches the next layer, backward the one before: the larger serves both.
            beside = [
                max(sizes[i - 1] if i else 0, sizes[i + 1] if i + 1 < len(sizes) else 0)
                for i in range(len(sizes))
            ]
            working = [own + other for own, other in zip(sizes, beside, strict=True)]
        if self.base in _BLOCKS:
            largest = 2 * max(a * b for a, b in linears(self.shape).values())
            inner = range(1, len(layers) - 1)
            working = [size + largest * (i in inner) for i, size in enumerate(working)]
        if any(working):
            layers = tuple(with_working(la, w) for la, w in zip(layers, working, strict=True))
        return replace(costs, layers=layers)

    def _gradient(self, whole: int, made: int, kept: int, over: int) -> tuple[int, int]:
        """What stays and what passes of a layer's gradients, `whole` bytes of `made` each."""
        if self.gradient_accumulation:
            return 0, whole
        stays = kept * -(-(whole // made) // over)
        return stays, whole - stays if made == kept else whole

    def temporaries_bytes(self) -> int:
        """What the optimizer's step needs on top of gradients: one of its parameters' size."""
        if self.update == "fused":
            return 0
        return self.state.master_bytes or self._updated_bytes()

    def _updated_bytes(self) -> int:
        sharded = self.sharding.stage >= 1
        sizes = PRECISIONS[self.precision]
        if self.train == "full":
            return sizes.weight * self.sharding.share(self.shape.parameters, 0, sharded)
        if self.lora is None:
            return 0
        dtype = self._lora_dtype()
        size = sizes.weight if dtype is None else self.lora.size
        return size * self.sharding.share(self._adapter_parameters(), 0, sharded)

    def _state(self) -> State:
        shape, full = self.shape, self.train == "full"
        adapters = self._adapter_parameters()
        if self.lora is not None:
            if adapters > shape.parameters:
                raise InvalidRecipe(
                    f"adapters of rank {self.lora.rank} have {adapters:,} parameters, more than "
                    f"the {shape.parameters:,} of {shape.name}; choose a smaller rank"
                )
            return training_state(
                shape.parameters,
                optimizer=self.optimizer,
                precision=self.precision,
                gradient_dtype=self.gradient_dtype,
                gradient_accumulation=self.gradient_accumulation,
                lora_parameters=adapters,
                lora_dtype=self._lora_dtype(),
                base=self.base,
                quantized_parameters=self._quantized(),
                factored_statistics=self._statistics(),
                zero=self.zero,
                gpus=self.gpus,
            )
        return training_state(
            shape.parameters,
            optimizer=self.optimizer,
            precision=self.precision,
            gradient_dtype=self.gradient_dtype,
            gradient_accumulation=self.gradient_accumulation,
            trainable_parameters=None if full else 0,
            base=self.base,
            quantized_parameters=self._quantized(),
            adamw_parameters=shape.parameters - self._matrices()
            if full and self.optimizer == "muon"
            else 0,
            factored_statistics=self._statistics(),
            zero=self.zero,
            gpus=self.gpus,
            expert_parameters=shape.routed_parameters,
        )

    def _lora_dtype(self) -> str | None:
        """Adapters in the dtype that is computed in train by the model's own recipe."""
        assert self.lora is not None
        own = "fp32" if self.precision in ("fp32", "autocast") else self.compute
        return None if self.lora.dtype == own else self.lora.dtype

    def _adapter_parameters(self) -> int:
        """Of all blocks: rank · (inputs + outputs) for each linear layer that has an adapter."""
        if self.lora is None and self.train != "lora":
            return 0
        return self._adapters(lambda rank, a, b: rank * (a + b))

    def _adapters(self, count: Callable[[int, int, int], int]) -> int:
        """Sum over all adapters of `count` of their rank, inputs and outputs."""
        at = setting(self.shape, 1, 1, attention="eager", train=self.train, lora=self.lora)
        assert self.lora is not None
        sizes, rank = linears(self.shape), self.lora.rank
        return self.shape.layers * sum(count(rank, *sizes[name]) for name in at.targets)

    def _statistics(self) -> int | None:
        """Adafactor's rows and columns."""
        if not self.optimizer.startswith("adafactor"):
            return None
        if self.lora is not None:
            return self._adapters(lambda rank, a, b: a + b + 2 * rank)
        return self.shape.factored_statistics if self.train == "full" else 0

    def _matrices(self) -> int:
        """Weights of the blocks' linear layers and experts, all of which Muon takes."""
        shape = self.shape
        dense = sum(a * b for a, b in linears(shape).values())
        inner = 3 if shape.gated else 2
        experts = shape.experts * (inner * shape.width * shape.mlp_width + shape.width)
        shared = inner * shape.width * shape.shared_expert_width
        return shape.layers * (dense + experts + shared)

    def _quantized(self) -> int | None:
        return self._matrices() if self.base in _BLOCKS else None

    def _weights_of_layers(self, count: int) -> list[int]:
        """Bytes of each layer's weights as they are gathered: embedding, blocks, head."""
        shape = self.shape
        size = PRECISIONS[self.precision].weight
        stored = size if self.base is None else BASES[self.base]
        head = shape.head_parameters
        if shape.tied:
            head += shape.vocabulary * shape.width  # the head needs the shared weight too
        small = 2 if self.base in _BLOCKS else stored
        ends = [ceil(small * part) for part in (shape.embedding_parameters, head)]
        adapters = 0
        if self.lora is not None:
            own = size if self._lora_dtype() is None else self.lora.size
            adapters = own * self._adapter_parameters() // shape.layers
        block = ceil(stored * shape.block_parameters) + adapters
        return [ends[0], *[block] * (count - 2), ends[1]]
