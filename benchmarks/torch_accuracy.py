"""How well a plan's peak is predicted, on small models of the architectures that people train.

For each architecture and four plans (keep-all, and the optimum at three budgets): the peak that the
plan promises, the peak of a real step under it, whether gradients are bitwise those of a step
without a plan, and whether each block ran as often as planned. Random weights, on the CPU.

    PYTHONPATH=. python benchmarks/torch_accuracy.py [NAME ...] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

import torch
import transformers

from scheduler.common.text import format_bytes
from scheduler.report.tables import aligned, format_percent
from tests.pytorch.suite import SUITE
from tests.pytorch.verification.accuracy import Accuracy, Row, accuracy


def table(found: dict[str, Accuracy]) -> str:
    """A row a plan, and the median and the worst error."""
    header = ["architecture", "plan", "budget", "predicted", "measured", "error"]
    rows = [[*header, "gradients", "forwards"]]
    for name, one in found.items():
        for i, row in enumerate(one.rows):
            sizes = [row.budget_bytes, row.predicted_bytes, row.measured_bytes]
            rows.append(
                [
                    name if i == 0 else "",
                    row.plan,
                    *map(format_bytes, sizes),
                    _signed(row.error),
                    "equal" if row.gradients_equal else "DIFFERENT",
                    "as planned" if row.forwards_as_planned else "OTHERS",
                ]
            )
    return "\n".join([*aligned(rows, left=2), "", summary(found)])


def summary(found: dict[str, Accuracy]) -> str:
    """Median and worst error of all rows, and what is wrong, if anything is."""
    rows = [row for one in found.values() for row in one.rows]
    errors = [abs(row.error) for row in rows]
    worst = max(rows, key=lambda row: abs(row.error))
    lines = [
        f"{len(rows)} plans of {len(found)} architectures: median error "
        f"{format_percent(median(errors))}, worst {_signed(worst.error)} ({worst.architecture}, "
        f"{worst.plan}); {sum(error == 0 for error in errors)} exact to the byte.",
        f"Over the budget: {_names(row for row in rows if row.measured_bytes > row.budget_bytes)}.",
        f"Gradients different: {_names(row for row in rows if not row.gradients_equal)}.",
        f"Forwards not as planned: {_names(row for row in rows if not row.forwards_as_planned)}.",
        "Fake profile not the real one: "
        f"{', '.join(n for n, one in found.items() if not one.fake_is_real) or 'none'}.",
    ]
    return "\n".join(lines)


def record(found: dict[str, Accuracy]) -> dict[str, object]:
    """Everything, for a file."""
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "architectures": {
            name: {
                "fake_is_real": one.fake_is_real,
                "rows": [{**asdict(row), "error": row.error} for row in one.rows],
            }
            for name, one in found.items()
        },
    }


def _signed(error: float) -> str:
    return f"{'-' if error < 0 else ''}{format_percent(abs(error))}"


def _names(rows: Iterable[Row]) -> str:
    return ", ".join(f"{row.architecture} at {row.plan}" for row in rows) or "none"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SUITE)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in SUITE]:
        parser.error(f"no architecture {unknown[0]!r}; there are {', '.join(SUITE)}")
    found: dict[str, Accuracy] = {}
    for name in options.names or SUITE:
        print(f"{name} ...", file=sys.stderr, flush=True)
        found[name] = accuracy(name)
    print(table(found))
    if options.json:
        options.json.write_text(json.dumps(record(found), indent=1) + "\n", encoding="utf-8")
    rows: list[Row] = [row for one in found.values() for row in one.rows]
    return 0 if all(row.measured_bytes <= row.budget_bytes for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
