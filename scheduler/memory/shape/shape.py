"""A model's shape: everything its memory depends on, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from importlib import resources
from typing import Any

from scheduler.common.files import read_text
from scheduler.common.jsontext import parse_json
from scheduler.common.text import did_you_mean, shown
from scheduler.memory.errors import (
    InvalidShape,
    check_choice,
    check_count,
    check_flag,
    check_probability,
)
from scheduler.memory.shape.families import shape_fields
from scheduler.memory.shape.locate import as_record, config_path

ACTIVATIONS = ("silu", "gelu", "gelu_new", "relu")
NORMS = ("rms", "layer")

_STACKS = {"gpt2": "transformer.h", "gpt_neox": "gpt_neox.layers"}
_MOST_LAYERS = 2_000
"""Far beyond any model; the solver of chains has room for so many blocks."""

_CHECKS: dict[str, Callable[..., object]] = {
    "int": check_count,
    "bool": check_flag,
    "float": check_probability,
}
"""What the fields of a type go through, but for `norms`. A size with a default may be 0."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder-only transformer, by its sizes.

    Attributes
    ----------
    name, family
        What it is called; "llama" (RMS norm, gated MLP, rotary) or "gpt2" (layer norm, learned
        positions), or another family that `load_shape` knows.
    layers, width, heads, kv_heads, head_width
        L, d, H, G, a. Queries have H·a features, keys and values G·a.
    mlp_width
        f, of a dense MLP or of one expert.
    vocabulary, positions
        V, and the number of learned positions (0: none).
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
    norms
        Norms in a block (2, or 4 where the outputs of attention and MLP are normed too).
    tied
        Head and embedding share their weight.
    experts, experts_per_token, shared_expert_width
        Of a mixture of experts; 0 experts: a dense MLP. A shared expert of this width runs on
        every token behind a gate of its own (d weights), as in Qwen2-MoE; 0: none.
    shares_divided
        The shares of a token's experts are divided by their sum.
    rotary_width
        Features of a head that rotary positions turn (0: all). Fewer in GPT-NeoX and some Phi-3.
    window
        Tokens that attention looks back, itself included (0: all), in every block. A sequence at
        least this long needs a mask of its own.
    parallel
        Attention and MLP read the same residual (GPT-NeoX).
    dropout
        Probability of residual and embedding dropout in training (0: none).
    attention_dropout
        Probability of dropout on attention probabilities.

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
    gated: bool = True
    activation: str = "silu"
    norm: str = "rms"
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False
    head_bias: bool = False
    qk_norm: bool = False
    norms: int = 2
    tied: bool = False
    experts: int = 0
    experts_per_token: int = 0
    shared_expert_width: int = 0
    shares_divided: bool = True
    rotary_width: int = 0
    window: int = 0
    parallel: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0

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
        if self.layers > _MOST_LAYERS:
            raise InvalidShape(
                f"{self._what('layers')} must be at most {_MOST_LAYERS:,}, got {self.layers}; no "
                "model has so many, correct it"
            )
        check_choice(self._what("activation"), self.activation, ACTIVATIONS, InvalidShape)
        check_choice(self._what("norm"), self.norm, NORMS, InvalidShape)
        if self.norms not in (2, 4):
            raise InvalidShape(f"{self._what('norms')} must be 2 or 4, got {shown(self.norms)}")
        self._check_together()

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
    def stack(self) -> str:
        """Where transformers' model of this family has its blocks: ``model.layers``."""
        return _STACKS.get(self.family, "model.layers")

    @property
    def query_width(self) -> int:
        """H·a, the features of all queries of a token."""
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        """G·a, the features of all keys (or all values) of a token."""
        return self.kv_heads * self.head_width

    @property
    def turned_width(self) -> int:
        """Features of a head that rotary positions turn, and the width of their tables."""
        return self.rotary_width or self.head_width

    @property
    def attention_parameters(self) -> int:
        """Of one block: d·(Ha + 2Ga) to queries, keys and values, Ha·d back, biases, QK norms."""
        d, dq, dk = self.width, self.query_width, self.kv_width
        biases = self.qkv_bias * (dq + 2 * dk) + self.output_bias * d
        return 2 * d * dq + 2 * d * dk + biases + self.qk_norm * 2 * self.head_width

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
        beside = self._mlp(shared) + self.width if shared else 0
        return self.width * self.experts + self.experts * self.expert_parameters + beside

    @property
    def norm_parameters(self) -> int:
        """Of one norm: d weights, and d biases where norms have them."""
        return self.width * (1 + self.norm_bias)

    @property
    def block_parameters(self) -> int:
        """Of one block: attention, MLP and norms."""
        return self.attention_parameters + self.mlp_parameters + self.norms * self.norm_parameters

    @property
    def embedding_parameters(self) -> int:
        """V·d of tokens and, where positions are learned, positions·d."""
        return (self.vocabulary + self.positions) * self.width

    @property
    def head_parameters(self) -> int:
        """The last norm and the head: V·d unless the embedding's weight serves, and its bias."""
        own = 0 if self.tied else self.vocabulary * self.width
        return self.norm_parameters + own + self.head_bias * self.vocabulary

    @property
    def parameters(self) -> int:
        """Of the whole model, a tied weight counted once."""
        blocks = self.layers * self.block_parameters
        return self.embedding_parameters + blocks + self.head_parameters

    @property
    def routed_parameters(self) -> int:
        """Of all experts of all blocks but shared ones: what expert parallelism divides."""
        return self.layers * self.experts * self.expert_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token meets: of each block's experts, experts_per_token."""
        idle = self.experts - self.experts_per_token
        return self.parameters - self.layers * idle * self.expert_parameters

    @property
    def factored_statistics(self) -> int:
        """Fp32 numbers that Adafactor keeps as second moments.

        A matrix of r rows and c columns keeps r + c (Shazeer & Stern, arXiv:1804.04235); a vector
        is not factored. Where transformers packs matrices into one tensor (Phi-3, GPT-2, experts)
        some rows or columns are shared: this count is of separate matrices, an upper bound there.
        """
        d, dq, dk, f = self.width, self.query_width, self.kv_width, self.mlp_width
        inner = 2 if self.gated else 1
        attention = 2 * (d + dq) + 2 * (d + dk)
        vectors = self.qkv_bias * (dq + 2 * dk) + self.output_bias * d
        vectors += self.qk_norm * 2 * self.head_width + self.norms * self.norm_parameters

        def mlp(width: int) -> int:
            return (inner + 1) * (d + width) + self.mlp_bias * (inner * width + d)

        mlps = mlp(f)
        if self.experts:
            shared = mlp(self.shared_expert_width) + d + 1 if self.shared_expert_width else 0
            mlps = self.experts * mlp(f) + self.experts + d + shared
        embeddings = self.vocabulary + d + (self.positions + d if self.positions else 0)
        head = self.norm_parameters + self.head_bias * self.vocabulary
        head += 0 if self.tied else self.vocabulary + d
        return self.layers * (attention + vectors + mlps) + embeddings + head


