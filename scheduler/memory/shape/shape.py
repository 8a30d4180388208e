"""A model's shape: everything its memory depends on, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, TypeAlias

from scheduler.common.text import shown
from scheduler.memory.errors import (
    InvalidShape,
    check_choice,
    check_count,
    check_flag,
    check_probability,
)
from scheduler.memory.shape.families.parts import MOST_LAYERS

ACTIVATIONS = ("silu", "gelu", "gelu_new", "relu")
NORMS = ("rms", "layer")
HEADS = ("causal", "masked", "classes", "seq2seq")

_STACKS = {
    "gpt2": "transformer.h",
    "gpt_neox": "gpt_neox.layers",
    "vit": "vit.layers",
    "bert": "bert.encoder.layer",
    "roberta": "roberta.encoder.layer",
}

Varying: TypeAlias = Mapping[str, Sequence[Any]] | tuple[tuple[str, tuple[Any, ...]], ...]

_CHECKS: dict[str, Callable[..., object]] = {
    "int": check_count,
    "bool": check_flag,
    "float": check_probability,
}
"""What the fields of a type go through, but for `norms`. A size with a default may be 0."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A transformer, by its sizes.

    Attributes
    ----------
    name, family
        What it is called; "llama" (RMS norm, gated MLP, rotary) or "gpt2" (layer norm, learned
        positions), or another family that `load_shape` knows.
    layers, width, heads, kv_heads, head_width
        L, d, H, G, a. Queries have H·a features, keys and values G·a.
    query_rank, kv_rank
        Where keys and values are expanded from a latent of so many features, `kv_rank` is its
        width, and `query_rank` that of the queries' (0: queries have none). Of a head
        `rotary_width` features are turned, in keys the same ones for all heads (DeepSeek-V3).
    value_width
        Features of a head of values (0: `head_width`).
    mlp_width
        f, of a dense MLP or of one expert.
    vocabulary, positions
        V, words or classes, and the number of learned positions (0: none).
    gated
        The MLP has gate, up and down (else up and down).
    activation
        "silu", "gelu" (fused), "gelu_new" (written out in operations), "relu".
    norm
        "rms" or "layer".
    qkv_bias, output_bias, mlp_bias, norm_bias, head_bias
        Which linear layers and norms carry a bias.
    qk_norm
        Queries and keys are normed per head.
    qk_l2_norm
        They are normed without weights (Llama 4).
    no_rotary, scaled_queries
        Positions turn no queries and keys in this block; its queries are scaled by their place
        (Llama 4).
    norms
        Norms in a block (2, or 4 where the outputs of attention and MLP are normed too).
    tied
        Head and embedding share their weight.
    experts, experts_per_token, shared_expert_width
        Of a mixture of experts; 0 experts: a dense MLP. A shared expert of this width runs on
        every token, in Qwen2-MoE behind a gate of its own (d weights); 0: none.
    shared_expert_gate
        That gate is there.
    router_bias
        The router, which chooses a token's experts, carries a bias.
    expert_groups, groups_per_token
        Experts are chosen in so many of these groups (DeepSeek-V3; 0: of all).
    shares_divided
        The shares of a token's experts are divided by their sum.
    rotary_width
        Features of a head that rotary positions turn (0: all). Fewer in GPT-NeoX and some Phi-3.
    sinks
        Each head has a score that no token's value goes with (gpt-oss).
    window
        Tokens that attention looks back, itself included (0: all), in every block. A sequence at
        least this long needs a mask of its own.
    parallel
        Attention and MLP read the same residual (GPT-NeoX).
    dropout
        Probability of residual and embedding dropout in training (0: none).
    attention_dropout
        Probability of dropout on attention probabilities.
    causal
        A token attends to those before it alone.
    head
        What the last blocks' output goes to: "causal", a head that predicts each next word;
        "masked", one that predicts words that are hidden, with a layer and a norm of its own;
        "classes", one that tells classes apart by the first token; "seq2seq", one that predicts
        the words of the second stack, with a loss in its own dtype.
    post_norm
        Norms come after the sums, and one after the embedding (BERT).
    buckets
        Distances between tokens that have a learned number a head, which is added to scores (T5);
        0: none. Such a model has two stacks, by `causal`, the second of which attends to what the
        first has made as well.
    scaled
        What the head is given is scaled (T5).
    types
        Kinds of tokens that are learned beside words and positions (0: none).
    first_position
        Where positions begin; those before it are no token's (RoBERTa).
    pixels, channels, patch
        Of an image, where a model takes images (0: none): height times width, numbers in a pixel,
        and the pixels along a side of its patches, of which each becomes a token.
    by_block
        What differs between blocks, a mapping: each such field with its value in every block, first
        to last (``{"window": (512, 512, 0)}``). The field itself is then the last block's. Kept as
        pairs of names and values; empty where all blocks are alike.

    Raises
    ------
    InvalidShape
        A size is not positive, a name is unknown, or the sizes do not go together.
    """

    name: str
    family: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    mlp_width: int
    vocabulary: int
    positions: int = 0
    query_rank: int = 0
    kv_rank: int = 0
    value_width: int = 0
    gated: bool = True
    activation: str = "silu"
    norm: str = "rms"
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False
    head_bias: bool = False
    qk_norm: bool = False
    qk_l2_norm: bool = False
    no_rotary: bool = False
    scaled_queries: bool = False
    norms: int = 2
    tied: bool = False
    experts: int = 0
    experts_per_token: int = 0
    shared_expert_width: int = 0
    shared_expert_gate: bool = True
    router_bias: bool = False
    expert_groups: int = 0
    groups_per_token: int = 0
    shares_divided: bool = True
    rotary_width: int = 0
    sinks: bool = False
    window: int = 0
    parallel: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0
    causal: bool = True
    head: str = "causal"
    post_norm: bool = False
    buckets: int = 0
    scaled: bool = False
    types: int = 0
    first_position: int = 0
    pixels: int = 0
    channels: int = 0
    patch: int = 0
    by_block: Varying = ()

    def __post_init__(self) -> None:
        """Check every field, and that they go together."""
        for field in ("name", "family"):
            if not isinstance(getattr(self, field), str):
                value = shown(getattr(self, field))
                raise InvalidShape(f"a shape's {field} must be text, got {value}")
        for one in fields(self):
            if one.type in _CHECKS and one.name != "norms":
                least = {"least": int(one.default is MISSING)} if one.type == "int" else {}
                what, value = self._what(one.name), getattr(self, one.name)
                checked = _CHECKS[str(one.type)](what, value, InvalidShape, **least)
                object.__setattr__(self, one.name, checked)
        if self.layers > MOST_LAYERS:
            raise InvalidShape(
                f"{self._what('layers')} must be at most {MOST_LAYERS:,}, got {self.layers}; no "
                "model has so many, correct it"
            )
        self._take_by_block()
        check_choice(self._what("activation"), self.activation, ACTIVATIONS, InvalidShape)
        check_choice(self._what("norm"), self.norm, NORMS, InvalidShape)
        check_choice(self._what("head"), self.head, HEADS, InvalidShape)
        if self.norms not in (2, 4):
            raise InvalidShape(f"{self._what('norms')} must be 2 or 4, got {shown(self.norms)}")
        self._check_together()
        if self.by_block:
            _ = self.blocks  # each is checked as it is made

    def _take_by_block(self) -> None:
        """Keep what differs between blocks as pairs; what does not is a field like any other."""
        what = self._what("by_block")
        if not isinstance(self.by_block, Mapping | tuple):
            raise InvalidShape(f"{what} must be a mapping of fields, got {shown(self.by_block)}")
        given: dict[str, Sequence[Any]] = dict(self.by_block)
        varying = []
        for name, values in sorted(given.items()):
            check_choice(f"a field of {what}", name, _OF_BLOCKS, InvalidShape)
            if not isinstance(values, list | tuple):
                raise InvalidShape(
                    f"{name} in {what} must be a list of one value for each of its {self.layers} "
                    f"layers, got {shown(values)}"
                )
            if len(values) != self.layers:
                raise InvalidShape(
                    f"{what} has {len(values)} values of {name}; give one for each of its "
                    f"{self.layers} layers"
                )
            object.__setattr__(self, name, values[-1])
            if any(value != values[0] for value in values):
                varying.append((name, tuple(values)))
        object.__setattr__(self, "by_block", tuple(varying))

    def _what(self, field: str) -> str:
        return f"{field} of shape {shown(self.name)}"

    def _check_together(self) -> None:
        if self.heads % self.kv_heads:
            divisors = [g for g in range(1, min(self.heads, 4096) + 1) if self.heads % g == 0]
            raise InvalidShape(
                f"{self._what('kv_heads')} must divide its {self.heads} heads, got "
                f"{self.kv_heads}; choose {', '.join(map(str, divisors))}"
            )
        if self.rotary_width > self.head_width:
            raise InvalidShape(
                f"{self._what('rotary_width')} must be at most its head_width, {self.head_width}, "
                f"got {self.rotary_width}"
            )
        if not self.experts and (self.experts_per_token or self.shared_expert_width):
            field = "experts_per_token" if self.experts_per_token else "shared_expert_width"
            raise InvalidShape(
                f"{self._what(field)} is {getattr(self, field)} but it has no experts; set experts"
            )
        if self.experts and not 1 <= self.experts_per_token <= self.experts:
            raise InvalidShape(
                f"{self._what('experts_per_token')} must be from 1 to its {self.experts} experts, "
                f"got {self.experts_per_token}"
            )

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


_OF_MODELS = """
    name family layers width vocabulary positions tied head_bias norm norm_bias head
    post_norm buckets scaled types first_position pixels channels patch by_block
"""
_OF_BLOCKS = [one.name for one in fields(Shape) if one.name not in _OF_MODELS.split()]
"""Fields in which blocks can differ."""
