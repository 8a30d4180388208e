"""One HTML file of text, tables and pictures, which loads nothing and runs nothing."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.report.svg.parts import escaped

__all__ = ["code", "escaped_lines", "facts", "page", "paragraph", "picture", "section", "table"]

_NARROW = 640
"""Pixels of width below which the narrow one of two pictures is shown."""

_STYLE = f"""
:root{{color-scheme:light dark;--paper:#fff;--ink:#1f2328;--muted:#57606a;--rule:#d8dee4;
--wash:#f6f8fa}}
@media (prefers-color-scheme:dark){{:root{{--paper:#0d1117;--ink:#e6edf3;--muted:#9da7b3;
--rule:#30363d;--wash:#161b22}}}}
*{{box-sizing:border-box}}
body{{margin:0 auto;max-width:960px;padding:24px 20px 48px;background:var(--paper);
color:var(--ink);font:16px/1.5 system-ui,'Segoe UI',Roboto,Helvetica,Arial,sans-serif}}
h1{{font-size:1.6rem;line-height:1.25;margin:0 0 .4em}}h2{{font-size:1.15rem;margin:2.2em 0 .6em}}
h1,h2,p,dd,li,th,td{{overflow-wrap:anywhere}}
p.lead{{color:var(--muted);margin:0 0 1.2em}}
dl{{display:grid;grid-template-columns:repeat(auto-fit,minmax(260px,1fr));gap:1px;margin:0;
background:var(--rule);border:1px solid var(--rule);border-radius:6px;overflow:hidden}}
dl div{{background:var(--paper);padding:10px 12px}}
dt{{color:var(--muted);font-size:.8rem}}dd{{margin:0;font-weight:600}}
dd small{{display:block;font-weight:400;color:var(--muted)}}
figure{{margin:0 0 20px;border:1px solid var(--rule);border-radius:6px;overflow:hidden}}
figure svg{{display:block;width:100%;height:auto}}figure .narrow{{display:none}}
@media (max-width:{_NARROW}px){{figure .wide{{display:none}}figure .narrow{{display:block}}
body{{padding:16px 12px 32px}}}}
.scroll{{overflow-x:auto;border:1px solid var(--rule);border-radius:6px}}
table{{border-collapse:collapse;width:100%;font-size:.875rem}}
th,td{{padding:6px 10px;text-align:right;white-space:nowrap;border-top:1px solid var(--rule)}}
thead th{{border-top:0;background:var(--wash);font-weight:600}}
th.left,td.left{{text-align:left}}td.left{{white-space:pre-wrap;min-width:12em}}
tr.chosen td{{font-weight:600;background:var(--wash)}}
pre{{overflow-x:auto;background:var(--wash);border:1px solid var(--rule);border-radius:6px;
padding:12px;font-size:.875rem}}
.note{{color:var(--muted);font-size:.875rem}}
"""


def page(title: str, lead: str, sections: Sequence[str]) -> str:
    """The whole file. It says itself that nothing may be loaded, so that nothing ever is."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>{escaped(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f'<h1>{escaped(title)}</h1>\n<p class="lead">{escaped(lead)}</p>\n'
        + "\n".join(sections)
        + "\n</body>\n</html>\n"
    )


def section(heading: str, *parts: str) -> str:
    """A part of the page under its heading."""
    return "\n".join([f"<section>\n<h2>{escaped(heading)}</h2>", *parts, "</section>"])


def paragraph(words: str) -> str:
    """A remark."""
    return f'<p class="note">{escaped(words)}</p>'


def code(words: str) -> str:
    """Lines to be copied."""
    return f"<pre><code>{escaped_lines(words)}</code></pre>"


def facts(values: Sequence[tuple[str, str, str]]) -> str:
    """Figures with their labels and what else is to be said of them."""
    cells = (
        f"<div><dt>{escaped(label)}</dt><dd>{escaped(value)}"
        + (f"<small>{escaped(more)}</small>" if more else "")
        + "</dd></div>"
        for label, value, more in values
    )
    return f"<dl>{''.join(cells)}</dl>"


def picture(wide: str, narrow: str) -> str:
    """A picture for wide windows, and the same for narrow ones."""
    return f'<figure><div class="wide">{wide}</div>\n<div class="narrow">{narrow}</div></figure>'


def table(
    name: str, rows: Sequence[Sequence[str]], left: int = 1, chosen: Sequence[int] = ()
) -> str:
    """A table; the first row is its header.

    Parameters
    ----------
    name
        Its ``data-table``.
    rows
        Texts.
    left
        Columns that are aligned left.
    chosen
        Positions of rows, the header not counted, that are set off.
    """
    header, *body = rows
    lines = [_row("th", header, left), "</thead><tbody>"]
    lines += [
        _row("td", row, left, ' class="chosen"' if i in chosen else "")
        for i, row in enumerate(body)
    ]
    content = "\n".join(lines)
    return (
        f'<div class="scroll"><table data-table="{escaped(name)}"><thead>\n{content}\n'
        "</tbody></table></div>"
    )


def escaped_lines(words: str) -> str:
    """`words` as XML text, its line breaks kept."""
    return "\n".join(escaped(words_of_line) for words_of_line in words.split("\n"))


def _row(kind: str, cells: Sequence[str], left: int, attribute: str = "") -> str:
    class_ = ' class="left"'
    marked = (
        f"<{kind}{class_ if i < left else ''}>{escaped(cell)}</{kind}>"
        for i, cell in enumerate(cells)
    )
    return f"<tr{attribute}>{''.join(marked)}</tr>"
