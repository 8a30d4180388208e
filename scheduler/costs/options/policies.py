"""What people choose by hand to keep inside a block, as sets of its operations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from scheduler.costs.options.inside import Inside, Operation

_MATMULS = {"mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "_scaled_mm", "linear"}
_ATTENTION = re.compile(r"scaled_dot_product|flash_attention|efficient_attention|flex_attention")
_CONVOLUTIONS = {"convolution", "_convolution"}


def _packet(operation: Operation) -> str:
    return operation.name.split(".")[1] if "." in operation.name else operation.name


def _is_attention(operation: Operation) -> bool:
    return _ATTENTION.search(operation.name) is not None


def _is_heavy(operation: Operation) -> bool:
    return _packet(operation) in _MATMULS | _CONVOLUTIONS or _is_attention(operation)


def _core(inside: Inside) -> range:
    """Attention itself: one fused operation, or from the scores' product to that with the values.

    Projections multiply by a weight, so a product of two matrices made here belongs to attention.
    """
    fused = [i for i, o in enumerate(inside.forward) if _is_attention(o)]
    if fused:
        return range(fused[0], fused[-1] + 1)
    products = [
        i
        for i, o in enumerate(inside.forward)
        if _packet(o) in {"bmm", "baddbmm"} and len(set(o.reads) - inside.given) >= 2
    ]
    return range(products[0], products[-1] + 1) if products else range(0)


def _save_matmuls(inside: Inside) -> Iterator[int]:
    """Keep the results of all products, convolutions and fused attention."""
    return (i for i, o in enumerate(inside.forward) if _is_heavy(o))


def _every_second_matmul(inside: Inside) -> Iterator[int]:
    """As before, but only the first, third, … product with a weight (torchtitan's "op" mode)."""
    count = 0
    for i, operation in enumerate(inside.forward):
        if _packet(operation) in {"mm", "addmm"}:
            count += 1
            if count % 2 == 0:
                continue
        if _is_heavy(operation):
            yield i


def _save_attention(inside: Inside) -> Iterator[int]:
    """Keep what attention makes: its last operation's result."""
    core = _core(inside)
    if core:
        yield core[-1]


def _megatron_selective(inside: Inside) -> Iterator[int]:
    """Make attention itself again, and keep what autograd keeps of all else.

    What attention reads is kept too, or it could not be made again without the products before it
    (Korthikanti et al. 2022, arXiv:2205.05198, section 5).
    """
    core = _core(inside)
    read = {s for i in core for s in inside.forward[i].reads}
    wanted = (inside.saved | read) - inside.given
    for i, operation in enumerate(inside.forward):
        if core and i not in core and (_is_heavy(operation) or wanted & set(operation.makes)):
            yield i


POLICIES: dict[str, Callable[[Inside], Iterator[int]]] = {
    "megatron-selective": _megatron_selective,
    "save-matmuls": _save_matmuls,
    "every-second-matmul": _every_second_matmul,
    "save-attention": _save_attention,
}
"""By name: positions in `Inside.forward` whose results the policy keeps."""
