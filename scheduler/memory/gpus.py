"""Named GPUs: what they compute, move and hold, by their data sheets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from scheduler.common.checks import plain
from scheduler.common.text import shown
from scheduler.memory.errors import Argument, InvalidRecipe, check_choice

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, by its data sheet and by the share of it that training reaches.

    Attributes
    ----------
    name
        What it is called here.
    flops_per_second
        Peak dense bf16 FLOP/s with fp32 accumulation, without sparsity. TF32, which fp32
        products take where ``torch.set_float32_matmul_precision("high")`` allows it, has half of
        it on each of these GPUs.
    bytes_per_second
        Peak memory bandwidth.
    sold_bytes
        Memory as sold.
    usable_bytes
        Memory that CUDA gives to programs, what ``torch.cuda.mem_get_info`` calls total: an
        estimate, see `GPUS`. A CUDA context takes some hundred MiB more of it.
    flops_efficiency, bandwidth_efficiency
        Shares of the two peaks that a step sustains. Half of the peak FLOP/s is what well tuned
        training reaches (PaLM, arXiv:2204.02311, reports 46% with, Megatron-LM, arXiv:2104.04473,
        52% of an A100's); element-wise kernels reach about 0.8 of the bandwidth. Only ratios
        between layers matter to a plan.
    """

    name: str
    flops_per_second: float
    bytes_per_second: float
    sold_bytes: int
    usable_bytes: int
    flops_efficiency: float = 0.5
    bandwidth_efficiency: float = 0.8

    def __post_init__(self) -> None:
        for field in ("flops_efficiency", "bandwidth_efficiency"):
            value = plain(getattr(self, field))
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
                what = Argument(field, of=f" of {self.name}")
                raise InvalidRecipe(what, f" must be above 0 and at most 1, got {shown(value)}")
            object.__setattr__(self, field, float(value))

    @property
    def sustained_flops(self) -> float:
        """bf16 FLOP/s that a step sustains."""
        return self.flops_per_second * self.flops_efficiency

    @property
    def sustained_bandwidth(self) -> float:
        """Bytes a second that a step sustains."""
        return self.bytes_per_second * self.bandwidth_efficiency

    def at(self, efficiency: float | tuple[float, float] | None) -> Gpu:
        """The same GPU at another share of its peak FLOP/s, or of FLOP/s and bandwidth."""
        if efficiency is None:
            return self
        if isinstance(efficiency, tuple):
            if len(efficiency) != 2:
                raise InvalidRecipe(
                    Argument("efficiency"),
                    " must be a share of the peak FLOP/s, or a pair of shares of FLOP/s and "
                    f"bandwidth, got {shown(efficiency)}",
                )
            flops, bandwidth = efficiency
            return replace(self, flops_efficiency=flops, bandwidth_efficiency=bandwidth)
        return replace(self, flops_efficiency=efficiency)


def _gpu(name: str, tera_flops: float, giga_bytes: float, sold_gb: int, gib: float) -> Gpu:
    return Gpu(name, tera_flops * 1e12, giga_bytes * 1e9, sold_gb * 10**9, ceil(gib * _GIB))


GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("a100-40", 312, 1555, 40, 39.4),
        _gpu("a100-80", 312, 2039, 80, 79.2),
        _gpu("h100", 989.4, 3350, 80, 79.2),
        _gpu("h200", 989.4, 4800, 141, 139.8),
        _gpu("l40s", 362.05, 864, 48, 44.4),
        _gpu("rtx4090", 165.2, 1008, 24, 23.5),
        _gpu("b200", 2250, 7700, 180, 178.3),
    )
}
"""The GPUs by name.

Peak bf16 FLOP/s are dense, half of what a data sheet prints with sparsity. From NVIDIA's documents,
compared in November 2026 with reprints of them (resellers' tables, notes that quote them; the PDFs
themselves could not be fetched):

=======  =================  ===============================================  ===================
name     form               source                                           dense | with sparsity
=======  =================  ===============================================  ===================
a100-40  SXM (PCIe equal)   A100 Tensor Core GPU data sheet; 1,555 GB/s      312 | 624 TFLOPS
a100-80  SXM                the same; 2,039 GB/s (PCIe 1,935)                312 | 624 TFLOPS
h100     SXM5               H100 Tensor Core GPU data sheet; 3.35 TB/s       989.4 | 1,979 TFLOPS
h200     SXM                H200 Tensor Core GPU data sheet; 4.8 TB/s        989.4 | 1,979 TFLOPS
l40s     PCIe card          L40S data sheet; 864 GB/s                        362.05 | 733 TFLOPS
rtx4090  PCIe card          Ada GPU architecture white paper; 1,008 GB/s     165.2 | 330.3 TFLOPS
b200     SXM, of HGX B200   HGX B200 platform page; 180 GB, 7.7 TB/s         2.25 | 4.5 PFLOPS
=======  =================  ===============================================  ===================

The H100 for PCIe is slower (756 TFLOPS, 2 TB/s); the H200 NVL has 835 TFLOPS. The B200 was
announced with 192 GB and 8 TB/s; drivers report 7.67 TB/s (pytorch/ao#4002), and in a GB200 it does
2.5 PFLOPS.

Memory as usable is no data-sheet figure but an estimate, to a tenth of a GiB: the total that
torch's out-of-memory messages in public bug reports give for such cards. In GiB: A100-40 39.38 to
39.59, 80 GB cards 79.14 to 79.25, H200 139.72 to 139.81, L40S 44.39 to 44.53, RTX 4090 23.52 to
23.65, B200 178.35. Driver, MIG and error correction change it: ``torch.cuda.mem_get_info()[1]`` of
your card, given as the budget, is exact.
"""


def load_gpu(name: str | Gpu) -> Gpu:
    """A GPU by name; a `Gpu` is returned as it is.

    Raises
    ------
    InvalidRecipe
        No GPU has this name; the nearest and all names are said.
    """
    if isinstance(name, Gpu):
        return name
    wanted = name.strip().lower() if isinstance(name, str) else name
    others = ("; for another GPU give the memory that it has as ", Argument("budget"))
    return GPUS[check_choice(Argument("gpu"), wanted, GPUS, InvalidRecipe, *others)]