def shape_names() -> list[str]:
    """Names of the shapes that come with the package."""
    files = (resources.files("scheduler.memory.shape") / "configs").iterdir()
    return sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json"))


def load_shape(source: Shape | Mapping[str, object] | str | os.PathLike[str] | Any) -> Shape:
    """The shape of a model.

    Parameters
    ----------
    source
        A name that `shape_names` lists; a path to the ``config.json`` of a transformers model, or
        to its directory; a model's name on the Hub, such as ``"Qwen/Qwen3-8B"``, of which
        transformers has cached the config (nothing is downloaded); a config of transformers, or the
        dictionary in such a file; or a shape, returned as it is. Fields of a config that no size
        depends on are ignored: real files carry dozens of them.

    Raises
    ------
    InvalidShape
        No shape has this name; or the config lacks a field, has a field or a model_type that is not
        known, has quantised weights, or describes more than one decoder.
    """
    if isinstance(source, Shape):
        return source
    if hasattr(source, "named_modules"):
        raise InvalidShape(
            f"got a model ({type(source).__name__}) in the place of its shape: give model.config "
            "where it is of transformers; scheduler.pytorch.profile(model, inputs) measures any"
        )
    source = as_record(source)
    if isinstance(source, Mapping):
        return Shape(**shape_fields(source, _called(source, "config"), "the config"))
    if not isinstance(source, str | os.PathLike):
        raise InvalidShape(
            f"a shape is loaded from a name, a path or a config, got {shown(source)}"
        )
    name = os.fspath(source)
    names = shape_names()
    if isinstance(source, str) and name.lower() in names:
        file = resources.files("scheduler.memory.shape") / "configs" / f"{name.lower()}.json"
        config = parse_json(file.read_text(encoding="utf-8"), f"shape {name!r}", InvalidShape)
        return Shape(**shape_fields(config, name.lower(), f"shape {name!r}"))
    is_path = not isinstance(source, str) or name.endswith(".json") or os.path.exists(name)
    path = config_path(source)
    if not is_path and path == name and os.sep not in name:
        near = did_you_mean(name, names)
        raise InvalidShape(
            f"there is no shape {shown(name)}{near} (the shapes are {', '.join(names)}; a path to "
            "a model's config.json does as well)"
        )
    config = parse_json(read_text(path, "config", InvalidShape), shown(path, 200), InvalidShape)
    return Shape(**shape_fields(config, _named(name), shown(path, 200)))


def _named(source: str) -> str:
    """What a model is called by where its config is from: its name, its file or its folder."""
    if not os.path.exists(source):
        return source
    path = os.path.abspath(source)
    stem, ending = os.path.splitext(os.path.basename(path))
    if ending != ".json":
        return os.path.basename(path)
    return os.path.basename(os.path.dirname(path)) if stem == "config" else stem


def _called(config: Mapping[str, object], otherwise: str) -> str:
    """What a config calls its model."""
    known = (config.get(field) for field in ("_name_or_path", "model_type"))
    return next((name for name in known if isinstance(name, str) and name), otherwise)
