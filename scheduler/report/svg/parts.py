"""Parts of pictures: texts, signs, legends, and the document around them.

A picture is SVG that needs nothing else: its own background and both a light and a dark dress, so
that it is readable wherever it is put. Colours are told apart by the colour-blind, and no fact is
told by colour alone. Numbers that a picture shows are in ``data-`` attributes too, unrounded.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from scheduler.common.text import format_bytes, format_time

__all__ = ["SIZE", "Swatch", "circle", "diamond", "document", "element", "escaped", "heading"]
__all__ += ["legend", "line", "path", "said_bytes", "said_time", "shortened", "text", "text_width"]

SIZE = 12
"""Height of letters, in pixels; a title's are larger."""

# Okabe and Ito's colours, darker on white and lighter on black where they must carry a line.
_LIGHT = {
    "paper": "#ffffff",
    "ink": "#1f2328",
    "muted": "#57606a",
    "grid": "#d8dee4",
    "first": "#0072b2",
    "again": "#e69f00",
    "nested": "#c44601",
    "option": "#009e73",
    "back": "#87919c",
    "limit": "#a3195b",
    "void": "#e9edf1",
}
_DARK = _LIGHT | {
    "paper": "#0d1117",
    "ink": "#e6edf3",
    "muted": "#9da7b3",
    "grid": "#30363d",
    "first": "#3d9bd6",
    "nested": "#f0763a",
    "option": "#2fbf94",
    "back": "#6e7781",
    "limit": "#f27fb2",
    "void": "#1f2630",
}


class Swatch(NamedTuple):
    """A sign of a legend and what it means; `shape`: "area", "line", "dash", "dot", "diamond"."""

    colour: str
    shape: str
    label: str


def document(
    title: str, description: str, width: float, height: float, body: Sequence[str], kind: str
) -> str:
    """A whole SVG file; `kind` is its ``data-picture``."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" font-size="{SIZE}" role="img" class="ckpt" '
        f'data-picture="{kind}">\n'
        f"<title>{escaped(title)}</title>\n<desc>{escaped(description)}</desc>\n"
        f"<style>{_style()}</style>\n"
        f'<rect class="ckpt-paper" width="{width:g}" height="{height:g}" rx="6"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def element(name: str, content: str = "", **attributes: object) -> str:
    """An element; ``data_x`` is the attribute ``data-x``, ``class_`` is ``class``."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def text(
    x: float,
    y: float,
    words: str,
    *,
    anchor: str = "start",
    colour: str = "ink",
    size: int = SIZE,
    halo: bool = False,
) -> str:
    """A line of text whose letters stand on `y`; `halo` sets it off from what is below."""
    return element(
        "text",
        escaped(words),
        x=x,
        y=y,
        class_=f"ckpt-{colour}{' ckpt-halo' if halo else ''}",
        font_size=None if size == SIZE else size,
        font_weight=600 if size > SIZE else None,
        text_anchor=None if anchor == "start" else anchor,
    )


def line(x1: float, y1: float, x2: float, y2: float, colour: str, dash: str | None = None) -> str:
    """A straight line."""
    stroke = f"ckpt-{colour}-line"
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=stroke, stroke_dasharray=dash)


def path(points: str, class_: str, *, dash: str | None = None, what: str | None = None) -> str:
    """A path from its drawing commands; `what` is its ``data-what``."""
    return element("path", d=points, class_=class_, stroke_dasharray=dash, data_what=what)


def circle(x: float, y: float, radius: float, colour: str) -> str:
    """A filled circle with a rim that sets it off."""
    return element("circle", cx=x, cy=y, r=radius, class_=f"ckpt-{colour} ckpt-rim")


def heading(title: str, subtitle: str, width: float) -> tuple[list[str], float]:
    """The title and what stands below it, cut to the width; and where the next thing may start."""
    cut = width - 32
    body = [text(16, 26, shortened(title, cut / 1.12, 15), size=15)]  # bold letters are wider
    lines = _filled(subtitle, cut)
    body += [text(16, 46 + 16 * i, words, colour="muted") for i, words in enumerate(lines)]
    return body, 40 + 16 * len(lines)


def legend(swatches: Sequence[Swatch], top: float, width: float) -> tuple[list[str], float]:
    """Signs and their meaning from `top` down, in as many lines as the width needs."""
    body: list[str] = []
    x, y = 16.0, top + 14
    for swatch in swatches:
        label = shortened(swatch.label, width - 54)
        room = 22 + text_width(label) + 18
        if x > 16 and x + room > width - 8:
            x, y = 16.0, y + 18
        body += [_sign(swatch, x, y - 4), text(x + 22, y, label)]
        x += room
    return body, y + 8


def shortened(words: str, width: float, size: int = SIZE) -> str:
    """`words` cut in the middle where they are wider than `width` pixels."""
    if text_width(words, size) <= width:
        return words
    room = width - text_width("…", size)
    left = _fitting(words, room / 2, size)
    right = _fitting(words[::-1], room - text_width(left, size), size)[::-1]
    return f"{left}…{right}"


def text_width(words: str, size: int = SIZE) -> float:
    """Pixels that `words` take at most in the fonts that browsers choose."""
    return sum(
        size * (1.0 if unicodedata.east_asian_width(c) in "WF" else _share(c)) for c in words
    )


def escaped(words: str) -> str:
    """`words` as XML text or attribute; characters that XML forbids become �."""
    clean = "".join(letter if _is_xml(letter) else "�" for letter in words)
    return (
        clean.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    )


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


def _filled(words: str, width: float) -> list[str]:
    lines: list[str] = []
    for word in words.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(shortened(word, width))
    return lines


def _sign(swatch: Swatch, x: float, y: float) -> str:
    if swatch.shape == "area":
        return element("rect", x=x, y=y - 6, width=16, height=12, class_=f"ckpt-{swatch.colour}")
    if swatch.shape == "dot":
        return circle(x + 8, y, 4.5, swatch.colour)
    if swatch.shape == "diamond":
        return diamond(x + 8, y, swatch.colour)
    return line(x, y, x + 16, y, swatch.colour, "4 3" if swatch.shape == "dash" else None)


def diamond(x: float, y: float, colour: str, half: float = 7) -> str:
    """A square on its corner."""
    points = f"M{x - half:.1f} {y:.1f}L{x:.1f} {y - half:.1f}L{x + half:.1f} {y:.1f}"
    return path(f"{points}L{x:.1f} {y + half:.1f}Z", f"ckpt-{colour} ckpt-rim")


def _number(value: object) -> str:
    # Pixels are rounded to a tenth, but data are shown as they are: those are ints or reprs.
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _style() -> str:
    def rules(colours: dict[str, str]) -> str:
        fills = (
            f".ckpt-{name}{{fill:{colour}}}.ckpt-{name}-line{{stroke:{colour};fill:none}}"
            for name, colour in colours.items()
        )
        return "".join(fills) + f".ckpt-rim,.ckpt-halo{{stroke:{colours['paper']}}}"

    font = ".ckpt text{font-family:system-ui,'Segoe UI',Roboto,Helvetica,Arial,sans-serif}"
    shape = ".ckpt-thick{stroke-width:2}.ckpt-halo{stroke-width:3;paint-order:stroke}"
    dark = f"@media (prefers-color-scheme:dark){{{rules(_DARK)}}}"
    return f"{font}{rules(_LIGHT)}{shape}{dark}"
