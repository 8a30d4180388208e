"""A budget beside peaks: what may be used of it, and whether that is near enough to be drawn."""

from __future__ import annotations

from scheduler.common.text import format_both

FAR = 4
"""Keeping everything, or a budget, is drawn up to this many times the peak."""


class UnderBudget:
    """What a picture of peaks has of their budget; `highest_bytes` is the highest of them."""

    budget_bytes: int | None
    reserved_bytes: int

    @property
    def highest_bytes(self) -> int:
        """The highest peak."""
        raise NotImplementedError

    @property
    def limit(self) -> int | None:
        """What a plan may use, where that is near enough to be drawn."""
        return None if self.budget_bytes is None or self._is_far else self._available

    def far_budget(self) -> str:
        """A sentence about a budget that is not drawn, after another; or nothing."""
        if self.budget_bytes is None or not self._is_far:
            return ""
        return f" The budget, {format_both(self._available)}, lies far above."

    @property
    def _available(self) -> int:
        return (self.budget_bytes or 0) - self.reserved_bytes

    @property
    def _is_far(self) -> bool:
        return self._available > FAR * max(self.highest_bytes, 1)
