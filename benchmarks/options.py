"""What selective checkpoints inside blocks are worth, beside whole blocks, by-hand choices, torch.

Four tables: Llama-3-8B and 70B by their shapes; the small models of the suite by their profiles;
real steps of some of them on the CPU; and torch's own planners (sac_ilp, which needs the extra
`bench`, and the compile budget) at the same measured peak. Ends with 1 where options lose.

    PYTHONPATH=. python benchmarks/options.py [--quick]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import TypeVar

import options_shapes
import options_suite
import options_torch
import torch

_Result = TypeVar("_Result")


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer budgets and models")
    quick: bool = parser.parse_args().quick
    torch.set_num_threads(1)
    suite = _timed("the suite", lambda: options_suite.look(quick))
    sections = {
        "Shapes: overhead at shares of keep-all's activations": lambda: "\n\n".join(
            options_shapes.tables(quick)
        ),
        "The suite, by its profiles: overhead": lambda: options_suite.predicted(suite),
        "Measured on the CPU": lambda: options_suite.measured(suite),
        "torch's own planners": lambda: options_torch.table(quick),
    }
    for title, section in sections.items():
        print(f"## {title}\n\n{_timed(title, section)}\n", flush=True)
    return 1 if suite.wrong else 0


def _timed(title: str, work: Callable[[], _Result]) -> _Result:
    start = time.perf_counter()
    result = work()
    print(f"{title}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main())
