"""What one of several processes keeps of a block that they share, beside what is said of it.

Llama and GPT-NeoX blocks of transformers under torch's tensor and sequence parallelism
(``torch.distributed.tensor.parallel``), FSDP2 on top in the last ones; gloo, CPU. Bytes. Then what
is published of whole runs: GiB of Megatron's GPTs (Korthikanti et al., figures 1 and 7), and the
largest reserved memory that torchtitan printed (benchmarks/llama3_h100_202412_torchtitan.md, every
block checkpointed), which holds what the allocator has and no tensor. Nothing is asserted.
"""

from __future__ import annotations

import os
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from chains import table
from memory_figures import step_every_layer

from scheduler.memory import Recipe, load_shape, training_state
from scheduler.memory.fitting.training import Training
from scheduler.memory.gpus import load_gpu
from tests.memory.parallel_blocks import CONFIGS, Case, measured
from tests.memory.test_parallel import EIGHT, MEGATRON

CASES = (
    *(Case(kind, tensor) for kind in CONFIGS for tensor in (2, 4)),
    *(Case(kind, 4, scattered=False) for kind in CONFIGS),
    *(Case(kind, 2, precision="fp32") for kind in CONFIGS),
    *(Case(kind, 2, data=2) for kind in CONFIGS),
)
_GIB = 2**30
_LONG = {1: 83.9, 2: 84.2, 4: 84.0, 8: 84.5}
"""Llama-3-8B over 8 GPUs, 32,768 tokens on each, by the degree of context parallelism."""


def _run(rank: int, count: int, found: Any) -> None:
    """Measure the cases of so many processes."""
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29533")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=count)
    for place, case in enumerate(CASES):
        if case.tensor * case.data == count:
            found[place, rank] = measured(case, rank)
    dist.destroy_process_group()


def _published() -> list[tuple[str, float, float]]:
    """What is published, what, and what is said of it, in GiB."""
    rows = []
    for one in MEGATRON:
        name = f"GPT {one.shape.parameters / 1e9:.0f}B"
        degrees = EIGHT | {"pipeline_parallel": one.stages}
        state = training_state(one.shape.parameters, gradient_dtype="fp32", **degrees)
        rows.append((f"{name}: state", one.state, state.total_bytes / _GIB))
        both = one.kept(sequence_parallel=True, selective=True)
        rows.append((f"{name}: activations", one.everything, one.kept()))
        rows.append((f"{name}: sequence parallel, selective", one.selective, both))
    small, large, gpu = load_shape("llama-3-8b"), load_shape("llama-3-70b"), load_gpu("h100")
    for degree, size in _LONG.items():
        training = Training(small, gpu, Recipe(zero="fsdp", gpus=8, context_parallel=degree))
        said = step_every_layer(training, 1, 32768 * degree)
        rows.append((f"torchtitan, 8B, CP {degree}", size, said / _GIB))
    recipe = Recipe(zero="fsdp", gpus=256, tensor_parallel=8, sequence_parallel=True)
    said = step_every_layer(Training(large, gpu, recipe), 16, 8192)
    return [*rows, ("torchtitan, 70B, FSDP 32, TP 8", 71.9, said / _GIB)]


def main() -> None:
    """Print the tables."""
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
    known = _published()
    errors = [said / size - 1 for _, size, said in known]
    lines = [
        [what, f"{size:.2f}", f"{said:.2f}", f"{error:+.2%}"]
        for (what, size, said), error in zip(known, errors, strict=True)
    ]
    lines.append(["median of the errors' sizes", "", "", f"{median(map(abs, errors)):.2%}"])
    print("\n" + table(["published", "GiB", "said", "error"], lines))


if __name__ == "__main__":
    main()
