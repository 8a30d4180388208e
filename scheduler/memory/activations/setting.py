"""How a model is trained, as far as its activations depend on it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from scheduler.common.errors import UnsupportedModel
from scheduler.common.text import shown
from scheduler.memory.checks import check_choice, check_count, check_flag, check_probability
from scheduler.memory.errors import InvalidRecipe
from scheduler.memory.shape.shape import Shape

__all__ = [
    "ATTENTIONS",
    "EXPERTS",
    "PRECISIONS",
    "TRAINED",
    "Lora",
    "Setting",
    "linears",
    "lora_targets",
    "setting",
]

PRECISIONS = ("bf16", "fp16", "fp32", "autocast")
ATTENTIONS = ("sdpa", "eager")
TRAINED = ("full", "frozen", "lora")
EXPERTS = ("grouped", "batched", "eager")
DEVICES = ("cuda", "cpu")
# Families whose modules join several linear layers in one.
_FUSED_QKV = ("gpt2", "gpt_neox", "phi3")
_FUSED_GATE = ("phi3",)
_SIZES = {"bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True, slots=True)
class Lora:
    """Low-rank adapters beside frozen linear layers: y = W x + B A dropout(x) · scale.

    Attributes
    ----------
    rank
        Features between A and B.
    targets
        Which linear layers have one: q, k, v (qkv where they are one layer), o, gate, up (gate_up
        where they are one), down, or "all" of those that the block has, as `linears` names them.
        ``q_proj`` is read as q. Experts get none.
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
        return _SIZES[self.dtype]


@dataclass(frozen=True, slots=True)
class Setting:
    """A shape with everything else that its activations depend on; checked by `setting`.

    Attributes
    ----------
    stream
        Bytes of one element of the residual stream.
    compute
        Bytes of one element that a linear layer makes.
    targets
        Linear layers with an adapter; empty without LoRA.
    """

    shape: Shape
    batch: int
    sequence: int
    stream: int
    compute: int
    autocast: bool
    eager: bool
    train: str
    lora: Lora | None
    targets: frozenset[str]
    padding_mask: bool
    cuda: bool
    experts: str

    @property
    def tokens(self) -> int:
        """Tokens in the batch, T = B·S."""
        return self.batch * self.sequence

    @property
    def masked(self) -> bool:
        """Whether a fused attention gets a mask: causality alone needs none."""
        return self.padding_mask or 0 < self.shape.window <= self.sequence

    @property
    def trained(self) -> bool:
        """Whether the model's own weights get gradients."""
        return self.train == "full"

    @property
    def probabilities(self) -> int:
        """Elements of a block's attention probabilities, A = B·H·S²."""
        return self.batch * self.shape.heads * self.sequence**2

    def mask_size(self, size: int) -> int:
        """Bytes of a dropout mask's element for data with elements of `size` bytes.

        One on CUDA, where ``native_dropout`` saves a mask of booleans. On the CPU dropout
        multiplies by noise in the data's own dtype and saves that.
        """
        return 1 if self.cuda else size


def setting(
    shape: Shape,
    batch: object,
    sequence: object,
    *,
    precision: str = "bf16",
    attention: str = "sdpa",
    train: str = "full",
    lora: Lora | None = None,
    padding_mask: bool = False,
    device: str = "cuda",
    experts: str = "grouped",
) -> Setting:
    """Check the arguments of `block_activations` and name what follows from them.

    Raises
    ------
    InvalidRecipe
        A size is not a positive whole number, or a name is unknown.
    UnsupportedModel
        Nobody has derived a formula for this combination.
    """
    for what, name, choices in (
        ("precision", precision, PRECISIONS),
        ("attention", attention, ATTENTIONS),
        ("train", train, TRAINED),
        ("device", device, DEVICES),
        ("experts", experts, EXPERTS),
    ):
        check_choice(what, name, choices, InvalidRecipe)
    if lora is not None and not isinstance(lora, Lora):
        raise InvalidRecipe(f"lora must be Lora(rank=..., targets=...), got {shown(lora)}")
    if (train == "lora") != (lora is not None):
        raise InvalidRecipe("train='lora' and lora=Lora(...) go together; give both or neither")
    autocast = precision == "autocast"
    size = 2 if autocast else _SIZES[precision]
    if autocast and (lora is not None or attention == "eager" or shape.experts):
        raise UnsupportedModel(
            "there is no formula for autocast with LoRA, eager attention or experts; "
            "say precision='bf16', or profile the model with scheduler.pytorch"
        )
    if shape.family == "gemma2" and attention == "sdpa":
        raise UnsupportedModel(
            "Gemma 2 caps its attention scores, which sdpa does not do, and for fused attentions "
            "that do (flash, flex) there is no formula; say attention='eager'"
        )
    if autocast and device == "cpu" and shape.attention_dropout:
        raise UnsupportedModel("there is no formula for attention dropout on the CPU in autocast")
    return Setting(
        shape=shape,
        batch=check_count("batch", batch, InvalidRecipe),
        sequence=check_count("sequence", sequence, InvalidRecipe),
        stream=4 if autocast else size,
        compute=size,
        autocast=autocast,
        eager=attention == "eager",
        train=train,
        lora=lora,
        targets=frozenset() if lora is None else lora_targets(shape, lora),
        padding_mask=check_flag("padding_mask", padding_mask, InvalidRecipe),
        cuda=device == "cuda",
        experts=experts,
    )


def linears(shape: Shape) -> dict[str, tuple[int, int]]:
    """Input and output features of a block's linear layers, those of experts left out."""
    d, queries, keys = shape.width, shape.query_width, shape.kv_width
    if shape.family in _FUSED_QKV:
        found = {"qkv": (d, queries + 2 * keys)}
    else:
        found = {"q": (d, queries), "k": (d, keys), "v": (d, keys)}
    found["o"] = (queries, d)
    if shape.experts:
        return found
    f = shape.mlp_width
    if shape.family in _FUSED_GATE:
        found["gate_up"] = (d, 2 * f)
    elif shape.gated:
        found |= {"gate": (d, f), "up": (d, f)}
    else:
        found["up"] = (d, f)
    return found | {"down": (f, d)}


def lora_targets(shape: Shape, lora: Lora) -> frozenset[str]:
    """Linear layers of a block that get an adapter, as `linears` names them; checked."""
    check_count("the rank of lora", lora.rank, InvalidRecipe)
    check_choice("the dtype of lora", lora.dtype, _SIZES, InvalidRecipe)
    check_probability("the dropout of lora", lora.dropout, InvalidRecipe)
    known = tuple(linears(shape))
    if not isinstance(lora.targets, Collection):
        raise InvalidRecipe(
            f"the targets of lora must be names, as in Lora(rank=16, targets=('q', 'v')), got "
            f"{shown(lora.targets)}"
        )
    named: Iterable[str] = (lora.targets,) if isinstance(lora.targets, str) else lora.targets
    found: set[str] = set()
    for name in named:
        if name == "all":
            found |= set(known)
            continue
        short = name.removesuffix("_proj") if isinstance(name, str) else name
        what = f"a LoRA target of {shape.name}"
        found.add(check_choice(what, short, (*known, "all"), InvalidRecipe))
    if not found:
        raise InvalidRecipe(f"lora needs a target; choose from {', '.join(known)}, all")
    return frozenset(found)
