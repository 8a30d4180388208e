"""Draw the pictures of the README: ``python benchmarks/pictures.py``.

They come from costs in this repository, so that anybody gets the same files; a test compares them.
"""

from __future__ import annotations

from pathlib import Path

from scheduler import CostGraph, compare, frontier, solve
from scheduler.plans.pictures import strip_picture, timeline_picture

FOLDER = Path(__file__).parent.parent / "examples" / "pictures"
EXAMPLE, BUDGET, TIGHT = "densenet121", "1GB", "345MB"


def pictures() -> dict[str, str]:
    """The SVG text of each picture by its file's name."""
    costs = CostGraph.example(EXAMPLE)
    plan = solve(costs, budget=BUDGET)
    nested = solve(costs, budget=TIGHT)
    return {
        "timeline.svg": timeline_picture(plan),
        "curve.svg": frontier(costs).picture(plan, compare(costs, budget=BUDGET)),
        "strip.svg": strip_picture(nested, EXAMPLE),
    }


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pictures().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"wrote {FOLDER / name}")


if __name__ == "__main__":
    main()
