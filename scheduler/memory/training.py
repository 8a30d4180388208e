"""One way to train one model on one kind of GPU: its state and its costs, which go together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import ceil
from typing import TypeAlias

from scheduler.costs import CostGraph
from scheduler.layers import LayerCost
from scheduler.memory.checks import check_choice, check_flag
from scheduler.memory.costs import costs_from_shape
from scheduler.memory.errors import InvalidRecipe
from scheduler.memory.gpus import Gpu, load_gpu
from scheduler.memory.recipes import BASES, PRECISIONS
from scheduler.memory.setting import TRAINED, Lora, linears, setting
from scheduler.memory.shapes import Shape
from scheduler.memory.sharding import Sharding, resolve_sharding
from scheduler.memory.state import State, training_state

__all__ = ["UPDATES", "Efficiency", "Training"]

UPDATES = ("fused", "foreach")
Efficiency: TypeAlias = float | tuple[float, float] | None

_COMPUTE = {"bf16-mixed": "bf16", "fp16-mixed": "fp16"}
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
    accumulate
        Gradients of earlier micro-batches are there from the start, in their own dtype; the step
        looked at is one that adds to them.

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
    accumulate: bool = False
    efficiency: Efficiency = None
    state: State = field(init=False)
    sharding: Sharding = field(init=False)

    def __post_init__(self) -> None:
        """Check the recipe and count its state."""
        load_gpu(self.gpu).at(self.efficiency)
        check_choice("precision", self.precision, PRECISIONS, InvalidRecipe)
        check_choice("train", self.train, TRAINED, InvalidRecipe)
        check_choice("update", self.update, UPDATES, InvalidRecipe)
        check_flag("accumulate", self.accumulate, InvalidRecipe)
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
        return _COMPUTE.get(self.precision, self.precision)

    def unsharded_costs(self, batch: int, sequence: int) -> CostGraph:
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
        )

    def costs(self, batch: int, sequence: int) -> CostGraph:
        """Costs on one GPU, whose own gradients add up to those of `state`.

        With ZeRO-2 and 3 over N GPUs a layer's gradient is whole while its backward runs (it is
        reduced then), so g/N stay and the rest is working memory of that backward.

        With ZeRO-3 a layer's weights are whole while it runs, and those of the layer that runs
        next are fetched meanwhile: both are working memory, forward and backward.

        With `accumulate` no gradient is made to stay: a layer's new one is working memory of its
        backward until it is added. That is an upper bound: torch adds parameter by parameter.

        A base in blocks of 4 bits is turned into 2 bytes a weight for each product: working memory
        of the block's largest linear layer.
        """
        costs = self.unsharded_costs(batch, sequence)
        layers = costs.layers
        n, stage = self.sharding.data, self.sharding.stage
        if self.accumulate:
            layers = tuple(_with_gradient(layer, 0) for layer in layers)
        elif stage >= 2 and n > 1:
            layers = tuple(_with_gradient(la, -(-la.gradient_bytes // n)) for la in layers)
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
            layers = tuple(_with_working(la, w) for la, w in zip(layers, working, strict=True))
        return replace(costs, layers=layers)

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
            return training_state(
                shape.parameters,
                optimizer=self.optimizer,
                precision=self.precision,
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


def _with_gradient(layer: LayerCost, part: int) -> LayerCost:
    """The layer of whose gradient `part` stays; the rest is working memory of its backward."""
    passing = layer.gradient_bytes - part
    return replace(
        layer,
        gradient_bytes=part,
        backward_transient_bytes=layer.backward_transient_bytes + passing,
    )


def _with_working(layer: LayerCost, size: int) -> LayerCost:
    """The layer with `size` bytes more of working memory in all it does."""
    drop = layer.drop_transient_bytes
    return replace(
        layer,
        forward_transient_bytes=layer.forward_transient_bytes + size,
        drop_transient_bytes=None if drop is None else drop + size,
        backward_transient_bytes=layer.backward_transient_bytes + size,
    )
