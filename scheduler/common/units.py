"""Sizes as people write them, turned into whole bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction

from scheduler.common.checks import plain
from scheduler.common.errors import InvalidBudget
from scheduler.common.text import counted, did_you_mean, format_bytes, shown
from solvers.problem import LIMIT

_SUPERSCRIPT = {"K": ("³", "¹⁰"), "M": ("⁶", "²⁰"), "G": ("⁹", "³⁰"), "T": ("¹²", "⁴⁰")} | {
    "P": ("¹⁵", "⁵⁰")
}
_UNITS = {"B": 1, "byte": 1, "bytes": 1}
for _power, _letter in enumerate(_SUPERSCRIPT, start=1):
    _UNITS[f"{_letter}B"] = 1000**_power
    _UNITS[f"{_letter}iB"] = 1024**_power
_FOLDED_UNITS = {unit.lower(): size for unit, size in _UNITS.items()}

_SIZE = re.compile(r"([+-]?)([0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?|\.[0-9]+)\s*([a-z]*)", re.I | re.A)
_LONGEST = 60
_EXAMPLES = "write it as '40GB', '40GiB' or a number of bytes"

_GB = 10**9
_BLOCK = 512
"""Bytes of the smallest block that a GPU's allocator hands out: no size of a model is less."""
_MOST = 10**15
"""Bytes, a million GB: no device has as much."""
_APART = 10**6
"""A number and a peak that are further apart than this were not meant in the same unit."""
_FEW = 10**4
"""A budget that is this much smaller than keeping everything has no plan that anybody would run."""


def parse_bytes(value: object, *, what: str = "the budget", allow_zero: bool = False) -> int:
    """Bytes meant by a number of them or a text; `what` is how an error calls the value.

    ``40GB`` is 40·10⁹ bytes, ``40GiB`` is 40·2³⁰, digits alone are bytes. B, KB to PB and KiB to
    PiB are known, in either case; a fraction of a byte is dropped. ``40G``, which has two readings,
    is refused.
    """
    value = plain(value)
    if isinstance(value, str):
        size = _parse_text(value, what)
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidBudget(f"{what} must be a size, got {shown(value)}; {_EXAMPLES}")
    elif isinstance(value, float) and not math.isfinite(value):
        raise InvalidBudget(f"{what} must be finite, got {value}; {_EXAMPLES}")
    elif value != int(value):
        raise InvalidBudget(f"{what} must be a whole number of bytes, got {value}; {_EXAMPLES}")
    else:
        size = Fraction(value)
    return _whole(size, what, value, allow_zero)


def resolve_budget(budget_gb: object = None, budget: object = None) -> int:
    """Bytes of the one budget that is given: a number of GB, or what `parse_bytes` reads."""
    if budget_gb is None and budget is None:
        raise InvalidBudget(
            "no budget given; pass budget_gb=40 (40·10⁹ bytes), budget='40GiB' (40·2³⁰ bytes) "
            "or budget= a number of bytes"
        )
    if budget_gb is not None and budget is not None:
        raise InvalidBudget(
            f"both budget_gb={shown(budget_gb)} and budget={shown(budget)} are given; pass one"
        )
    return parse_bytes(budget) if budget_gb is None else _of_gb("budget", budget_gb)


def resolve_reserved(reserved_gb: object = None, reserved: object = 0) -> int:
    """Bytes that come off a budget: a number of GB, or what `parse_bytes` reads; may be zero."""
    if reserved_gb is None:
        return parse_bytes(reserved, what="reserved", allow_zero=True)
    if plain(reserved) != 0:
        raise InvalidBudget(
            f"both reserved_gb={shown(reserved_gb)} and reserved={shown(reserved)} are given; "
            "pass one"
        )
    return _of_gb("reserved", reserved_gb, allow_zero=True)


