"""A model's shape: everything its memory depends on, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
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


Varying: TypeAlias = Mapping[str, Sequence[Any]] | tuple[tuple[str, tuple[Any, ...]], ...]

_CHECKS: dict[str, Callable[..., object]] = {
    "int": check_count,
    "bool": check_flag,
    "float": check_probability,
}
"""What the fields of a type go through, but for `norms`. A size with a default may be 0."""


@dataclass(frozen=True, slots=True)
class ShapeFields:
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


_OF_MODELS = """
    name family layers width vocabulary positions tied head_bias norm norm_bias head
    post_norm buckets scaled types first_position pixels channels patch by_block
"""
_OF_BLOCKS = [one.name for one in fields(ShapeFields) if one.name not in _OF_MODELS.split()]
"""Fields in which blocks can differ."""
