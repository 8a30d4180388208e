"""How a model is trained, as far as its activations depend on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.errors import InvalidCosts, UnsupportedModel
from scheduler.memory.shapes import Shape
from scheduler.text import did_you_mean, shown
from scheduler.values import plain

__all__ = ["ATTENTIONS", "EXPERTS", "PRECISIONS", "TRAINED", "Lora", "Setting"]

PRECISIONS = ("bf16", "fp16", "fp32", "autocast")
ATTENTIONS = ("sdpa", "eager")
TRAINED = ("full", "frozen", "lora")
EXPERTS = ("grouped", "batched", "eager")
DEVICES = ("cuda", "cpu")
_SIZES = {"bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True, slots=True)
class Lora:
    """Low-rank adapters beside frozen linear layers: y = W x + B A dropout(x) · scale.

    Attributes
    ----------
    rank
        Features between A and B.
    targets
        Which linear layers have one: q, k, v (or qkv where they are one layer), o, gate, up, down,
        or "all" of those that the block has. ``q_proj`` is read as q.
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
    InvalidCosts
        A size is not a positive whole number, or a name is unknown.
    UnsupportedModel
        Nobody has derived a formula for this combination.
    """
    _choose("precision", precision, PRECISIONS)
    _choose("attention", attention, ATTENTIONS)
    _choose("train", train, TRAINED)
    _choose("device", device, DEVICES)
    _choose("experts", experts, EXPERTS)
    if (train == "lora") != (lora is not None):
        raise InvalidCosts("train='lora' and lora=Lora(...) go together; give both or neither")
    autocast = precision == "autocast"
    size = 2 if autocast else _SIZES[precision]
    if autocast and (lora is not None or attention == "eager" or shape.experts):
        raise UnsupportedModel(
            "there is no formula for autocast with LoRA, eager attention or experts; "
            "say precision='bf16', or profile the model with scheduler.pytorch"
        )
    return Setting(
        shape=shape,
        batch=positive("batch", batch),
        sequence=positive("sequence", sequence),
        stream=4 if autocast else size,
        compute=size,
        autocast=autocast,
        eager=attention == "eager",
        train=train,
        lora=lora,
        targets=frozenset() if lora is None else _targets(shape, lora),
        padding_mask=padding_mask,
        cuda=device == "cuda",
        experts=experts,
    )


def linears(shape: Shape) -> dict[str, tuple[int, int]]:
    """Input and output features of a block's linear layers, those of experts left out."""
    queries, keys = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    if fused_qkv(shape):
        found = {"qkv": (shape.width, queries + 2 * keys)}
    else:
        found = {
            "q": (shape.width, queries),
            "k": (shape.width, keys),
            "v": (shape.width, keys),
        }
    found["o"] = (queries, shape.width)
    if not shape.experts:
        if shape.gated:
            found["gate"] = (shape.width, shape.mlp_width)
        found |= {"up": (shape.width, shape.mlp_width), "down": (shape.mlp_width, shape.width)}
    return found


def fused_qkv(shape: Shape) -> bool:
    """Whether queries, keys and values come out of one linear layer."""
    return shape.family == "gpt2"


def positive(what: str, value: object) -> int:
    """Return the value, which must be a whole number above zero."""
    number = plain(value)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise InvalidCosts(f"{what} must be a whole number >= 1, got {shown(number)}")
    return number


def _choose(what: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        known = ", ".join(choices)
        raise InvalidCosts(
            f"unknown {what} {shown(value)}{did_you_mean(value, choices)} (choices: {known})"
        )


def _targets(shape: Shape, lora: Lora) -> frozenset[str]:
    positive("the rank of lora", lora.rank)
    _choose("dtype of lora", lora.dtype, tuple(_SIZES))
    if not 0 <= lora.dropout < 1:
        raise InvalidCosts(f"the dropout of lora must be in [0, 1), got {shown(lora.dropout)}")
    known = tuple(linears(shape))
    named: Iterable[str] = (lora.targets,) if isinstance(lora.targets, str) else lora.targets
    found: set[str] = set()
    for name in named:
        if name == "all":
            found |= set(known)
            continue
        short = name.removesuffix("_proj")
        _choose(f"LoRA target of {shape.name}", short, (*known, "all"))
        found.add(short)
    if not found:
        raise InvalidCosts(f"lora needs a target; choices: {', '.join(known)}, all")
    return frozenset(found)
