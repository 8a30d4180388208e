"""What was chosen for one graph that `torch.compile` compiled, as it is told."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.common.text import format_bytes
from scheduler.pytorch.compile.choice import Answer, StepGraph, play
from scheduler.report.tables import format_percent

__all__ = ["CompiledPlan"]


@dataclass(frozen=True)
class CompiledPlan:
    """What was chosen for one joint graph.

    Attributes
    ----------
    budget_bytes
        As given.
    peak_bytes
        Predicted: most bytes live at once of everything but parameters, buffers and optimizer
        state, while the compiled forward and backward run.
    keep_all_bytes
        The same when everything that the backward reads is kept.
    kept, recomputed
        Operations of the joint graph, by name.
    recomputed_share
        Time that runs again, as a share of the forward's.
    least_share
        Proven: every choice within the budget runs at least this share again.
    status
        "optimal": no choice within the budget runs less again, which is proven; both shares are
        the same. "feasible": fits, and is no worse than any of torch's own choices that were asked
        for and fit; what runs again is between `least_share` and `recomputed_share` at best.
    set_by
        What runs at the peak, as part of a sentence.
    """

    budget_bytes: int
    peak_bytes: int
    keep_all_bytes: int
    kept: tuple[str, ...]
    recomputed: tuple[str, ...]
    recomputed_share: float
    least_share: float
    status: str
    set_by: str

    @classmethod
    def of(cls, step: StepGraph, answer: Answer, budget: int) -> CompiledPlan:
        """What an answer says of a step."""
        choice = answer.choice
        return cls(
            budget,
            choice.peak_bytes,
            play(step, step.free).peak_bytes,
            tuple(step.early[i].name for i in choice.kept),
            tuple(step.early[i].name for i in choice.again),
            choice.again_time / max(step.forward_time, 1),
            answer.least_time / max(step.forward_time, 1),
            "optimal" if answer.proven else "feasible",
            choice.set_by,
        )

    def __str__(self) -> str:
        """One line."""
        return (
            f"peak {format_bytes(self.peak_bytes)} of {format_bytes(self.budget_bytes)} (keep all: "
            f"{format_bytes(self.keep_all_bytes)}), {len(self.recomputed)} operations run again: "
            f"+{format_percent(self.recomputed_share)} of the forward, {self.status}"
            + (
                f" (at least {format_percent(self.least_share)})"
                if self.status != "optimal"
                else ""
            )
        )
