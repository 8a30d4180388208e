"""What optimizers hold of each tensor that they train, under the names that people give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from math import prod
from types import MappingProxyType

from scheduler.common.text import did_you_mean, shown
from scheduler.memory.errors import Argument, InvalidRecipe, check_count
from scheduler.memory.state.sizes import Sizes

Dims = tuple[int, ...]
Held = Callable[[Dims, Sizes, int], int]
"""Bytes on the device, of a tensor of these dimensions; the number is the optimizer's option."""

_LEAST = 4096
"""Elements from which bitsandbytes and torchao keep a tensor's moments in 8 bits or 4."""
_PAGED = 100_000
"""Elements from which the paged optimizers of bitsandbytes keep them in memory that pages."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """What an optimizer holds from step to step, its gradients and masters apart.

    Attributes
    ----------
    held
        Of one tensor, in bytes. Vectors are not factored, projected or quantised; Muon, GaLore and
        APOLLO take matrices alone, not the one tensor of all experts.
    plain
        Which of "embedding" and "head" are to it as vectors are: Muon, GaLore and APOLLO are given
        the others alone, and transformers' Trainer keeps embeddings out of 8 bits.
    option, value
        What may be said with its name, as in "galore,rank=64", and what is said.
    """

    held: Held
    plain: tuple[str, ...] = ()
    option: str = ""
    value: int = 0

    def bytes_of(self, dims: Dims, sizes: Sizes) -> int:
        """What it holds of one tensor."""
        return self.held(dims, sizes, self.value)

    def of_plain(self, sizes: Sizes) -> int:
        """What it holds of each parameter of a vector, or of what is as one to it."""
        return self.bytes_of((1,), sizes)

    def rate(self, tensors: Mapping[Dims, int], sizes: Sizes) -> Fraction:
        """Bytes for each parameter of these tensors, of which there are so many each."""
        count = sum(number * prod(dims) for dims, number in tensors.items())
        total = sum(number * self.bytes_of(dims, sizes) for dims, number in tensors.items())
        return Fraction(total, count) if count else Fraction(0)


def optimizer_of(spec: str) -> Optimizer:
    """The optimizer that a checked name means: "adamw", "galore,rank=64"."""
    name, _, said = spec.partition(",")
    known = OPTIMIZERS[name]
    return replace(known, value=int(said.partition("=")[2])) if said else known


def check_optimizer(argument: Argument, value: object) -> str:
    """The name as this package spells it, with what is said beside it."""
    if not isinstance(value, str):
        raise InvalidRecipe(argument, f" must be a name such as 'adamw', got {shown(value)}")
    text, _, said = value.partition(",")
    name = known_name(text)
    if name is None:
        near = did_you_mean(text, [*OPTIMIZERS, *_ALIASES])
        listed = ", ".join(map(repr, OPTIMIZERS))
        raise InvalidRecipe(argument, f" must be one of {listed}, got {shown(text)}{near}")
    if not said:
        return name
    option = OPTIMIZERS[name].option
    key, _, number = said.partition("=")
    if not option or key.strip() != option:
        takes = f"takes {option}= alone" if option else "takes nothing beside its name"
        raise InvalidRecipe(
            argument, f" {name!r} {takes}, got {shown(said)}; of nothing else its bytes depend"
        )
    whole = int(number) if number.strip().isdecimal() else number
    count = check_count(f"{option} of the optimizer {name!r}", whole, InvalidRecipe)
    return f"{name},{option}={count}"


def known_name(text: str) -> str | None:
    """The optimizer that is called so: by this package, by transformers' ``optim``, or its class.

    >>> known_name("paged_adamw_8bit"), known_name("PagedAdamW8bit"), known_name("adamax")
    ('paged-adam-8bit', 'paged-adam-8bit', None)
    """
    return _spellings().get(_plain(text))


def _plain(text: str) -> str:
    return "".join(filter(str.isalnum, text.lower()))


@cache
def _spellings() -> Mapping[str, str]:
    known = {_plain(name): name for name in OPTIMIZERS}
    return MappingProxyType({_plain(alias): name for alias, name in _ALIASES.items()} | known)


def _full(moments: int) -> Optimizer:
    def held(dims: Dims, sizes: Sizes, _: int) -> int:
        return moments * sizes.moment * prod(dims)

    return Optimizer(held)


def _low(moments: int, bits: int, block: int, *, paged: bool = False) -> Optimizer:
    """Moments of so few bits, and for each block of them an fp32 scale; those of 32 have none."""

    def held(dims: Dims, _sizes: Sizes, _: int) -> int:
        n = prod(dims)
        # What is not quantised is in fp32, also beside bf16 weights.
        small = bits == 32 or n < _LEAST
        scales = 0 if small else 4 * -(-n // block)
        elements = 0 if paged and n >= _PAGED else 4 * n if small else -(-n * bits // 8)
        return moments * (elements + scales)

    # A table of bitsandbytes that is large is paged, in however many bits.
    return Optimizer(held, () if paged or bits == 32 else ("embedding",))


def _muon(dims: Dims, sizes: Sizes, _: int) -> int:
    return (1 if len(dims) == 2 else 2) * sizes.moment * prod(dims)


def _factored(dims: Dims) -> int:
    """Numbers that stand for a tensor's second moments: rows and columns of its matrices."""
    if len(dims) < 2:
        return prod(dims)
    *many, rows, columns = dims
    return prod(many) * (rows + columns)


