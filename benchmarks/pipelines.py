"""What torch.distributed.pipelining holds, beside what `solvers.pipeline` says of its runtime.

Residual blocks of an MLP, three a stage, one process a stage (gloo, CPU); the peak of the second
step, without what was made in the first and is never let go. In activations; nothing is asserted.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from chains import table
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from scheduler import Plan, solve
from scheduler.pipeline import RUNTIMES
from scheduler.pytorch import apply, profile
from scheduler.pytorch.observe.tracker import MemoryTracker
from solvers.pipeline.problem import SCHEDULES, Pipeline
from solvers.pipeline.replay import replay
from solvers.schedule import Checkpoint, Item, Items, Keep

WIDTH, TOKENS, BLOCKS = 16, 4096, 3
ACTIVATION = TOKENS * WIDTH * 4
KEEP = tuple(Keep(i) for i in range(BLOCKS))
AGAIN = tuple(Checkpoint(i, i, (Keep(i),)) for i in range(BLOCKS))
MIXED = (AGAIN[0], KEEP[1], AGAIN[2])
CASES: tuple[tuple[int, int, str, tuple[Item, ...]], ...] = (
    (2, 2, "1f1b", KEEP),
    (2, 3, "1f1b", KEEP),
    (3, 4, "1f1b", KEEP),
    (3, 6, "1f1b", KEEP),
    (2, 4, "gpipe", KEEP),
    (3, 4, "1f1b", AGAIN),
    (3, 6, "1f1b", MIXED),
)


class Block(nn.Module):
    """A residual MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As its name says."""
        made: torch.Tensor = x + self.down(F.gelu(self.up(x)))
        return made


def _loss(out: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(out, torch.zeros_like(out))


def _stage(
    rank: int, stages: int, count: int, schedule: str, plan: Plan | None, peaks: Any
) -> None:
    """Run two steps of one stage, and put down the peak of the second."""
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29511")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=stages)
    model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    if plan is not None and rank == 0:
        apply(plan, model)
    kind = Schedule1F1B if schedule == "1f1b" else ScheduleGPipe
    stage = PipelineStage(model, rank, stages, torch.device("cpu"))
    run = kind(stage, count, loss_fn=F.mse_loss)
    data = torch.randn(count * TOKENS, WIDTH)
    given = (data,) if rank == 0 else ()
    target: dict[str, Any] = {"target": data} if rank == stages - 1 else {}
    run.step(*given, return_outputs=False, **target)
    with MemoryTracker() as tracker:
        run.step(*given, return_outputs=False, **target)
    peaks[rank] = tracker.peak_bytes
    dist.destroy_process_group()


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    model = nn.Sequential(*(Block() for _ in range(3 * BLOCKS)))
    costs = profile(model, torch.randn(TOKENS, WIDTH), _loss)
    one = replace(costs, layers=costs.layers[:BLOCKS])
    rows = []
    for stages, count, schedule, items in CASES:
        plan = replace(solve(one, budget="1TB"), schedule=Items(items))
        with mp.Manager() as manager:
            peaks = manager.dict()
            given = stages, count, schedule, plan, peaks
            mp.spawn(_stage, given, nprocs=stages)  # type: ignore[attr-defined,no-untyped-call]
            measured = [peaks[rank] for rank in range(stages)]
        chain = costs.to_chain()
        chain = replace(chain, layers=chain.layers[: BLOCKS * stages])
        pipeline = Pipeline(
            chain,
            (0,) * len(chain),
            (10**12,) * stages,
            SCHEDULES[schedule](stages, count),
            runtime=RUNTIMES["torch"],
        )
        cuts = [BLOCKS * s for s in range(stages + 1)]
        done = replay(pipeline, cuts, [items, *[KEEP] * (stages - 1)])
        for rank, stage in enumerate(done):
            # Made in the first step: what is received, of inputs and of gradients.
            before = count * ACTIVATION * (2 if rank < stages - 1 else 1)
            said = stage.peak_bytes - before
            what = "keep all" if rank or items == KEEP else "again" if items == AGAIN else "mixed"
            rows.append(
                [
                    f"{stages}, {count}, {schedule}",
                    str(rank),
                    what,
                    f"{measured[rank] / ACTIVATION:.1f}",
                    f"{said / ACTIVATION:.1f}",
                    f"{(said - measured[rank]) / ACTIVATION:+.1f}",
                ]
            )
    print(table(["stages, microbatches", "rank", "plan", "measured", "said", "more"], rows))


if __name__ == "__main__":
    main()
