"""Labels beside the things they name, where they cover neither each other nor what is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scheduler.report.svg.parts import SIZE, line, text, text_width

__all__ = ["Box", "Labels", "Mark", "text_box", "together"]

_DISTANCES = (10, 18, 30, 46, 66, 90, 120, 160)
_DIRECTIONS = (
    (1.0, -0.4),
    (1.0, 0.5),
    (0.7, -1.0),
    (0.7, 1.2),
    (-1.0, -0.4),
    (-1.0, 0.5),
    (-0.7, -1.0),
    (-0.7, 1.2),
    (0.0, -1.2),
    (0.0, 1.5),
)
_LEADER = 18
"""From this distance on a thin line leads from the label to what it names."""


_NAMES = 2
"""Names said beside the first one of marks that share a label."""


class Mark(NamedTuple):
    """A plan: what it is called, and where it stands."""

    name: str
    bytes: int
    time: float


class Box(NamedTuple):
    """A rectangle of pixels."""

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


def text_box(x: float, y: float, words: str, anchor: str = "start", size: int = SIZE) -> Box:
    """Where a line of text may have ink."""
    width = text_width(words, size)
    left = x - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
    return Box(left, y - size, left + width, y + size * 0.3)


class Labels:
    """The labels of one plot.

    Parameters
    ----------
    area
        Where they may stand.
    """

    def __init__(self, area: Box) -> None:
        self.area = area
        self._hard: list[Box] = []
        self._soft: list[Box] = []
        self._texts: list[Box] = []

    def block(self, boxes: Iterable[Box], *, softly: bool = False) -> None:
        """Keep labels off these boxes; `softly`: as long as there is another place."""
        (self._soft if softly else self._hard).extend(boxes)

    def place(self, x: float, y: float, words: str, colour: str = "ink") -> list[str]:
        """The label of what is at a pixel; nothing where there is no room for it at all."""
        for soft in (self._soft, []):
            for distance in _DISTANCES:
                for across, up in _DIRECTIONS:
                    at_x, at_y = x + across * distance, y + up * distance + 4
                    anchor = "middle" if not across else "start" if across > 0 else "end"
                    box = text_box(at_x, at_y, words, anchor)
                    end = (
                        at_x - 2 * _sign(across),
                        at_y - 4 if across else at_y + (3 if up < 0 else -SIZE),
                    )
                    leader = [] if distance < _LEADER else _along((x, y), end)
                    if not self._is_free(box, soft) or _touch(leader, self._texts):
                        continue
                    self._hard += [box, *leader]
                    self._texts.append(box)
                    label = text(at_x, at_y, words, anchor=anchor, colour=colour, halo=True)
                    return [line(x, y, *end, "muted"), label] if leader else [label]
        return []

    def _is_free(self, box: Box, soft: list[Box]) -> bool:
        return self.area.holds(box) and not _touch([box], self._hard) and not _touch([box], soft)


def together(marks: Sequence[Mark], plan: Mark | None, room: float) -> str:
    """The label of marks that stand together, in so many pixels; "=" where they are one point."""
    first = marks[0] if plan is None else plan
    words = first.name if plan is None else "this plan"
    others = [
        mark
        for mark in marks
        if mark is not first and (plan is None or mark.name != plan.name or mark[1:] != plan[1:])
    ]
    for names in range(min(_NAMES, len(others)), -1, -1):
        said = words + "".join(
            f" = {mark.name}" if mark[1:] == first[1:] else f", {mark.name}"
            for mark in others[:names]
        )
        said += f" and {len(others) - names} more" if len(others) > names else ""
        if text_width(said) <= room:
            break
    return said


def _touch(boxes: Iterable[Box], others: Iterable[Box]) -> bool:
    return any(box.overlaps(other) for box in boxes for other in others)


def _along(start: tuple[float, float], end: tuple[float, float]) -> list[Box]:
    """A straight line as boxes of a few pixels."""
    (x, y), (right, lower) = start, end
    steps = max(int(max(abs(right - x), abs(lower - y)) // 3), 1)
    points = [(x + (right - x) * i / steps, y + (lower - y) * i / steps) for i in range(steps + 1)]
    return [Box(x - 1, y - 1, x + 1, y + 1) for x, y in points]


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
