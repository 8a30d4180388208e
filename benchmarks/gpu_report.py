"""What benchmarks/gpu_check.py trains, and the report of it: a table, and a record for a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import transformers

from scheduler.common.text import format_bytes, format_time
from scheduler.report.tables import aligned, format_percent


@dataclass(frozen=True)
class Setup:
    """A Llama's shape and a batch.

    A vocabulary of 32,000 keeps the logits from setting the peak.
    """

    name: str
    layers: int
    width: int
    hidden: int
    heads: int
    groups: int
    rows: int
    length: int
    vocabulary: int = 32_000
    dtype: str = "bfloat16"

    def build(self, device: str) -> Any:
        """The model, in training mode."""
        config = transformers.LlamaConfig(
            hidden_size=self.width,
            intermediate_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.groups,
            vocab_size=self.vocabulary,
            max_position_embeddings=self.length,
        )
        config._attn_implementation = "sdpa"
        torch.manual_seed(0)
        before = torch.get_default_dtype()
        torch.set_default_dtype(getattr(torch, self.dtype))
        try:
            with torch.device(device):
                return transformers.LlamaForCausalLM(config).train()
        finally:
            torch.set_default_dtype(before)

    def batch(self, device: str) -> dict[str, torch.Tensor]:
        """Token ids that are their own labels."""
        generator = torch.Generator().manual_seed(0)
        made = torch.randint(0, self.vocabulary, (self.rows, self.length), generator=generator)
        ids = made.to(device)
        return {"input_ids": ids, "labels": ids}


@dataclass(frozen=True)
class Row:
    """One plan. What was not measured is None; `note` says why."""

    method: str
    budget: str
    budget_bytes: int | None = None
    predicted_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    left_bytes: int | None = None
    predicted_overhead: float | None = None
    seconds: float | None = None
    gradient_norm: float | None = None
    forwards_as_planned: bool | None = None
    note: str = ""

    @property
    def error(self) -> float | None:
        """Predicted above allocated, as a share of allocated."""
        if self.predicted_bytes is None or not self.allocated_bytes:
            return None
        return self.predicted_bytes / self.allocated_bytes - 1


@dataclass(frozen=True)
class Report:
    """All rows, and what they were measured on.

    Attributes
    ----------
    parameters
        How many the model has.
    fake_differs
        Layers whose bytes a profile on fake tensors gives otherwise.
    seconds
        Of the whole check.
    """

    hardware: str
    setup: Setup
    parameters: int
    fake_differs: list[str]
    rows: list[Row]
    seconds: float

    @property
    def wrong(self) -> list[Row]:
        """Rows whose plan did not run as planned, or took more than it promised."""
        return [
            row
            for row in self.rows
            if row.error is not None and (row.error < 0 or not row.forwards_as_planned)
        ]

    @property
    def sound(self) -> bool:
        """Whether something was measured and nothing is wrong."""
        return not self.wrong and any(row.error is not None for row in self.rows)


def table(report: Report) -> str:
    """Render the report as text."""
    setup = report.setup
    lines = [
        f"{setup.name}: {report.parameters / 1e9:.2f} billion parameters, {setup.dtype}, "
        f"{setup.rows} rows of {setup.length} tokens",
        f"{report.hardware}; torch {torch.__version__}, {report.seconds:.0f} s in all",
        "",
    ]
    header = ["method", "budget", "predicted", "allocated", "error", "reserved", "step"]
    rows = [[*header, "overhead", "predicted", "forwards", "note"]]
    base = next((row for row in report.rows if row.method == "keep-all"), None)
    for row in report.rows:
        rows.append([row.method, row.budget, *_cells(row, base), row.note])
    lines.extend(aligned(rows, left=2))
    differs = ", ".join(report.fake_differs)
    lines += [
        "",
        "Sizes are a step's own: weights are not in them. Overheads are over keep-all.",
        f"Fake tensors give other bytes than real ones for: {differs}."
        if differs
        else "Fake tensors give the same bytes as real ones.",
        f"Gradient norms differ from keep-all's by at most {_spread(report.rows):.2g} of it.",
        "Every plan ran as planned, within the peak it promised."
        if report.sound
        else f"NOT as planned, or above the peak it promised: {_names(report.wrong)}.",
    ]
    return "\n".join(lines)


def _cells(row: Row, base: Row | None) -> list[str]:
    overhead = None
    if row.seconds is not None and base is not None and base.seconds:
        overhead = row.seconds / base.seconds - 1
    return [
        *(_or(row.predicted_bytes, format_bytes), _or(row.allocated_bytes, format_bytes)),
        *(_or(row.error, _percent), _or(row.reserved_bytes, format_bytes)),
        _or(row.seconds, lambda seconds: format_time(seconds, "s")),
        *(_or(overhead, _percent), _or(row.predicted_overhead, _percent)),
        _or(row.forwards_as_planned, lambda right: "as planned" if right else "OTHERS"),
    ]


def _names(rows: Sequence[Row]) -> str:
    return ", ".join(f"{row.method} at {row.budget}" for row in rows) or "nothing was measured"


def _or(value: Any, show: Callable[[Any], str]) -> str:
    return "–" if value is None else show(value)


def _percent(share: float) -> str:
    return f"-{format_percent(-share)}" if share < 0 else format_percent(share)


def _spread(rows: Sequence[Row]) -> float:
    """Largest distance of a gradient norm from the first, as a share of it."""
    norms = [row.gradient_norm for row in rows if row.gradient_norm is not None]
    return max((abs(norm / norms[0] - 1) for norm in norms), default=0.0)


def record(report: Report) -> dict[str, Any]:
    """Everything, for a file."""
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        **asdict(report),
        "sound": report.sound,
        "rows": [{**asdict(row), "error": row.error} for row in report.rows],
    }
