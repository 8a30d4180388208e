"""Reading numbers back out of the pictures."""

from __future__ import annotations

from xml.etree import ElementTree

from scheduler.report.labels import Box, Side, text_box

SVG = "{http://www.w3.org/2000/svg}"
Element = ElementTree.Element
ANCHORS: dict[str, Side] = {"start": "left", "middle": "center", "end": "right"}


def parsed(svg: str) -> Element:
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    return root


def of_class(root: Element, name: str) -> list[Element]:
    return [each for each in root.iter() if name in (each.get("class") or "").split()]


def text_boxes(root: Element) -> list[tuple[str, Box]]:
    """The words of every text and where they may have ink, each in a group of its own."""
    boxes = []
    for each in root.iter(f"{SVG}text"):
        style = dict(part.split(": ", 1) for part in each.get("style", "").split("; "))
        anchor = ANCHORS[style.get("text-anchor", "start")]
        size = int(style["font-size"].removesuffix("px"))
        x, y = float(each.get("x", "")), float(each.get("y", ""))
        boxes.append((each.text or "", text_box(x, y, each.text or "", anchor, size)))
    return boxes


def facts(svg: str) -> list[tuple[str, ...]]:
    """What a picture says, without where it stands: parts, their numbers, tooltips and words."""
    return [
        (
            each.tag,
            each.text or "",
            *(
                f"{key}={each.get(key)}"
                for key in sorted(each.keys())
                if key == "class" or key.startswith("data-")
            ),
        )
        for each in parsed(svg).iter()
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
