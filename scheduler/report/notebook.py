"""What a notebook shows of an object that is its last line."""

from __future__ import annotations

from html import escape

from scheduler.report.figure import can_draw

__all__ = ["InNotebooks"]


class InNotebooks:
    """Shows itself in a notebook: as its picture where it has one, else as the text it prints."""

    def _repr_svg_(self) -> str | None:
        return None

    def _repr_html_(self) -> str | None:
        # Where both are given a notebook would take the text.
        has_picture = type(self)._repr_svg_ is not InNotebooks._repr_svg_ and can_draw()
        return None if has_picture else f"<pre>{escape(str(self))}</pre>"
