"""What one of several processes keeps of a block that they share, beside what is said of it.

Llama and GPT-NeoX blocks of transformers under torch's tensor and sequence parallelism
(``torch.distributed.tensor.parallel``), FSDP2 on top in the last ones; gloo, CPU. Bytes; nothing is
asserted.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from chains import table

from tests.memory.parallel_blocks import CONFIGS, Case, measured

CASES = (
    *(Case(kind, tensor) for kind in CONFIGS for tensor in (2, 4)),
    *(Case(kind, 4, scattered=False) for kind in CONFIGS),
    *(Case(kind, 2, precision="fp32") for kind in CONFIGS),
    *(Case(kind, 2, data=2) for kind in CONFIGS),
)


def _run(rank: int, count: int, found: Any) -> None:
    """Measure the cases of so many processes."""
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29533")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=count)
    for place, case in enumerate(CASES):
        if case.tensor * case.data == count:
            found[place, rank] = measured(case, rank)
    dist.destroy_process_group()


def main() -> None:
    """Print the table."""
    with mp.Manager() as manager:
        found = manager.dict()
        for count in (2, 4):
            mp.spawn(_run, (count, found), nprocs=count)  # type: ignore[attr-defined,no-untyped-call]
        seen = dict(found)
    rows = []
    for place, case in enumerate(CASES):
        each = {size for (at, _), size in seen.items() if at == place}
        how = "tokens too" if case.scattered else "features"
        shared = f"{how}, FSDP2 over {case.data}" if case.data > 1 else how
        kept = ", ".join(f"{size:,}" for size in sorted(each))
        rows.append([case.kind, case.precision, str(case.tensor), shared, kept, f"{case.said:,}"])
    print(table(["block", "in", "GPUs", "shared", "measured", "said"], rows))


if __name__ == "__main__":
    main()
