"""Reading numbers back out of the pictures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from xml.etree import ElementTree

from scheduler.report.svg.labels import Box, text_box

SVG = "{http://www.w3.org/2000/svg}"
Element = ElementTree.Element


def parsed(svg: str) -> Element:
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    return root


def of_class(root: Element, name: str) -> list[Element]:
    return [each for each in root.iter() if name in (each.get("class") or "").split()]


def scale(root: Element, which: str) -> Callable[[float], float]:
    """From a value to its pixel, by the first and the last tick of an axis."""
    ticks = of_class(root, f"tick-{which}")
    (v0, p0), (v1, p1) = (
        (float(tick.get("data-value", "")), float(tick.get("data-pixel", "")))
        for tick in (ticks[0], ticks[-1])
    )
    return lambda value: p0 + (value - v0) / (v1 - v0) * (p1 - p0)


def path_of(root: Element, what: str) -> str:
    (path,) = (each for each in root.iter(f"{SVG}path") if each.get("data-what") == what)
    return path.get("d", "")


def corners(drawn: str) -> Iterator[tuple[float, float]]:
    """Every point that a path of M, L, H and V goes through."""
    x = y = 0.0
    for command, numbers in re.findall(r"([MLHVZ])([^MLHVZ]*)", drawn):
        values = [float(number) for number in numbers.split()]
        if command in "ML":
            x, y = values
        elif command == "H":
            (x,) = values
        elif command == "V":
            (y,) = values
        yield x, y


def text_boxes(root: Element) -> list[tuple[str, Box]]:
    return [
        (
            each.text or "",
            text_box(
                float(each.get("x", "")),
                float(each.get("y", "")),
                each.text or "",
                each.get("text-anchor", "start"),
                int(each.get("font-size", "12")),
            ),
        )
        for each in root.iter(f"{SVG}text")
    ]


def check_texts(root: Element) -> None:
    """No two texts touch, and none leaves the picture."""
    _, _, width, height = map(float, root.get("viewBox", "").split())
    boxes = text_boxes(root)
    for i, (words, box) in enumerate(boxes):
        assert Box(0, 0, width, height).holds(box), words
        for other, there in boxes[:i]:
            inner = Box(box.left + 1, box.top + 2, box.right - 1, box.bottom - 1)
            assert not inner.overlaps(there), (words, other)
