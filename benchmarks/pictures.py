"""Draw the pictures of README and site: ``python benchmarks/pictures.py``.

They come from costs in this repository, so that anybody gets the same files; a test compares them.
"""

from __future__ import annotations

from pathlib import Path

from scheduler import CostGraph, compare, frontier, solve
from scheduler.memory import costs_from_shape, load_shape
from scheduler.plans.pictures import strip_picture, timeline_picture

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
LLAMA, SEQUENCE, BUDGET = "llama-3-8b", 8192, "33GiB"
NESTED, TIGHT = "densenet121", "345MB"


def pictures() -> dict[str, str]:
    """The SVG text of each picture by its file's name."""
    costs = costs_from_shape(load_shape(LLAMA), batch=1, sequence=SEQUENCE, options=True)
    plan = solve(costs, budget=BUDGET)
    nested = solve(CostGraph.example(NESTED), budget=TIGHT)
    return {
        "timeline.svg": timeline_picture(plan),
        "curve.svg": frontier(costs).picture(plan, compare(costs, budget=BUDGET)),
        "strip.svg": strip_picture(nested, NESTED),
    }


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pictures().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"wrote {FOLDER / name}")


if __name__ == "__main__":
    main()
