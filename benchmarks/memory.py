"""Published memory figures against what this package says of each, one row each.

`memory_rows` says how every row is computed. Nothing is asserted here and nothing is fitted.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from memory_rows import ROWS, Row

from scheduler.report.tables import aligned

DATA = Path(__file__).parent.parent / "tests" / "data" / "memory_published.csv"
UNITS = {"GB": 1e9, "MB": 1e6, "GiB": 2.0**30, "MiB": 2.0**20, "x": 1.0, "x sizeof(params)": 1.0}
CONFLICT = "conflict"


@dataclass(frozen=True)
class Comparison:
    """A row of the file beside our figure, in the row's unit.

    Attributes
    ----------
    listed
        Error of the formula that the file has for the row.
    full
        What this package counts, where `row` is a formula of the figure's source.
    """

    n: int
    record: Mapping[str, str]
    row: Row
    published: float
    ours: float
    listed: float
    full: float | None

    @property
    def kind(self) -> str:
        """First word of the file's kind: paper, tool, measured, rule, doc or conflict."""
        return self.record["kind"].split()[0]

    @property
    def error(self) -> float:
        """Ours over published, less one."""
        return self.ours / self.published - 1

    @property
    def beyond(self) -> bool:
        """Whether the error is larger than the listed one, which is printed to 0.01%."""
        return abs(self.error) > abs(self.listed) + 0.00005

    def shown(self) -> tuple[str, ...]:
        """Cells of the table."""
        unit = self.record["unit"].split()[0]
        by = "formula" if self.row.formula else "count"
        return (
            str(self.n),
            f"{self.published:.6g}",
            f"{self.ours:.5g}",
            f"{self.error:+.2%}",
            self.record["rel_err"],
            unit,
            by,
            self.kind,
            _cut(self.record["configuration"], 52),
        )


def compare(path: Path) -> tuple[list[Comparison], list[int]]:
    """All rows of the file that are known here, and the numbers of those that are not."""
    with path.open(encoding="utf-8", newline="") as file:
        records = {int(record["n"]): record for record in csv.DictReader(file)}
    found = []
    for n in sorted(records.keys() & ROWS.keys()):
        record, row = records[n], ROWS[n]
        unit = UNITS[record["unit"]]
        full = row.full() / unit if row.full is not None else None
        published, listed = float(record["published"]), float(record["rel_err"].rstrip("%")) / 100
        found.append(Comparison(n, record, row, published, row.calculate() / unit, listed, full))
    return found, sorted(records.keys() - ROWS.keys())


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("csv", nargs="?", type=Path, default=DATA, help=f"default: {DATA}")
    path: Path = parser.parse_args(arguments).csv
    if not path.is_file():
        print(f"memory.py: there is no file {path}; name a memory_published.csv", file=sys.stderr)
        return 2
    found, unknown = compare(path)
    head = ("n", "published", "ours", "error", "listed", "unit", "by", "kind", "configuration")
    print(*_padded([head, *(one.shown() for one in found)], right=5), sep="\n")
    print(
        "\nerror: ours over published; listed: of the formula that the file has for the row.\n"
        "by: count, of this package; formula, of the figure's source or table, see below.\n"
    )
    counted = [one for one in found if one.kind != CONFLICT]
    for kind in dict.fromkeys(one.kind for one in counted):
        print(_summary(kind, [one for one in counted if one.kind == kind]))
    print(_summary("all", counted))
    for by, formula in (("count", False), ("formula", True)):
        print(_summary(by, [one for one in counted if one.row.formula == formula]))
    print(
        "\nConflicts are figures that count something else than they say: they are in the table, "
        "not in the summary."
    )
    _list("Beyond their listed error", [one for one in counted if one.beyond])
    _print_formulas([one for one in found if one.row.formula])
    _list("Of the other rows", [one for one in found if one.row.note and not one.row.formula])
    if unknown:
        print(f"\nRows that memory_rows.py does not know: {', '.join(map(str, unknown))}")
    return 0


def _print_formulas(rows: Sequence[Comparison]) -> None:
    print("\nBy a documented formula (tests/memory/published.py), and by this package's count:\n")
    table = [("n", "formula", "error", "count", "error", "why")]
    for one in rows:
        count, error = "-", ""
        if one.full is not None:
            count, error = f"{one.full:.5g}", f"{one.full / one.published - 1:+.2%}"
        cells = (str(one.n), f"{one.ours:.5g}", f"{one.error:+.2%}", count, error, one.row.note)
        table.append(cells)
    print(*_padded(table, right=5), sep="\n")


def _list(what: str, rows: Sequence[Comparison]) -> None:
    print(f"\n{what}: {'' if rows else 'none'}".rstrip())
    if rows:
        print()
        cells = [(str(one.n), f"{one.error:+.2%}", one.row.note) for one in rows]
        print(*aligned(cells, left=3), sep="\n")


def _padded(rows: Sequence[tuple[str, ...]], right: int) -> list[str]:
    # Numbers to the right, words to the left.
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if i < right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _summary(kind: str, rows: Sequence[Comparison]) -> str:
    worst = max(rows, key=lambda one: abs(one.error))
    median = statistics.median(abs(one.error) for one in rows)
    return (
        f"{kind:>9}: {len(rows):2} rows, median error {median:.2%}, "
        f"worst {worst.error:+.2%} (row {worst.n})"
    )


if __name__ == "__main__":
    sys.exit(main())
