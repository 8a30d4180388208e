"""Words in pictures: how wide they are, cut to fit, and placed where they cover nothing.

Widths are those of the widest font that a browser may choose, so that what is measured here fits
wherever the picture is shown.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from scheduler.common.text import format_bytes, format_time

__all__ = ["SIZE", "Box", "Labels", "Place", "Side", "along", "clean", "filled", "said_bytes"]
__all__ += ["said_time", "shortened", "text_box", "text_width"]

SIZE = 12
"""Height of letters, in points; a title's are larger."""

Side = Literal["left", "center", "right"]
"""The side of a text that stands at its place."""

_DISTANCES = (10, 18, 30, 46, 66, 90, 120, 160)
_NEAR = 5
_BESIDE = ((1.0, -0.4), (1.0, 0.5), (0.7, -1.0), (0.7, 1.2))
_DIRECTIONS = (*_BESIDE, *((-side, up) for side, up in _BESIDE), (0.0, -1.2), (0.0, 1.5))
_LEADER = 18
"""From this distance on a thin line leads from the label to what it names."""


class Box(NamedTuple):
    """A rectangle of points, which grow downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        """Whether the two share any area."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def holds(self, other: Box) -> bool:
        """Whether the other one is inside."""
        return (
            self.left <= other.left
            and other.right <= self.right
            and self.top <= other.top
            and other.bottom <= self.bottom
        )


class Place(NamedTuple):
    """Where a label stands: `x`, `y`, which side of it is at `x`, and where its leader ends."""

    x: float
    y: float
    side: Side
    leader: tuple[float, float] | None


class Labels:
    """The labels of one plot; `area` is where they may stand."""

    def __init__(self, area: Box) -> None:
        self.area = area
        self._hard: list[Box] = []
        self._soft: list[Box] = []
        self._texts: list[Box] = []

    def block(self, boxes: Iterable[Box], *, softly: bool = False) -> None:
        """Keep labels off these boxes; `softly`: as long as there is another place."""
        (self._soft if softly else self._hard).extend(boxes)

    def place(self, x: float, y: float, words: str) -> Place | None:
        """The nearest free place for the label of what is at a point; None where there is none."""
        # Rather on a line, from which letters are set off, than far away.
        for soft, distances in ((self._soft, _DISTANCES[:_NEAR]), ([], _DISTANCES)):
            taken = [*self._hard, *soft]
            for distance in distances:
                for side, up in _DIRECTIONS:
                    at_x, at_y = x + side * distance, y + up * distance + 4
                    anchor: Side = "center" if not side else "left" if side > 0 else "right"
                    box = text_box(at_x, at_y, words, anchor)
                    end = (at_x - 2 * side, at_y - 4 if side else at_y + (3 if up < 0 else -SIZE))
                    leader = along([(x, y), end], 1) if distance >= _LEADER else []
                    if (
                        self.area.holds(box)
                        and not _touch([box], taken)
                        and not _touch(leader, self._texts)
                    ):
                        self._hard += [box, *leader]
                        self._texts.append(box)
                        return Place(at_x, at_y, anchor, end if leader else None)
        return None


def along(points: Sequence[tuple[float, float]], margin: float) -> list[Box]:
    """Where a line through the points is drawn, a margin around it."""
    boxes = []
    for (x, y), (right, lower) in pairwise(points):
        wide, high = right - x, lower - y
        # A slanted line is cut into short parts, whose boxes are about as small as they are.
        parts = max(int(max(abs(wide), abs(high)) // 3), 1) if wide and high else 1
        for i in range(parts):
            left, end = sorted((x + wide * i / parts, x + wide * (i + 1) / parts))
            top, bottom = sorted((y + high * i / parts, y + high * (i + 1) / parts))
            boxes.append(Box(left - margin, top - margin, end + margin, bottom + margin))
    return boxes


def text_box(x: float, y: float, words: str, anchor: Side = "left", size: int = SIZE) -> Box:
    """Where a line of text may have ink."""
    width = text_width(words, size)
    left = x - width * {"left": 0.0, "center": 0.5, "right": 1.0}[anchor]
    return Box(left, y - size, left + width, y + size * 0.3)


def text_width(words: str, size: int = SIZE) -> float:
    """Points that `words` take at most."""
    return sum(
        size * (1.0 if unicodedata.east_asian_width(c) in "WF" else _share(c)) for c in words
    )


def shortened(words: str, width: float, size: int = SIZE) -> str:
    """`words` cut in the middle where they are wider than `width` points."""
    if text_width(words, size) <= width:
        return words
    room = width - text_width("…", size)
    left = _fitting(words, room / 2, size)
    right = _fitting(words[::-1], room - text_width(left, size), size)[::-1]
    return f"{left}…{right}"


def filled(words: str, width: float) -> list[str]:
    """`words` in lines of at most `width` points; a longer word is cut."""
    lines: list[str] = []
    for word in words.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(shortened(word, width))
    return lines


def clean(words: str) -> str:
    """`words` with � for each character that XML forbids or that would end the line."""
    return "".join(letter if _is_xml(letter) else "�" for letter in words)


def said_bytes(n: int) -> str:
    """Bytes for a tooltip, rounded and exact."""
    return f"{format_bytes(n)} ({n:,} bytes)" if n >= 1024 else f"{n} bytes"


def said_time(value: float, unit: str) -> str:
    """A time for a tooltip, rounded and as the plan has it."""
    return f"{format_time(value, unit)} ({value!r} {unit})"


def _is_xml(letter: str) -> bool:
    code = ord(letter)
    return letter >= " " and not 0xD800 <= code < 0xE000 and code not in (0xFFFE, 0xFFFF)


def _share(letter: str) -> float:
    """Width of a letter as a share of its height, on the wide side."""
    if letter in "iljtf.,:;'|!()[] ":
        return 0.38
    return 0.84 if letter in "mwMW%–—…" else 0.72 if letter.isupper() else 0.6


def _fitting(words: str, width: float, size: int) -> str:
    taken = 0.0
    for i, letter in enumerate(words):
        taken += text_width(letter, size)
        if taken > width:
            return words[:i]
    return words


def _touch(boxes: Iterable[Box], others: Sequence[Box]) -> bool:
    return any(box.overlaps(other) for box in boxes for other in others)
