"""Words that plans of every kind are told in: actions, and rows."""

from __future__ import annotations

from collections.abc import Sequence

from solvers.schedule import Action, Backward, Compute, Forward, Hold

__all__ = ["indented", "labelled", "more_rows", "peak_text", "step_text"]

_DEEPEST_INDENT = 12


def step_text(action: Action, names: Sequence[str]) -> str:
    """An action of a plan: ``forward 'h.3', keeping``, ``compute 'conv1'``."""
    if isinstance(action, Forward):
        keeping = ", keeping" if action.keep else ""
        option = f" with option {action.option!r}" if action.option is not None else ""
        return f"forward {names[action.layer]!r}{keeping}{option}"
    if isinstance(action, Backward | Compute):
        kind = "backward" if isinstance(action, Backward) else "compute"
        return f"{kind} {names[action.layer]!r}"
    what = "the input" if action.layer < 0 else f"the output of {names[action.layer]!r}"
    return f"{'hold' if isinstance(action, Hold) else 'drop'} {what}"


_RUNS = {Forward: "forward", Backward: "backward", Compute: "computation"}


def peak_text(action: Action, names: Sequence[str]) -> str:
    """What sets a peak, as part of a sentence: ``the backward of 'head'``."""
    what = _RUNS.get(type(action))
    if what is not None:
        return f"the {what} of {names[action.layer]!r}"
    # Holding and dropping take no memory: the peak is what is live before the first forward.
    return f"the input and the gradient of the output of {names[-1]!r}"


def labelled(lines: Sequence[tuple[str, str]]) -> list[str]:
    """Texts beside their labels, the labels aligned right."""
    return [f"{label:>8}  {text}" for label, text in lines]


def indented(depth: int) -> str:
    """What stands before a row of an item that is `depth` segments deep."""
    # A plan may nest a thousand deep; the depth is then said, not drawn.
    if depth <= _DEEPEST_INDENT:
        return "  " * depth
    return f"{'  ' * (_DEEPEST_INDENT - 1)}({depth} deep) "


def more_rows(hidden: int) -> list[str]:
    """The line that counts the rows that are not shown, where there are any."""
    return [f"… {hidden} more row{'s' if hidden > 1 else ''}"] if hidden > 0 else []
