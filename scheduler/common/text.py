"""How sizes, times and values read in a sentence or a table."""

from __future__ import annotations

import math
from collections.abc import Iterable

__all__ = ["did_you_mean", "format_both", "format_bytes", "format_exact", "format_time"]
__all__ += ["more_than_budget", "ordinal", "shown"]

_BINARY = (
    (2**50, "PiB"),
    (2**40, "TiB"),
    (2**30, "GiB"),
    (2**20, "MiB"),
    (2**10, "KiB"),
)
_DECIMAL = (
    (10**15, "PB", 2**50, "PiB"),
    (10**12, "TB", 2**40, "TiB"),
    (10**9, "GB", 2**30, "GiB"),
    (10**6, "MB", 2**20, "MiB"),
    (10**3, "KB", 2**10, "KiB"),
)
_TIMES = ("ns", "us", "ms", "s")


def format_bytes(n: int) -> str:
    """`n` bytes as torch prints sizes: ``3.258 GiB``, ``64.00 KiB``, ``512 B``.

    Beyond what it prints there are TiB and PiB.
    """
    for size, unit in _BINARY:
        if abs(n) >= size:
            return f"{_four_digits(n / size)} {unit}"
    return f"{n} B"


def format_both(n: int) -> str:
    """`n` bytes in decimal and binary units: ``40.00 GB (37.25 GiB)``."""
    for decimal, unit, binary, binary_unit in _DECIMAL:
        if abs(n) >= decimal:
            return f"{n / decimal:.2f} {unit} ({n / binary:.2f} {binary_unit})"
    return _counted(n)


def format_exact(n: int) -> str:
    """`n` bytes to the last of them: ``2112 bytes (2.062 KiB)``, ``512 bytes``."""
    return _counted(n) if abs(n) < 2**10 else f"{_counted(n)} ({format_bytes(n)})"


def more_than_budget(n: int, budget: int) -> str:
    """``, 20 bytes more than the budget`` where the figures of both are the same, or nothing."""
    if n <= budget or format_bytes(n) != format_bytes(budget):
        return ""
    return f", {_counted(n - budget)} more than the budget"


def _counted(n: int) -> str:
    return "1 byte" if n == 1 else f"{n} bytes"


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
    return f"{_four_digits(value)} {unit}"


def _four_digits(value: float) -> str:
    if isinstance(value, int) and abs(value) >= 100:
        return str(value)
    # Just below a power of ten the rounded figure has one digit more before the point.
    decimals = 3 if abs(value) < 9.9995 else 2 if abs(value) < 99.995 else 1
    return f"{value:.{decimals}f}"


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


def did_you_mean(word: object, choices: Iterable[str]) -> str:
    """``; did you mean 'x'?`` with the nearest of `choices`, or nothing when none is near."""
    # Only a failing call needs it, and every command pays for what is imported above.
    from difflib import get_close_matches

    by_folded = {choice.lower(): choice for choice in choices}
    near = get_close_matches(str(word).lower(), by_folded, n=1)
    return f"; did you mean {by_folded[near[0]]!r}?" if near else ""
