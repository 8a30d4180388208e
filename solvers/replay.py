"""What executing a schedule gives, whatever the problem: its moments, peak and time."""

from __future__ import annotations

from typing import Literal, NamedTuple

from solvers.schedule import Action

__all__ = ["Moment", "Replay", "Role"]

Role = Literal["first", "again", "back", ""]
"""A first run, recomputation, a backward, or what takes neither time nor memory."""


class Moment(NamedTuple):
    """One action of a step.

    Attributes
    ----------
    action
        What runs.
    role
        What it is for: see `Role`.
    ticks
        How long it takes, in the problem's integer unit.
    during_bytes, after_bytes
        Live at its worst moment, and after it.
    again_ticks
        Of its ticks, those that make again what an option left out.
    """

    action: Action
    role: Role
    ticks: int
    during_bytes: int
    after_bytes: int
    again_ticks: int = 0


class Replay(NamedTuple):
    """What a schedule does.

    Attributes
    ----------
    moments
        One for each action.
    peak_bytes
        The largest number of bytes live at any moment.
    peak_at
        The index of the moment that first reaches it.
    time
        Sum over the moments, in the problem's integer unit.
    """

    moments: tuple[Moment, ...]
    peak_bytes: int
    peak_at: int
    time: int

    @classmethod
    def of(cls, moments: list[Moment]) -> Replay:
        """The replay of these moments, at least one."""
        during = [moment.during_bytes for moment in moments]
        peak = max(during)
        return cls(tuple(moments), peak, during.index(peak), sum(each.ticks for each in moments))

    @property
    def peak_action(self) -> Action:
        """The action during which the peak is first reached."""
        return self.moments[self.peak_at].action
