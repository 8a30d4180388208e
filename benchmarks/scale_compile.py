"""`compile_budget` on models of many layers, beside torch's own solvers on the same joint graph.

The model is traced as torch.compile does it and nothing runs: what torch's solvers would save is
played (tests/pytorch/compile hold that play to what torch's allocator measures). First, for
budgets that are shares of keep-all's peak: seconds to choose, what runs again as a share of the
forward's time, what is proven. Then each of torch's solvers at its own shares: seconds, its peak,
what it runs again, and what ours does with that peak as its budget; the last two columns are the
same of the FLOPs that torch counts, which are all that its solvers minimise. Seconds are the CPU's.

    PYTHONPATH=. python benchmarks/scale_compile.py [LAYERS ...] [--torch SHARE ...] [--solvers S …]

With `--picture FILE`, docs/howto/compile.svg: LAYERS 32, `--torch 0.7 0.5 0.4 0.3 0.2 0.1 0.05 0`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._functorch import config, partitioners

from scheduler.common.text import format_bytes
from scheduler.plans.pictures import WIDTH
from scheduler.pytorch import Roofline
from scheduler.pytorch.compile.answer import Answer, choose
from scheduler.pytorch.compile.choice import StepChoice, StepGraph, front, play
from scheduler.pytorch.compile.joint import Joint, read_joint
from scheduler.pytorch.compile.layered import Layered
from scheduler.report.curve import Curve, Mark
from scheduler.report.svg import svg
from scheduler.report.tables import aligned, format_percent
from tests.pytorch.compile.test_compile_budget import BACKEND, Decoder

SHARES = (0.8, 0.5, 0.3)
SOLVERS = ("dp", "ilp", "greedy")
_FEMTO = 1e12  # a millisecond's


class _Traced(Exception):
    """There is no need to go on."""


def traced(layers: int, look: Any) -> None:
    """Call `look` with the joint graph of a model, and torch's knowledge of it."""
    torch.manual_seed(0)
    before = partitioners.choose_saved_values_set

    def looking(graph: Any, info: Any, memory_budget: float = 1) -> None:
        look(graph, info)
        raise _Traced

    partitioners.choose_saved_values_set = looking  # type: ignore[assignment]
    torch._dynamo.reset()
    try:
        compiled = torch.compile(Decoder(layers, width=64, words=256), backend=BACKEND)
        compiled(torch.randint(0, 256, (8, 128)))
    except Exception as error:
        if not isinstance(getattr(error, "inner_exception", error), _Traced):
            raise
    finally:
        partitioners.choose_saved_values_set = before


def timed(step: StepGraph, budget: int) -> tuple[Answer, float]:
    """The answer, and its seconds."""
    start = time.process_time()
    answer = choose(step, budget, 2.0)
    return answer, time.process_time() - start


def own(joint: Joint, graph: Any, info: Any, solver: str, share: float) -> tuple[StepChoice, float]:
    """What one of torch's solvers chooses, and its seconds."""
    start = time.process_time()
    with config.patch(activation_memory_budget_solver=solver):
        saved = partitioners.choose_saved_values_set(graph, info, share)
    seconds = time.process_time() - start
    return play(joint.step, joint.keeping(saved)), seconds


def rows(layers: int, shares: list[float], solvers: list[str]) -> Iterator[list[str]]:
    """Of the table."""
    lines: list[list[str]] = []
    torch_choice = partitioners.choose_saved_values_set

    def look(graph: Any, info: Any) -> None:
        start = time.process_time()
        joint = read_joint(graph, info, Roofline(), outputs_held=True)
        reading = time.process_time() - start
        counted = read_joint(graph, info, partitioners.estimate_runtime, outputs_held=True)
        step = joint.step
        top = play(step, step.free).peak_bytes

        def again(of: StepGraph, choice: StepChoice) -> str:
            return format_percent(sum(of.early[i].time for i in choice.again) / of.forward_time)

        for share in SHARES:
            answer, seconds = timed(step, int(top * share))
            gap = answer.choice.again_time / answer.least_time - 1
            ours = [f"{reading + seconds:.1f}", format_bytes(int(top * share)), ""]
            proven = "optimal" if answer.proven else f"gap {format_percent(gap)}"
            lines.append(
                [
                    str(layers),
                    f"ours, {share:g} of keep-all",
                    *ours,
                    again(step, answer.choice),
                    proven,
                ]
            )
        partitioners.choose_saved_values_set = torch_choice
        for share in shares:
            for solver in solvers:
                theirs, seconds = own(joint, graph, info, solver, share)
                quickest = choose(step, theirs.peak_bytes, 2.0).choice
                flops = choose(counted.step, theirs.peak_bytes, 2.0).choice
                lines.append(
                    [
                        str(layers),
                        f"{solver} at {share:g}",
                        f"{seconds:.1f}",
                        format_bytes(theirs.peak_bytes),
                        again(step, theirs),
                        again(step, quickest),
                        "",
                        again(counted.step, theirs),
                        again(counted.step, flops),
                    ]
                )
                print(*lines[-1], file=sys.stderr, flush=True)

    traced(layers, look)
    yield from lines


def picture(layers: int, shares: Sequence[float]) -> str:
    """SVG of our choices at all budgets, and of torch's dp at these shares."""
    curves: list[Curve] = []
    torch_choice = partitioners.choose_saved_values_set

    def look(graph: Any, info: Any) -> None:
        partitioners.choose_saved_values_set = torch_choice
        joint = read_joint(graph, info, Roofline(), outputs_held=True)
        step = joint.step
        everything = play(step, step.free)
        layered = Layered.of(step)
        assert layered is not None
        budgets = [everything.peak_bytes * k // 200 for k in range(1, 200)]
        found = [choice for budget in budgets if (choice := layered.choice(budget))]
        once = sum(op.time for op in (*step.early, *step.late))

        def takes(choice: StepChoice) -> float:
            return (once + choice.again_time) / _FEMTO

        theirs = {share: own(joint, graph, info, "dp", share)[0] for share in shares}
        curves.append(
            Curve(
                name=f"torch.compile, {layers} layers",
                points=[(c.peak_bytes, takes(c)) for c in front([*found, everything])],
                points_are="plans of compile_budget",
                is_exact=False,
                bounds=(),
                others=[Mark(f"dp {s:g}", c.peak_bytes, takes(c)) for s, c in theirs.items()],
                plan=None,
                bound_time=None,
                keep_all_time=takes(everything),
                time_unit="ms",
                budget_bytes=None,
                reserved_bytes=0,
            )
        )

    traced(layers, look)
    return svg(curves[0], WIDTH)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("layers", nargs="*", type=int, default=[8, 32, 80])
    parser.add_argument("--torch", nargs="*", type=float, default=[0.7, 0.5, 0.3, 0.1])
    parser.add_argument("--solvers", nargs="*", default=list(SOLVERS))
    parser.add_argument("--picture", type=Path, help="draw the first of LAYERS there, by dp")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.picture:
        args.picture.write_text(picture(args.layers[0], args.torch), encoding="utf-8")
        return
    head = ["layers", "choice", "s", "peak", "again", "ours", "", "FLOPs", "ours"]
    lines = [row for layers in args.layers for row in rows(layers, args.torch, args.solvers)]
    print("\n".join(aligned([head, *([*row, "", ""][:9] for row in lines)], left=2)))


if __name__ == "__main__":
    main()