def _adafactor(dims: Dims, _sizes: Sizes, momentum: int) -> int:
    # As transformers has it, it works in fp32 whatever the weights are.
    return 4 * (_factored(dims) + momentum * prod(dims))


def _projected(moments: Held, size: int = 0, *, svd: bool = True) -> Held:
    """Moments of gradients projected to a rank of their shorter side, and the projection.

    `size` is that of an element of the projection, else as that of moments.
    """

    def held(dims: Dims, sizes: Sizes, rank: int) -> int:
        if len(dims) != 2:
            return moments(dims, sizes, 0)
        short, long = sorted(dims)
        rank, each = min(rank, short), size or sizes.moment
        # Of fp32 gradients the projection is a view, behind which the whole singular matrix stays.
        side = short if svd and each == 4 else rank
        return moments((rank, long), sizes, 0) + each * short * side

    return held


def _soap(dims: Dims, sizes: Sizes, longest: int) -> int:
    sides = [side for side in dims if side <= longest] if len(dims) > 1 else []
    return 2 * sizes.moment * prod(dims) + 2 * 4 * sum(side * side for side in sides)


def _shampoo(dims: Dims, sizes: Sizes, longest: int) -> int:
    if prod(dims) <= longest:
        dims = (prod(dims),)
    total = 2 * sizes.moment * prod(dims)
    for place, side in enumerate(dims):
        # A block of a tensor has a matrix for each of its sides, and that matrix's inverse root.
        others = prod(-(-other // longest) for i, other in enumerate(dims) if i != place)
        whole, left = divmod(side, longest)
        total += 2 * 4 * others * (whole * longest**2 + left**2)
    return total


_EIGHT = _low(2, 8, 256)
_ENDS = ("embedding", "head")

OPTIMIZERS: Mapping[str, Optimizer] = {
    "adam": _full(2),
    "adamw": _full(2),
    "sgd": _full(0),
    "sgd-momentum": _full(1),
    "adagrad": _full(1),
    "rmsprop": _full(1),
    "lion": _full(1),
    "muon": Optimizer(_muon, _ENDS),
    "adafactor": Optimizer(_adafactor),
    "adafactor-momentum": Optimizer(_adafactor, value=1),
    "adam-8bit": _EIGHT,
    "adam-4bit": replace(_low(2, 4, 128), plain=()),
    "lion-8bit": _low(1, 8, 256),
    "lion-32bit": _low(1, 32, 1),
    "ademamix": _low(3, 32, 1),
    "ademamix-8bit": _low(3, 8, 256),
    "paged-adam": _low(2, 32, 1, paged=True),
    "paged-adam-8bit": _low(2, 8, 256, paged=True),
    "paged-lion": _low(1, 32, 1, paged=True),
    "paged-lion-8bit": _low(1, 8, 256, paged=True),
    "paged-ademamix": _low(3, 32, 1, paged=True),
    "paged-ademamix-8bit": _low(3, 8, 256, paged=True),
    "galore": Optimizer(_projected(_full(2).held), _ENDS, "rank", 128),
    "galore-8bit": Optimizer(_projected(_EIGHT.held), _ENDS, "rank", 128),
    "galore-adafactor": Optimizer(_projected(_adafactor, 4), _ENDS, "rank", 128),
    "apollo": Optimizer(_projected(_full(2).held, svd=False), _ENDS, "rank", 128),
    "apollo-mini": Optimizer(_projected(_full(2).held, svd=False), _ENDS, "rank", 1),
    "soap": Optimizer(_soap, (), "max_precond_dim", 10_000),
    "shampoo": Optimizer(_shampoo, (), "max_preconditioner_dim", 1024),
}
"""Names, and what each holds of a tensor of n elements, or of a matrix of r × c, r ≤ c.

What a step of theirs needs meanwhile, such as the decomposition of a matrix, is not counted.

- Adam's pair is two moments of the size of a master, or of a weight where there is none; SGD has
  none of them, with momentum, Adagrad, RMSprop, Lion (arXiv:2302.06675) and Muon one.
- adafactor (arXiv:1804.04235): 4·(r + c), of a vector 4·n; with β1 ("-momentum") 4·n more.
- In 8 bits (bitsandbytes; Dettmers et al., arXiv:2110.02861), of tensors of 4096 elements or more:
  n + 4·⌈n/256⌉ a moment; others in fp32. Embeddings are in fp32, as transformers' Trainer has
  bitsandbytes keep them. AdEMAMix (arXiv:2409.03137) has three moments. In 4 bits (torchao's
  ``AdamW4bit``, arXiv:2309.01507): n/2 + 4·⌈n/128⌉.
- paged-…: moments of tensors of 100,000 elements or more are in CUDA's unified memory, which the
  driver moves to the host where the device is full and torch does not count: their scales alone
  count. Free memory is used by them all the same.
- galore (arXiv:2403.03507, table 1; galore_torch): moments of the projected gradient, 2·rank·c, and
  the projection, r·rank. Of fp32 gradients galore_torch keeps a view of the whole singular matrix,
  r·r. 128 is transformers' rank; how often the projection is renewed changes nothing.
- apollo (arXiv:2412.05270; apollo_torch): the same with a random projection, which the paper draws
  again from its seed, and apollo_torch keeps. apollo-mini is that of rank 1.
- soap (arXiv:2409.11321; the authors' ``soap.py``): Adam's pair, and of each side of at most
  max_precond_dim its covariance and its eigenvectors in fp32, 8·r² + 8·c².
- shampoo (arXiv:1802.09568; Meta's Distributed Shampoo, arXiv:2309.06497): tensors are cut into
  blocks of at most max_preconditioner_dim b, a matrix and its inverse root for each side of each in
  fp32, so 4 elements a parameter where b divides the sides; the filtered gradient; and one moment
  of Adam's grafting, which its examples use.
"""

_ALIASES = {
    **dict.fromkeys(("adamw-torch", "adamw-torch-fused", "adamw-torch-xla"), "adamw"),
    **dict.fromkeys(("adamw-torch-npu-fused", "adamw-hf", "adamw-apex-fused"), "adamw"),
    **dict.fromkeys(("schedule-free-adamw", "schedule-free-radam"), "adamw"),
    "schedule-free-sgd": "sgd-momentum",
    **dict.fromkeys(("adamw-8bit", "adamw-bnb-8bit", "adamw-torch-8bit"), "adam-8bit"),
    **dict.fromkeys(("adamw-torch-4bit", "adamw-4bit"), "adam-4bit"),
    **dict.fromkeys(("paged-adamw", "paged-adamw-32bit"), "paged-adam"),
    "paged-adamw-8bit": "paged-adam-8bit",
    "paged-lion-32bit": "paged-lion",
    "paged-ademamix-32bit": "paged-ademamix",
    **dict.fromkeys(("galore-adamw", "galore-adamw-layerwise"), "galore"),
    **dict.fromkeys(("galore-adamw-8bit", "galore-adamw-8bit-layerwise"), "galore-8bit"),
    "galore-adafactor-layerwise": "galore-adafactor",
    **dict.fromkeys(("apollo-adamw", "apollo-adamw-layerwise"), "apollo"),
    "distributed-shampoo": "shampoo",
}
"""What others call them: transformers' ``optim``, and classes. Layer-wise ones hold the same, their
gradients less, which is not counted."""
