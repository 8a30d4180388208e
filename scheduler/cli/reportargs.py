"""Command-line options of ``report`` and ``diff``; light to import."""

from __future__ import annotations

import argparse
from typing import Any

__all__ = ["add_diff", "add_report"]


def add_report(commands: Any, run: Any) -> None:
    """The command ``report``; `run` is called with its name and its arguments."""
    what = "a plan as one HTML file, or one of its pictures as SVG"
    report = commands.add_parser(
        "report", help=what, description=f"Write {what}.", allow_abbrev=False
    )
    report.add_argument("plan", metavar="PLAN", help="a plan file, or - for standard input")
    report.add_argument("--costs", metavar="COSTS", help="the cost file it was made for")
    report.add_argument("--example", metavar="NAME", help="or costs that come with the package")
    report.add_argument("-o", "--output", metavar="FILE", help="default: standard output")
    report.add_argument(
        "--picture",
        metavar="NAME",
        help="only this one: timeline (memory of a step), curve (time against memory) or strip "
        "(what happens to each layer)",
    )
    report.add_argument(
        "--no-solve",
        action="store_true",
        help="leave out time against memory and the other methods, which take solving",
    )
    report.add_argument(
        "--max-points",
        type=int,
        metavar="N",
        help="of a chain: the whole frontier, sets of more points thinned (default: exact up to "
        "120 layers, exact at some budgets beyond)",
    )
    report.add_argument(
        "--points", type=int, metavar="N", help="of a graph: budgets of the sweep (default: 8)"
    )
    report.add_argument(
        "--time-limit",
        type=float,
        metavar="SECONDS",
        help="of a graph: for each budget and each method (default: 10); of a chain of more than "
        "120 layers: for all budgets together (default: 10)",
    )
    report.add_argument("--threads", type=int, metavar="N", help="of a graph: default 1")
    report.add_argument("--quiet", action="store_true", help="show no progress on a terminal")
    report.set_defaults(run=lambda arguments: run("report", arguments))


def add_diff(commands: Any, run: Any) -> None:
    """The command ``diff``; `run` is called with its name and its arguments."""
    what = "which layers two plans treat differently, and what each of them costs"
    diff = commands.add_parser("diff", help=what, description=f"Print {what}.", allow_abbrev=False)
    diff.add_argument("before", metavar="PLAN", help="a plan file, or - for standard input")
    diff.add_argument("after", metavar="PLAN", help="another one, of the same layers")
    formats: argparse._MutuallyExclusiveGroup = diff.add_mutually_exclusive_group()
    formats.add_argument("--json", action="store_true", help="print JSON")
    formats.add_argument("--csv", action="store_true", help="print the layers that differ as CSV")
    diff.set_defaults(run=lambda arguments: run("diff", arguments))
