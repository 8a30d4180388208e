"""What `verify` has found: whether a model with a plan does what it does without."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from scheduler.common.text import format_bytes
from scheduler.plans.plan import Plan
from scheduler.plans.text import labelled
from scheduler.report.tables import wrapped


@dataclass(frozen=True)
class Verification:
    """A step with a plan beside one without.

    Attributes
    ----------
    plan
        What was verified.
    device
        "real", or "fake" where values were not computed and so not compared.
    gradients
        "equal": bit by bit. "within noise": two steps without the plan differ as much.
        "equal to rounding": the plan runs something in tiles, whose sums round otherwise.
        "different", or "not compared".
    largest_difference, largest_difference_units
        Of the gradients, as a share of the largest entry of the parameter's, and that in units of
        rounding of its type, or of a less exact one in which the step computes; 0 when equal.
    deterministic
        Are two steps without the plan equal bit by bit? None on fake tensors.
    state
        "equal": the loss, buffers and random states after the step are those without the plan.
        "different", or "not compared" on fake tensors and where steps are not deterministic.
    planned_forwards, forwards
        How often each block's forward should run in a step, and does.
    peak_bytes, peak_bytes_without
        Measured with the plan and without it.
    left_bytes, left_bytes_without
        What a step leaves behind once gradients are cleared.
    parted
        Where the two first part, as a sentence; None where they do not.
    """

    plan: Plan = field(repr=False)
    device: str
    gradients: str
    largest_difference: float
    deterministic: bool | None
    state: str
    planned_forwards: dict[str, int]
    forwards: dict[str, int]
    peak_bytes: int
    peak_bytes_without: int
    left_bytes: int
    left_bytes_without: int
    parted: str | None
    largest_difference_units: float = 0.0

    @property
    def predicted_peak_bytes(self) -> int:
        """The plan's peak."""
        return self.plan.peak_bytes

    @property
    def budget_bytes(self) -> int | None:
        """What the step may take: the plan's budget without what is reserved."""
        if self.plan.budget_bytes is None:
            return None
        return self.plan.budget_bytes - self.plan.reserved_bytes

    @property
    def within_budget(self) -> bool:
        """Whether the measured peak is within the budget; without one, the prediction."""
        most = self.predicted_peak_bytes if self.budget_bytes is None else self.budget_bytes
        return self.peak_bytes <= most

    @property
    def leaked_bytes(self) -> int:
        """What the plan makes a step leave behind, beyond what it leaves without."""
        return max(self.left_bytes - self.left_bytes_without, 0)

    @property
    def margin_bytes(self) -> int:
        """Bytes by which the measured peak is above the plan's: add them to `reserved`."""
        return self.calibrated.margin_bytes

    @property
    def calibrated(self) -> Plan:
        """The plan with the measured peak, which goes into its file."""
        return replace(self.plan, measured_peak_bytes=self.peak_bytes)

    @property
    def ok(self) -> bool:
        """Everything as it should be."""
        return (
            self.gradients != "different"
            and self.state != "different"
            and self.forwards == self.planned_forwards
            and self.within_budget
            and not self.leaked_bytes
        )

    def to_dict(self) -> dict[str, Any]:
        """The findings as JSON values; of the plan what it says of peak and budget."""
        # With the plan asdict would copy it, item by item.
        values = asdict(replace(self, plan=None))  # type: ignore[arg-type]
        del values["plan"]
        names = ("predicted_peak_bytes", "budget_bytes", "margin_bytes", "leaked_bytes", "ok")
        return {**values, **{name: getattr(self, name) for name in names}}

    def __str__(self) -> str:
        left, without = format_bytes(self.left_bytes), format_bytes(self.left_bytes_without)
        head = f"{'as planned' if self.ok else 'NOT as planned'}, on {self.device} tensors"
        lines = [
            ("gradient", self._gradients_text()),
            ("state", _STATES[self.state]),
            ("forwards", self._forwards_text()),
            ("peak", self._peak_text()),
            ("left", f"{left} after the step, {without} without the plan"),
        ]
        text = "\n".join([head, *labelled(lines)])
        return text if self.parted is None else f"{text}\n{wrapped(self.parted)}"

    def _gradients_text(self) -> str:
        text = _GRADIENTS[self.gradients]
        return text.format(self.largest_difference, self.largest_difference_units)

    def _forwards_text(self) -> str:
        differ = sum(self.forwards[name] != count for name, count in self.planned_forwards.items())
        if differ:
            return f"{differ} of {len(self.forwards)} blocks run otherwise than planned"
        once = sum(count == 1 for count in self.forwards.values())
        total, blocks = sum(self.forwards.values()), len(self.forwards)
        return f"as planned: {total} in {blocks} blocks, {once} of which run once"

    def _peak_text(self) -> str:
        off = self.peak_bytes / self.predicted_peak_bytes - 1 if self.predicted_peak_bytes else 0.0
        text = (
            f"{format_bytes(self.peak_bytes)} measured, "
            f"{format_bytes(self.predicted_peak_bytes)} predicted ({100 * off:+.2f}%), "
            f"{format_bytes(self.peak_bytes_without)} without the plan"
        )
        if self.budget_bytes is None:
            return text
        verdict = "within" if self.within_budget else "ABOVE"
        return f"{text}; {verdict} {format_bytes(self.budget_bytes)}"


_GRADIENTS = {
    "equal": "equal bit by bit",
    "equal to rounding": "equal to rounding, as the plan has tiles: off by {:.1e} of a parameter's "
    "largest at most, {:.1f} units of rounding",
    "within noise": "off by {:.1e} at most, no more than between two steps without the plan",
    "different": "DIFFERENT, by up to {:.1e} of a parameter's largest",
    "not compared": "not compared: fake tensors have no values",
}
_STATES = {
    "equal": "loss, buffers and random states are those without the plan",
    "different": "the loss, a buffer or a random state is DIFFERENT",
    "not compared": "not compared",
}
