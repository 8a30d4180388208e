"""One way to train one model on one kind of GPU: its state and its costs, which go together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import ceil
from typing import TypeAlias

from scheduler.common.errors import InvalidCosts
from scheduler.costs.costgraph import CostGraph
from scheduler.memory.costs import costs_from_shape
from scheduler.memory.errors import Argument, InvalidRecipe, NoFormula
from scheduler.memory.fitting.peaks import with_gradient, with_working
from scheduler.memory.fitting.trained import (
    adapter_tensors,
    elements,
    head_tables,
    matrices,
    tables,
    trained_tensors,
)
from scheduler.memory.gpus import Gpu, load_gpu
from scheduler.memory.recipe import Recipe
from scheduler.memory.shape.shape import Shape
from scheduler.memory.simulate.parallel.divided import divided
from scheduler.memory.simulate.setting import linears
from scheduler.memory.state.optimizers import Dims, optimizer_of
from scheduler.memory.state.sizes import BASES, BLOCKS, DTYPES, PRECISIONS
from scheduler.memory.state.state import State, training_state

Efficiency: TypeAlias = float | tuple[float, float] | None


@dataclass(frozen=True)
class Training:
    """A shape, a GPU and a recipe, checked; from it follow state and costs on one GPU.

    `tiles` is of `costs_from_shape`; `own` is the shape of what is on one GPU; `state` is what that
    one holds from step to step. Over a pipeline an even part of it: see `pipeline_costs`.
    """

    shape: Shape
    gpu: Gpu
    recipe: Recipe = field(default_factory=Recipe)
    efficiency: Efficiency = None
    tiles: bool | int = False
    own: Shape = field(init=False, repr=False)
    state: State = field(init=False)

    def __post_init__(self) -> None:
        """Check the recipe and count its state."""
        load_gpu(self.gpu).at(self.efficiency)
        self.recipe.check_trained()
        if self.shape.buckets and self._divides_gradients:
            raise NoFormula(
                "of T5 there is no formula for gradients that are divided, summed or kept in "
                "another dtype, as some wait to be used up; say ",
                Argument("zero", 1),
                " or less, or profile the model with scheduler.pytorch",
            )
        object.__setattr__(self, "own", divided(self.shape, self.recipe))
        object.__setattr__(self, "state", self._state())

    @property
    def _divides_gradients(self) -> bool:
        recipe = self.recipe
        return recipe.sharding.stage >= 2 or recipe.summed_gradients is not None

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
            return self._costs(batch, sequence, options)
        except InvalidCosts as error:
            share = "" if self.efficiency is None else ", or a larger efficiency"
            raise InvalidRecipe(
                f"batch {batch} × sequence {sequence} is too large to count: bytes or nanoseconds "
                f"of a step pass 2**62; give a smaller batch or sequence{share}"
            ) from error

    def _costs(self, batch: int, sequence: int, options: bool) -> CostGraph:
        costs = costs_from_shape(
            self.shape,
            batch,
            sequence,
            recipe=self.recipe,
            gpu=self.gpu,
            efficiency=self.efficiency,
            options=options,
            tiles=self.tiles,
        )
        layers = costs.layers
        n, stage = self.recipe.sharding.data, self.recipe.sharding.stage
        if self.recipe.gradients is not None:
            made, kept = DTYPES[self.recipe.made_gradients], DTYPES[self.recipe.gradients]
            over = n if stage >= 2 else 1
            parts = [self._gradient(layer.gradient_bytes, made, kept, over) for layer in layers]
            layers = tuple(with_gradient(la, *part) for la, part in zip(layers, parts, strict=True))
        working = [0] * len(layers)
        # Pipelines gather a stage's weights once: they are part of its state.
        if stage == 3 and n > 1 and self.recipe.pipeline_parallel == 1:
            sizes = self._weights_of_layers()
            # Forward fetches the next layer, backward the one before: the larger serves both.
            around = zip([0, *sizes[:-1]], sizes, [*sizes[1:], 0], strict=True)
            working = [own + max(before, after) for before, own, after in around]
        if self.recipe.base in BLOCKS:
            every = [size for kind in self.own.kinds for size in linears(kind).values()]
            largest = 2 * max(a * b for a, b in every)
            inner = range(1, len(layers) - 1)
            working = [size + largest * (i in inner) for i, size in enumerate(working)]
        if any(working):
            layers = tuple(with_working(la, w) for la, w in zip(layers, working, strict=True))
        return replace(costs, layers=layers)

    def pipeline_costs(self, batch: int, sequence: int, *, options: bool = False) -> CostGraph:
        """Costs of one microbatch, each layer with its state: see the function of this name."""
        if self.shape.head != "causal" or self.shape.buckets:
            raise NoFormula(
                f"there are stages of decoders alone, and {self.shape.name} is none; profile the "
                "model with scheduler.pytorch"
            )
        recipe = self.recipe
        if recipe.loss == "hf" and recipe.runtime == "torch":
            # Schedules hold what the last stage gave, the logits, until its backward is over.
            recipe = replace(recipe, loss="hf-outputs-kept")
        costs = replace(self, recipe=recipe).costs(batch, sequence, options=options)
        states, sharding = self.layer_states(), self.recipe.sharding
        if sharding.stage == 3 and sharding.data > 1 and sharding.pipeline > 1:
            states = [a + b for a, b in zip(states, self._weights_of_layers(), strict=True)]
        first, *others = (
            replace(layer, state_bytes=state)
            for layer, state in zip(costs.layers, states, strict=True)
        )
        # Of what is there throughout it is ids alone that each microbatch has, and no gradient.
        ids = 8 * batch * sequence // sharding.context
        above = first.backward_transient_bytes - first.backward_overlap_bytes
        above += costs.input_bytes - ids
        first = replace(
            first, backward_transient_bytes=max(above, 0), backward_overlap_bytes=max(-above, 0)
        )
        return replace(costs, layers=(first, *others), input_bytes=ids)

    def stage_bytes(self, batch: int, sequence: int, microbatches: int) -> int:
        """What each stage of a pipeline holds beside its layers, at most: tables, labels, masks."""
        ids = 8 * batch * sequence // self.recipe.sharding.context
        return self.costs(batch, sequence).input_bytes + ids * (microbatches - 2)

    def _gradient(self, whole: int, made: int, kept: int, over: int) -> tuple[int, int]:
        """What stays and what passes of a layer's gradients, `whole` bytes of `made` each."""
        if self.recipe.gradient_accumulation:
            return 0, whole
        stays = kept * -(-(whole // made) // over)
        return stays, whole - stays if made == kept else whole

    def temporaries_bytes(self) -> int:
        """What the optimizer's step needs on top of gradients: one of its parameters' size."""
        if self.recipe.update == "fused":
            return 0
        if self.state.master_bytes:
            return self.state.master_bytes
        full, sharding = self.recipe.train == "full", self.recipe.sharding
        count = self.own.parameters if full else self._adapter_parameters()
        over = sharding.pipeline * (sharding.data if sharding.stage else 1)
        return self._trained_size * -(-count // over)

    @property
    def _trained_size(self) -> int:
        """Bytes of one weight that trains: the model's own, or an adapter's."""
        dtype = self.recipe.lora_dtype
        return PRECISIONS[self.recipe.precision].weight if dtype is None else DTYPES[dtype]

    def _state(self) -> State:
        shape, lora = self.shape, self.recipe.lora
        adapters = self._adapter_parameters()
        if lora is not None and adapters > shape.parameters:
            raise InvalidRecipe(
                f"adapters of rank {lora.rank} have {adapters:,} parameters, more than "
                f"the {shape.parameters:,} of {shape.name}; choose a smaller rank",
                argument="lora",
            )
        own, linear = self.own, matrices(self.own)
        ends = (*tables(own), *head_tables(own))
        whole = own.parameters, linear, ends, own.routed_parameters, own.fp32_parameters
        return self._held_of(*whole, self._adapter_tensors(), self.recipe.pipeline_parallel)

    def _held_of(
        self,
        parameters: int,
        linear: Counter[Dims],
        ends: Iterable[tuple[str, int]],
        experts: int,
        wide: int,
        adapters: Counter[Dims],
        stages: int = 1,
    ) -> State:
        """The state of so many parameters on one GPU: matrices of linear layers, tables, others."""
        recipe, shape, left = self.recipe.alone, self.own, 0
        trained: Counter[Dims] | None = adapters
        if not experts:
            recipe = replace(recipe, expert_parallel=1)
        if recipe.train == "full":
            optimizer = optimizer_of(recipe.optimizer)
            trained, left = trained_tensors(shape, linear, ends, parameters, optimizer)
        elif recipe.lora is not None and not adapters:
            recipe, trained = replace(recipe, train="frozen", lora=None), None
        elif recipe.train == "frozen":
            trained = None
        if stages > 1:  # of a whole model: its layers are taken to be spread evenly
            recipe = replace(recipe, gpus=recipe.sharding.gpus * stages, pipeline_parallel=stages)
        found = training_state(
            parameters,
            recipe=recipe,
            lora_parameters=elements(adapters),
            quantized_parameters=elements(linear) - wide if recipe.base in BLOCKS else None,
            adamw_parameters=left,
            tensors=trained,
            # Without experts apart, what frozen weights are rounded up to does not depend on them.
            expert_parameters=0 if recipe.expert_parallel == 1 and recipe.lora else experts,
            fp32_parameters=wide,
        )
        return replace(found, recipe=self.recipe.words)

    def layer_states(self) -> list[int]:
        """What each layer holds from step to step: embedding, blocks, head.

        A pipeline has a table that is tied twice, with the first layer and with the last.
        """
        own, none = self.own, Counter[Dims]()
        inside, of_head = adapter_tensors(own, self.recipe.lora)
        twice = own.tied and self.recipe.pipeline_parallel > 1
        table = [("head", own.vocabulary)] if twice else head_tables(own)
        last = own.head_parameters + twice * own.vocabulary * own.width
        states = {
            kind: self._held_of(
                kind.block_parameters,
                matrices(replace(kind, layers=1)),
                (),
                kind.experts * kind.expert_parameters,
                kind.fp32_router_parameters,
                inside[kind],
            ).total_bytes
            for kind in own.kinds
        }
        first = self._held_of(own.embedding_parameters, none, tables(own), 0, 0, none)
        end = self._held_of(last, none, table, 0, 0, of_head)
        return [first.total_bytes, *(states[kind] for kind in own.blocks), end.total_bytes]

    def _adapter_tensors(self) -> Counter[Dims]:
        inside, found = adapter_tensors(self.own, self.recipe.lora)
        for kind, number in self.own.kinds.items():
            for dims, count in inside[kind].items():
                found[dims] += number * count
        return found

    def _adapter_parameters(self) -> int:
        """Rank · (inputs + outputs) for each linear layer that has an adapter."""
        return elements(self._adapter_tensors())

    def _weights_of_layers(self) -> list[int]:
        """Bytes of each layer's weights as they are gathered: embedding, blocks, head."""
        shape, base = self.own, self.recipe.base
        stored = PRECISIONS[self.recipe.precision].weight if base is None else BASES[base]
        head = shape.head_parameters
        if shape.tied:
            head += shape.vocabulary * shape.width  # the head needs the shared weight too
        small = 2 if base in BLOCKS else stored
        ends = [ceil(small * part) for part in (shape.embedding_parameters, head)]
        inside, of_head = adapter_tensors(shape, self.recipe.lora)
        of_kind = {
            kind: ceil(stored * kind.block_parameters) + self._trained_size * elements(inside[kind])
            for kind in shape.kinds
        }
        last = ends[1] + self._trained_size * elements(of_head)
        return [ends[0], *(of_kind[kind] for kind in shape.blocks), last]
