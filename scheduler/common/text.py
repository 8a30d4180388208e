"""How sizes, times and values read in a sentence or a table."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

_UNITS = tuple((1000**n, 1024**n, "KMGTP"[n - 1]) for n in (5, 4, 3, 2, 1))
"""Decimal and binary, from the largest down."""

_TIMES = ("ns", "us", "ms", "s")


def format_bytes(n: int, *, up: bool = False) -> str:
    """`n` bytes as torch prints sizes: ``3.258 GiB``, ``64.00 KiB``, ``512 B``.

    Beyond what it prints there are TiB and PiB. With `up` no size that is printed is less.
    """
    for _, size, letter in _UNITS:
        if abs(n) >= size:
            return f"{_of_unit(n, size, up)} {letter}iB"
    return f"{n} B"


def format_both(n: int, *, up: bool = False) -> str:
    """`n` bytes in decimal and binary units: ``40.00 GB (37.25 GiB)``, ``1.000 GB (953.7 MiB)``.

    `up` as of `format_bytes`.
    """
    for decimal, _, letter in _UNITS:
        if abs(n) >= decimal:
            return f"{_of_unit(n, decimal, up)} {letter}B ({format_bytes(n, up=up)})"
    return counted(n, "byte")


def format_smallest(n: int, budget: int | None = None) -> str:
    """The smallest budget that does, so that what is printed does too.

    Where it reads like the `budget` that was asked, also by how much it is more.
    """
    text = format_both(n, up=True)
    if budget is None or n <= budget or text != format_both(budget, up=True):
        return text
    return f"{text}, {counted(n - budget, 'byte')} more than the budget"


def _of_unit(n: int, unit: int, up: bool) -> str:
    text = figures(n / unit)
    if not up:
        return text
    digits = 10 ** len(text.partition(".")[2])
    return figures(-(-n * digits // unit) / digits)


def format_time(value: float, unit: str) -> str:
    """`value` of `unit` in the unit it reads best in: 1442.8 ms is ``1.443 s``.

    A unit that is not ``s``, ``ms``, ``us`` or ``ns`` is kept.
    """
    if unit in _TIMES:
        step = _TIMES.index(unit)
        while abs(value) >= 1000 and step < len(_TIMES) - 1:
            value, step = value / 1000, step + 1
        while 0 < abs(value) < 1 and step > 0:
            value, step = value * 1000, step - 1
        unit = _TIMES[step]
    if 1000 <= abs(value) < math.inf and value == int(value):
        value = int(value)
    return f"{value if isinstance(value, int) and abs(value) >= 100 else figures(value)} {unit}"


def figures(value: float, decimals: int = 3) -> str:
    """`value` with at most so many `decimals`, and fewer where it would have more than 4 digits."""
    size = abs(value)
    # Just below a power of ten the rounded figure has one digit more before the point.
    room = 3 if size < 9.9995 else 2 if size < 99.995 else 1 if size < 999.95 else 0
    return f"{value:.{min(room, decimals)}f}"


def counted(number: int, what: str) -> str:
    """``1 layer``, ``12 layers``."""
    return f"1 {what}" if number == 1 else f"{number} {what}s"


def ordinal(position: int) -> str:
    """The 1-based `position` as a word: ``1st``, ``2nd``, ``11th``."""
    last = position % 100
    ending = "th" if 10 < last < 20 else {1: "st", 2: "nd", 3: "rd"}.get(position % 10, "th")
    return f"{position}{ending}"


def shown(value: object, longest: int = 60) -> str:
    """The repr of `value` on one line, cut where it would swamp a sentence."""
    text = " ".join(repr(value).splitlines())
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def first_sentence(error: Exception) -> str:
    """The first sentence of what an error of somebody else's says, on one line, with its type."""
    text = " ".join(str(error).split())
    said = re.split(r"[.!?] +(?=[A-Z])", text, maxsplit=1)[0].rstrip(".")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def did_you_mean(word: object, choices: Iterable[str]) -> str:
    """``; did you mean 'x'?`` with the nearest of `choices`, or nothing when none is near."""
    # Only a failing call needs it, and every command pays for what is imported above.
    from difflib import get_close_matches

    by_folded = {choice.lower(): choice for choice in choices}
    near = get_close_matches(str(word).lower(), by_folded, n=1)
    return f"; did you mean {by_folded[near[0]]!r}?" if near else ""
