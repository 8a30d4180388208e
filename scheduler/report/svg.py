"""A picture as SVG: that of matplotlib, with what browsers can add to it.

Text stays text, in the reader's font; colours follow the reader's scheme, light or dark; parts have
tooltips and their numbers. What is left out are references inside the file, which would be mixed up
where several pictures stand in one page: markers are written out, names (``id``) are dropped.
"""

from __future__ import annotations

import re
import warnings
from io import StringIO
from typing import Any
from xml.etree import ElementTree

from scheduler.report.figure import COLOURS, STYLE, Picture, Sheet, frame, require
from scheduler.report.labels import clean

__all__ = ["svg"]

_SPACE = "{http://www.w3.org/2000/svg}"
_SETTINGS: Any = STYLE | {"svg.fonttype": "none", "svg.hashsalt": "checkpoint-scheduler"}
_DARK = {
    "paper": "#0d1117",
    "ink": "#e6edf3",
    "muted": "#9da7b3",
    "grid": "#30363d",
    "first": "#3d9bd6",
    "again": "#e69f00",
    "nested": "#f0763a",
    "option": "#2fbf94",
    "back": "#6e7781",
    "limit": "#f27fb2",
    "void": "#1f2630",
}
_FONT = "system-ui,'Segoe UI',Roboto,Helvetica,Arial,sans-serif"


def svg(picture: Picture, width: float) -> str:
    """The text of a file with the picture; `width` in pixels."""
    require("matplotlib", "a picture")
    import matplotlib

    written = StringIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        # A letter that matplotlib's own font lacks is in the reader's.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        sheet = frame(picture, width)
        for artist in sheet.figure.findobj():
            artist.set_clip_on(False)  # nothing is beyond the axes, and clips are references
        unsaid = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        sheet.figure.savefig(written, format="svg", metadata=unsaid)
    root = ElementTree.fromstring(written.getvalue())
    _without_references(root)
    _say(root, sheet)
    _whole(root, picture)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _without_references(root: ElementTree.Element) -> None:
    """Write out what is used from elsewhere in the file, and drop its definition."""
    parts = {each.get("id"): each for each in root.iter()}
    for parent in list(root.iter()):
        for i, child in enumerate(list(parent)):
            if child.tag == f"{_SPACE}use":
                used = parts[child.attrib["{http://www.w3.org/1999/xlink}href"][1:]]
                style = "; ".join(filter(None, (used.get("style"), child.get("style"))))
                at = f"translate({child.get('x')} {child.get('y')})"
                drawn = {"d": used.attrib["d"], "transform": at, "style": style}
                parent[i] = ElementTree.Element(f"{_SPACE}path", drawn)
        for child in parent.findall(f"{_SPACE}defs") + parent.findall(f"{_SPACE}metadata"):
            parent.remove(child)


def _say(root: ElementTree.Element, sheet: Sheet) -> None:
    """Give parts their class, tooltip and numbers, and leave out what no reader needs."""
    for each in list(root.iter()):
        each.tag = each.tag.removeprefix(_SPACE)
        each.tail = None
        if each.tag == "text":
            style = each.attrib["style"]
            each.set("style", re.sub(r"font-family: [^;]*;? ?", "", style))
            if each.get("transform", "").startswith("rotate(-0 "):
                del each.attrib["transform"]
        else:
            each.text = None
        for name in ("transform", "x", "y"):
            if name in each.attrib:
                each.set(
                    name, re.sub(r"-?\d+\.\d+", lambda found: _short(found[0]), each.attrib[name])
                )
        if "d" in each.attrib:
            each.set("d", _drawn(each.attrib["d"]))
        note = sheet.notes.get(each.attrib.pop("id", ""))
        if note is not None:
            each.set("class", note.part)
            for key, value in note.data.items():
                each.set(f"data-{key}", clean(str(value)))
            if note.tip:
                tip = ElementTree.Element("title")
                tip.text = clean(note.tip)
                each.insert(0, tip)


def _drawn(path: str) -> str:
    """The commands of a path, with short numbers, and H and V for what is level or upright."""
    commands = []
    x = y = ""
    for command, rest in re.findall(r"([A-Za-z])([^A-Za-z]*)", path):
        numbers = [_short(number) for number in rest.split()]
        if command == "L" and x == numbers[0]:
            commands.append(f"V{numbers[1]}")
        elif command == "L" and y == numbers[1]:
            commands.append(f"H{numbers[0]}")
        else:
            commands.append(command + " ".join(numbers))
        x, y = numbers[-2:] or (x, y)
    return "".join(commands)


def _short(number: str) -> str:
    return f"{float(number):.2f}".rstrip("0").rstrip(".")


def _whole(root: ElementTree.Element, picture: Picture) -> None:
    """Make it one file with a title, a description and its two dresses."""
    _, _, width, height = root.attrib["viewBox"].split()
    root.attrib.update(
        {
            "xmlns": _SPACE[1:-1],
            "width": width,
            "height": height,
            "role": "img",
            "class": "ckpt",
            "data-picture": type(picture).__name__.lower(),
        }
    )
    del root.attrib["version"]
    heads = (("title", picture.title), ("desc", picture.subtitle()), ("style", _style()))
    for i, (tag, words) in enumerate(heads):
        head = ElementTree.Element(tag)
        head.text = clean(words)
        root.insert(i, head)


def _style() -> str:
    """The reader's font, letters set off from lines, and for the dark each colour replaced."""
    dark = (
        f'.ckpt [style*="{kind}: {COLOURS[name]}"]{{{kind}:{colour}!important}}'
        for name, colour in _DARK.items()
        for kind in ("fill", "stroke")
    )
    halo = ".ckpt .label text{stroke:%s;stroke-width:3;paint-order:stroke}"
    return (
        f".ckpt text{{font-family:{_FONT}!important}}{halo % COLOURS['paper']}"
        f"@media (prefers-color-scheme:dark){{{''.join(dark)}{halo % _DARK['paper']}}}"
    )
