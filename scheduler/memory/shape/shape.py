"""A model's shape: everything its memory depends on, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from scheduler.memory.shape.fields import ShapeFields

_STACKS = {
    "gpt2": "transformer.h",
    "gpt_neox": "gpt_neox.layers",
    "vit": "vit.layers",
    "bert": "bert.encoder.layer",
    "roberta": "roberta.encoder.layer",
}


@dataclass(frozen=True, slots=True)
class Shape(ShapeFields):
    """A transformer, by its sizes, and what follows from them: widths, kinds of blocks, parameters.

    See `ShapeFields` for the sizes.
    """

    def __post_init__(self) -> None:
        """Check every field, that they go together, and each kind of block."""
        ShapeFields.__post_init__(self)
        if self.by_block:
            _ = self.blocks  # each is checked as it is made

    @property
    def blocks(self) -> tuple[Shape, ...]:
        """For each block the shape of a model whose blocks are all like it."""
        if not self.by_block:
            return (self,) * self.layers
        names, values = zip(*self.by_block, strict=True)
        made: dict[tuple[Any, ...], Shape] = {}
        for row in zip(*values, strict=True):
            if row not in made:
                made[row] = replace(self, by_block=(), **dict(zip(names, row, strict=True)))
        return tuple(made[row] for row in zip(*values, strict=True))

    @property
    def kinds(self) -> Mapping[Shape, int]:
        """The kinds of blocks, as in `blocks`, and how many there are of each."""
        return Counter(self.blocks) if self.by_block else {self: self.layers}

    def over_blocks(self, count: Callable[[Shape], int]) -> int:
        """The sum of what `count` says of each block's kind."""
        return sum(n * count(kind) for kind, n in self.kinds.items())

    @property
    def stack(self) -> str:
        """Where transformers' model of this family has its blocks: ``model.layers``."""
        return _STACKS.get(self.family, "model.layers")

    @property
    def longest(self) -> int:
        """Tokens that a sequence can have where positions are learned; 0: as many as one likes."""
        return self.positions - self.first_position

    @property
    def fixed_sequence(self) -> int:
        """Tokens of every sequence where images make them, the class's token with them; else 0."""
        return self.positions if self.pixels else 0

    @property
    def query_width(self) -> int:
        """H·a, the features of all queries of a token."""
        return self.heads * self.head_width

    @property
    def attended_width(self) -> int:
        """Features of a token that attention hands on: those of all heads' values."""
        return self.heads * self.value_head_width

    @property
    def value_head_width(self) -> int:
        """Features of a head of values."""
        return self.value_width or self.head_width

    @property
    def kv_width(self) -> int:
        """G·a, the features of all keys (or all values) of a token."""
        return self.kv_heads * self.head_width

    @property
    def rotary(self) -> bool:
        """Whether positions turn queries and keys."""
        return not (self.positions or self.buckets or self.no_rotary)

    @property
    def crosses(self) -> bool:
        """Whether a block attends to what another stack has made."""
        return bool(self.buckets) and self.causal

    @property
    def turned_width(self) -> int:
        """Features of a head that rotary positions turn, and the width of their tables."""
        return self.rotary_width or self.head_width

    @property
    def attention_parameters(self) -> int:
        """Of one block: d·(Ha + 2Ga) to queries, keys and values, Ha·d back, biases, QK norms."""
        d, dq, dk = self.width, self.query_width, self.kv_width
        if self.kv_rank:
            norms = self.query_rank + self.kv_rank
            return norms + sum(rows * columns for rows, columns in self._latent_matrices)
        biases = self.qkv_bias * (dq + 2 * dk) + self.output_bias * d
        others = self.qk_norm * 2 * self.head_width + self.sinks * self.heads
        return (2 * d * dq + 2 * d * dk + biases + others) * (1 + self.crosses)

    @property
    def _latent_matrices(self) -> list[tuple[int, int]]:
        """Rows and columns of attention's matrices where keys and values have a latent."""
        d, dq, rank = self.width, self.query_width, self.query_rank
        straight = self.heads * (self.head_width - self.turned_width)
        return [
            *([(d, rank), (rank, dq)] if rank else [(d, dq)]),
            (d, self.kv_rank + self.turned_width),
            (self.kv_rank, straight + self.attended_width),
            (self.attended_width, d),
        ]

    def _mlp(self, width: int) -> int:
        inner = 2 if self.gated else 1
        return (inner + 1) * self.width * width + self.mlp_bias * (inner * width + self.width)

    @property
    def expert_parameters(self) -> int:
        """Of one MLP or one expert: two or three d × f matrices, and biases."""
        return self._mlp(self.mlp_width)

    @property
    def mlp_parameters(self) -> int:
        """Of one block: the MLP; or the router (d·E), E experts, the shared expert and its gate."""
        if not self.experts:
            return self.expert_parameters
        shared = self.shared_expert_width
        beside = self._mlp(shared) + self.shared_expert_gate * self.width if shared else 0
        router = (self.width + self.router_bias) * self.experts
        return router + self.experts * self.expert_parameters + beside

    @property
    def norm_parameters(self) -> int:
        """Of one norm: d weights, and d biases where norms have them."""
        return self.width * (1 + self.norm_bias)

    @property
    def block_parameters(self) -> int:
        """Of one block: attention, MLP and norms."""
        norms = (self.norms + self.crosses) * self.norm_parameters
        return self.attention_parameters + self.mlp_parameters + norms

    @property
    def patch_parameters(self) -> int:
        """Of the projection of patches: the pixels of one times d, and biases."""
        return (self.channels * self.patch**2 + 1) * self.width

    @property
    def embedding_parameters(self) -> int:
        """V·d of tokens, or patches and the class's token; learned positions and types; a norm.

        Of two stacks also what each has of its own: the first its last norm, both their buckets.
        """
        tokens = self.patch_parameters + self.width if self.pixels else self.vocabulary * self.width
        learned = (self.positions + self.types) * self.width + 2 * self.buckets * self.heads
        norms = self.post_norm or bool(self.buckets)
        return tokens + learned + norms * self.norm_parameters

    @property
    def head_parameters(self) -> int:
        """The last norm and the head: V·d unless the embedding's weight serves, and its bias.

        A masked one has a layer of d·d before it.
        """
        own = 0 if self.tied else self.vocabulary * self.width
        own += (self.width + 1) * self.width if self.head == "masked" else 0
        own += self.head_bias * self.vocabulary + self.idle_parameters
        return self.norm_parameters + own

    @property
    def idle_parameters(self) -> int:
        """Those that nothing uses: a masked head has its bias twice, tied where its weight is."""
        return self.vocabulary if self.head == "masked" and not self.tied else 0

    @property
    def parameters(self) -> int:
        """Of the whole model, a tied weight counted once."""
        blocks = self.over_blocks(lambda kind: kind.block_parameters)
        return self.embedding_parameters + blocks + self.head_parameters

    @property
    def routed_parameters(self) -> int:
        """Of all experts of all blocks but shared ones: what expert parallelism divides."""
        return self.over_blocks(lambda kind: kind.experts * kind.expert_parameters)

    @property
    def fp32_parameters(self) -> int:
        """Of the routers that stay in fp32 whatever the precision (DeepSeek-V3)."""
        return self.over_blocks(lambda kind: kind.fp32_router_parameters)

    @property
    def fp32_router_parameters(self) -> int:
        """The same of one block."""
        return self.width * self.experts if self.expert_groups else 0

    @property
    def active_parameters(self) -> int:
        """Parameters that one token meets: of each block's experts, experts_per_token."""
        return self.parameters - self.over_blocks(
            lambda kind: (kind.experts - kind.experts_per_token) * kind.expert_parameters
        )

    @property
    def factored_statistics(self) -> int:
        """Fp32 numbers that Adafactor keeps as second moments.

        A matrix of r rows and c columns keeps r + c (Shazeer & Stern, arXiv:1804.04235); a vector
        is not factored. Where transformers packs matrices into one tensor (Phi-3, GPT-2, experts)
        some rows or columns are shared: this count is of separate matrices, an upper bound there.
        """
        d = self.width
        norms = self.post_norm or bool(self.buckets)
        embeddings = norms * self.norm_parameters + 2 * bool(self.buckets) * (
            self.buckets + self.heads
        )
        embeddings += sum(rows + d for rows in (self.positions, self.types) if rows)
        if self.pixels:
            # A kernel of four dimensions is factored over the last two; the class's token is a row.
            embeddings += 2 * d * self.channels * self.patch + d + (1 + d)
        else:
            embeddings += self.vocabulary + d
        head = self.norm_parameters + self.head_bias * self.vocabulary + self.idle_parameters
        head += 0 if self.tied else self.vocabulary + d
        head += 3 * d if self.head == "masked" else 0
        return self.over_blocks(lambda kind: kind._block_statistics) + embeddings + head

    @property
    def _block_statistics(self) -> int:
        d, dq, dk, f = self.width, self.query_width, self.kv_width, self.mlp_width
        inner = 2 if self.gated else 1
        attention = (2 * (d + dq) + 2 * (d + dk)) * (1 + self.crosses)
        if self.kv_rank:
            attention = sum(map(sum, self._latent_matrices)) + self.query_rank + self.kv_rank
        vectors = self.qkv_bias * (dq + 2 * dk) + self.output_bias * d
        norms = (self.norms + self.crosses) * self.norm_parameters
        vectors += self.qk_norm * 2 * self.head_width + norms
        vectors += self.sinks * self.heads

        def mlp(width: int) -> int:
            return (inner + 1) * (d + width) + self.mlp_bias * (inner * width + d)

        mlps = mlp(f)
        if self.experts:
            gate = self.shared_expert_gate * (d + 1)
            shared = mlp(self.shared_expert_width) + gate if self.shared_expert_width else 0
            mlps = self.experts * (mlp(f) + self.router_bias) + self.experts + d + shared
        return attention + vectors + mlps