def check_unit(
    name: str, gb: object, given: object, size: int, everything: Callable[[], int]
) -> None:
    """Refuse a number that must have been meant in another unit, next to the costs.

    What was `given`, or the number of GB `gb` in its place, was read as `size` bytes, and
    `everything` is the peak of keeping all activations. Refused is a number without a unit

    - of less than 512 bytes: 40, where 30 GB are needed;
    - of less than 10⁶ bytes for a budget, where it is less than a ten-thousandth of that peak:
      40000, where 30 GB are needed;
    - of more than 10¹⁵ bytes (a million GB), where it is more than a million times that peak.

    A peak below 10⁶ bytes is that of an example made by hand: next to it nothing is refused. A text
    with a unit, ``"40B"`` too, is what it says. A GPU's memory in place of a budget was not given.
    """
    has_unit = isinstance(given, str) and not given.strip().isdecimal()
    bare = gb is None and given is not None and not has_unit
    small = bare and 0 < size < (_APART if name == "budget" else _BLOCK)
    large = (bare or gb is not None) and size > _MOST
    if not small and not large:
        return
    peak = everything()
    if peak < _APART:
        return
    needs = f"{format_bytes(peak)} that keeping everything takes"
    if small and (size < _BLOCK or size * _FEW < peak):
        # A reserve or a budget of more than some hundred times the peak is nobody's.
        unit = next(unit for unit in ("GB", "MB", "KB") if size * _UNITS[unit] <= 100 * peak)
        said = f"{name} {given} is {counted(size, 'byte')}, next to nothing of the {needs}"
        raise InvalidBudget(f"{said}; did you mean '{size}{unit}'? (bytes are '{size}B')")
    if large and size > _APART * peak:
        said, typed = f"{name}={shown(given)}", 0
        if gb is not None:
            said, typed = f"{name}_gb={shown(gb)}", size // _GB
        if typed >= _GB:
            near = f"did you mean {typed / _GB:g} GB?"
        elif typed * _FEW > peak:
            near = f"did you mean {name}={typed}, which counts bytes?"
        else:
            near = "give a real size"
        raise InvalidBudget(f"{said} is more than a million times the {needs}; {near}")


def _of_gb(name: str, given: object, allow_zero: bool = False) -> int:
    """Bytes of a number of GB; `name` is that of the argument which takes text in its place."""
    what, value = f"{name}_gb", plain(given)
    if isinstance(value, str):
        raise InvalidBudget(
            f"{what} must be a number of GB, got {shown(value)}; pass text as {name}={value!r}"
        )
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
        raise InvalidBudget(f"{what} must be a number of GB, got {shown(value)}; pass {what}=40")
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidBudget(f"{what} must be finite, got {value}; pass {what}=40")
    # The shortest decimal that names the float is what was typed: 0.1 is 100 000 000 bytes.
    exact = Fraction(repr(value)) if isinstance(value, float) else Fraction(value)
    if _GB <= exact < LIMIT <= exact * _GB:
        raise InvalidBudget(
            f"{what} counts GB, got {shown(value)}; did you mean {float(exact / _GB):g} GB?"
        )
    return _whole(exact * _GB, what, value, allow_zero)


def _parse_text(text: str, what: str) -> Fraction:
    stripped = text.strip()
    match = _SIZE.fullmatch(stripped) if len(stripped) <= _LONGEST else None
    if match is None:
        raise InvalidBudget(f"{what} {shown(text)} is not a size; {_EXAMPLES}")
    sign, number, unit = match.groups()
    if unit.upper() in _SUPERSCRIPT:
        letter = unit.upper()
        decimal, binary = _SUPERSCRIPT[letter]
        raise InvalidBudget(
            f"{what} {text!r} has two readings; write {number}{letter}B ({number}·10{decimal} "
            f"bytes) or {number}{letter}iB ({number}·2{binary} bytes)"
        )
    if not unit and "." in number:
        raise InvalidBudget(
            f"{what} {text!r} is not a whole number of bytes; add a unit, as in "
            f"{number}GB or {number}GiB"
        )
    if unit and unit.lower() not in _FOLDED_UNITS:
        near = did_you_mean(unit, _UNITS)
        raise InvalidBudget(
            f"{what} {text!r} has an unknown unit {unit!r}{near or f'; {_EXAMPLES}'}"
        )
    size = Fraction(number.replace("_", "")) * _FOLDED_UNITS[unit.lower() or "b"]
    return -size if sign == "-" else size


def _whole(size: Fraction, what: str, given: object, allow_zero: bool) -> int:
    whole = math.floor(size)
    if whole < 0 or (whole == 0 and not (allow_zero and size == 0)):
        least = "zero or more" if allow_zero else "at least one byte"
        raise InvalidBudget(f"{what} must be {least}, got {shown(given)}; {_EXAMPLES}")
    if whole >= LIMIT:
        raise InvalidBudget(f"{what} {shown(given)} is beyond 2**62 bytes; give a real size")
    return whole
