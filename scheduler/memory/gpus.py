"""Named GPUs: what they compute, move and hold, by their data sheets."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import ceil, isfinite

from scheduler.common.checks import plain
from scheduler.common.errors import InvalidBudget
from scheduler.common.text import shown
from scheduler.common.units import parse_bytes
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
        Peak dense bf16 FLOP/s with fp32 accumulation, without sparsity.
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
    fp32_share
        FLOP/s of fp32 products, as a share of bf16's: half on GPUs with TF32, which they take where
        ``torch.set_float32_matmul_precision("high")`` allows it.
    link_bytes_per_second, network_bytes_per_second
        What a GPU sends to others of its machine, and to those of other machines, at most: see
        `LINKS`. Of both `link_efficiency` is sustained: NCCL's own tests print 350 to 370 GB/s of
        an H100's 450.
    machine
        GPUs in a machine.
    """

    name: str
    flops_per_second: float
    bytes_per_second: float
    sold_bytes: int
    usable_bytes: int
    flops_efficiency: float = 0.5
    bandwidth_efficiency: float = 0.8
    fp32_share: float = 0.5
    link_bytes_per_second: float = 32e9
    network_bytes_per_second: float = 12.5e9
    link_efficiency: float = 0.8
    machine: int = 8

    def __post_init__(self) -> None:
        for field in ("flops_efficiency", "bandwidth_efficiency", "fp32_share", "link_efficiency"):
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

    def sustained_link(self, *, far: bool) -> float:
        """Bytes a second that it sends to others of its machine, or `far` outside."""
        peak = self.network_bytes_per_second if far else self.link_bytes_per_second
        return peak * self.link_efficiency

    def is_far(self, group: int) -> bool:
        """Whether a group of so many GPUs is more than a machine has."""
        return group > self.machine

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


def _gpu(
    name: str,
    tera_flops: float,
    giga_bytes: float,
    sold_gb: int,
    gib: float,
    fp32_share: float = 0.5,
) -> Gpu:
    usable = ceil(gib * _GIB)
    speeds = tera_flops * 1e12, giga_bytes * 1e9
    link, network = (giga * 1e9 for giga in LINKS.get(name, _PCIE))
    made = Gpu(name, *speeds, sold_gb * 10**9, usable, fp32_share=fp32_share)
    return replace(made, link_bytes_per_second=link, network_bytes_per_second=network)


_PCIE = (32, 12.5)
LINKS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("a100-40", "a100-80"), (300, 25)),
    **dict.fromkeys(("h100", "h200", "h200-nvl"), (450, 50)),
    "h100-nvl": (300, 50),
    **dict.fromkeys(("b200", "gb200"), (900, 50)),
    "b300": (900, 100),
    **dict.fromkeys(("mi300x", "mi325x"), (448, 50)),
    **dict.fromkeys(("mi350x", "mi355x"), (537, 50)),
    "gaudi2": (262.5, 37.5),
    "gaudi3": (525, 75),
}
"""GB a second, one way, to the GPUs of the same machine, and to those of others.

Half of what data sheets print for NVLink (A100 600, H100 900, its NVL pairs 600, B200 1,800) and
Infinity Fabric (MI300X 896, MI350X 1,075); of Gaudi the ports inside a machine, 21 of 24. The
network is one port a GPU of the vendor's reference machine: 200 Gbit/s (DGX A100), 400 (DGX H100,
B200), 800 (B300). All others: PCIe 4.0 × 16 and 100 Gbit/s.
"""

GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("a100-40", 312, 1555, 40, 39.4),
        _gpu("a100-80", 312, 2039, 80, 79.2),
        _gpu("a10", 125, 600, 24, 22.0),
        _gpu("a10g", 70, 600, 24, 22.0),
        _gpu("a30", 165, 933, 24, 23.5),
        _gpu("a40", 149.7, 696, 48, 44.3),
        _gpu("rtx-a4000", 76.7, 448, 16, 15.4),
        _gpu("rtx-a5000", 111.1, 768, 24, 23.5),
        _gpu("rtx-a6000", 154.8, 768, 48, 47.4),
        _gpu("rtx3060", 25.5, 360, 12, 11.7),
        _gpu("rtx3080", 59.5, 760, 10, 9.7),
        _gpu("rtx3090", 71, 936, 24, 23.5),
        _gpu("rtx3090ti", 80, 1008, 24, 23.5),
        _gpu("l4", 121, 300, 24, 22.0),
        _gpu("l40", 181.05, 864, 48, 44.3),
        _gpu("l40s", 362.05, 864, 48, 44.4),
        _gpu("rtx-6000-ada", 364.2, 960, 48, 47.4),
        _gpu("rtx4060ti-16", 44.1, 288, 16, 15.4),
        _gpu("rtx4070", 58.3, 504, 12, 11.7),
        _gpu("rtx4070ti", 80.2, 504, 12, 11.7),
        _gpu("rtx4070ti-super", 88.2, 672, 16, 15.4),
        _gpu("rtx4080", 97.5, 717, 16, 15.4),
        _gpu("rtx4080-super", 104.4, 736, 16, 15.4),
        _gpu("rtx4090", 165.2, 1008, 24, 23.5),
        _gpu("h100", 989.4, 3350, 80, 79.2),
        _gpu("h100-pcie", 756, 2000, 80, 79.1),
        _gpu("h100-nvl", 835, 3900, 94, 93.0),
        _gpu("h200", 989.4, 4800, 141, 139.8),
        _gpu("h200-nvl", 835, 4800, 141, 139.7),
        _gpu("b200", 2250, 7700, 180, 178.3),
        _gpu("gb200", 2500, 8000, 186, 184.3),
        _gpu("b300", 2250, 8000, 288, 267.6),
        _gpu("rtx-pro-6000", 503.8, 1792, 96, 94.9),
        _gpu("rtx5060ti-16", 47.4, 448, 16, 15.4),
        _gpu("rtx5070", 61.7, 672, 12, 11.7),
        _gpu("rtx5070ti", 87.9, 896, 16, 15.4),
        _gpu("rtx5080", 112.6, 960, 16, 15.4),
        _gpu("rtx5090", 209.5, 1792, 32, 31.3),
        _gpu("mi210", 181, 1638, 64, 63.9, 1 / 4),
        _gpu("mi250", 181, 1638, 64, 63.9, 1 / 4),
        _gpu("mi250x", 191.5, 1638, 64, 63.9, 1 / 4),
        _gpu("mi300x", 1307.4, 5300, 192, 191.6),
        _gpu("mi325x", 1307.4, 6000, 256, 255.6),
        _gpu("mi350x", 2306.9, 8000, 288, 287.9, 1 / 16),
        _gpu("mi355x", 2516.6, 8000, 288, 287.9, 1 / 16),
        _gpu("gaudi2", 432, 2460, 96, 94.6),
        _gpu("gaudi3", 1835, 3670, 128, 126.0),
    )
}
"""The GPUs by name.

Peak bf16 FLOP/s are dense, half of what a data sheet prints with sparsity, and accumulated in fp32.
From the vendors' documents, compared in November 2026 with reprints of them (resellers' tables,
tables of training libraries and notes that quote them; the PDFs themselves could not be fetched).
In TFLOPS:

============  ==================  =============================================  =================
name          form                source                                         dense | sparse
============  ==================  =============================================  =================
a100-40       SXM (PCIe equal)    A100 data sheet; 1,555 GB/s                    312 | 624
a100-80       SXM                 the same; 2,039 GB/s (PCIe 1,935)              312 | 624
a10           PCIe card           A10 data sheet; 600 GB/s                       125 | 250
a10g          AWS G5              A10G data sheet; 600 GB/s                      70 | 140
a40           PCIe card           A40 data sheet; 696 GB/s                       149.7 | 299.4
rtx-a6000     PCIe card           GA102 white paper; 768 GB/s                    154.8 | 309.7
rtx3090       PCIe card           the same; 936 GB/s                             71 | 142
l4            PCIe card           L4 data sheet; 300 GB/s                        121 | 242
l40           PCIe card           L40 data sheet; 864 GB/s                       181.05 | 362.1
l40s          PCIe card           L40S data sheet; 864 GB/s                      362.05 | 733
rtx-6000-ada  PCIe card           RTX 6000 Ada data sheet; 960 GB/s              364.2 | 728.5
rtx4080       PCIe card           Ada GPU architecture white paper; 716.8 GB/s   97.5 | 194.9
rtx4090       PCIe card           the same; 1,008 GB/s                           165.2 | 330.3
h100          SXM5                H100 data sheet; 3.35 TB/s                     989.4 | 1,979
h100-pcie     PCIe card, 80 GB    H100 PCIe product brief; 2 TB/s                756 | 1,513
h100-nvl      PCIe card, 94 GB    H100 data sheet, each card; 3.9 TB/s           835 | 1,671
h200          SXM                 H200 data sheet; 4.8 TB/s                      989.4 | 1,979
h200-nvl      PCIe card           the same                                       835 | 1,671
b200          SXM, of HGX B200    HGX platform page; 180 GB, 7.7 TB/s            2,250 | 4,500
gb200         of GB200 NVL72      GB200 NVL72 page, a 72nd; 8 TB/s               2,500 | 5,000
b300          SXM, of HGX B300    HGX platform page, an eighth; 8 TB/s           2,250 | 4,500
rtx-pro-6000  Workstation card    RTX PRO 6000 Blackwell data sheet; 1,792 GB/s  503.8 | 1,007.6
rtx5070ti     PCIe card           RTX Blackwell white paper; 896 GB/s            87.9 | 175.8
rtx5080       PCIe card           the same; 960 GB/s                             112.6 | 225.1
rtx5090       PCIe card           the same; 1,792 GB/s                           209.5 | 419
mi210         PCIe card           CDNA 2 white paper; 1.6 TB/s                   181
mi250         one of its two      the same; half of 3.2 TB/s                     half of 362.1
mi250x        one of its two      the same                                       half of 383
mi300x        OAM                 MI300X data sheet; 5.3 TB/s                    1,307.4 | 2,614.9
mi325x        OAM                 MI325X data sheet; 6 TB/s                      1,307.4 | 2,614.9
mi350x        OAM                 CDNA 4 white paper; 8 TB/s                     2,310 | 4,610
mi355x        OAM                 the same                                       2,520 | 5,030
gaudi2        OAM                 Intel at Hot Chips 2024; 2.46 TB/s             432
gaudi3        OAM                 the same; 3.67 TB/s                            1,835
============  ==================  =============================================  =================

Other GeForce and RTX A cards, of which these do not print it, by the product that gives the printed
ones to the digit: 512 FLOP a clock of an SM, of RTX A twice as many, times SMs, times the boost
clock; the A30, 165 | 330 and 933 GB/s, by its data sheet.

To torch an MI250 is two devices, and so it is here. GeForce cards have twice these FLOP/s where
they accumulate in fp16, which training does not. The RTX PRO 6000's Server Edition has 1.6 TB/s,
its Max-Q 438.9 TFLOPS. The B200 was announced with 192 GB and 8 TB/s; drivers
report 7.67 TB/s (pytorch/ao#4002). MI200's fp32 products have a quarter of bf16's FLOP/s, MI350's,
which has no TF32, a sixteenth; of Gaudi's Intel publishes nothing, and half stands in for it.
Sizes and kernels are those of CUDA: for AMD and Gaudi they are estimates, as nothing was measured
there.

Memory as usable is no data-sheet figure but an estimate, to a tenth of a GiB: the least total that
torch's out-of-memory messages in public bug reports give for cards of that memory. In GiB: A100-40
39.38 to 39.59, 80 GB cards 79.14 to 79.25, H100 NVL 93.02 to 93.11, H200 139.72 to 139.81, L40S
44.39 to 44.53, near which A40 and L40 are taken to be, RTX A6000 and 6000 Ada 47.40 to 47.54, RTX
3090 and 4090 23.52 to 23.65, near which the A30 and A5000 are taken to be, 12 GB cards 11.76, 10 GB
9.78, A10 and L4 22.03 to 22.15, 16 GB cards 15.45 to 15.49, RTX 5090 31.36
to 31.37, RTX PRO 6000 94.97, B200 178.35, GB200 184.31, B300 267.69, MI200 63.98,
MI300X 191.69 to 191.98, MI325X 255.69 to 255.98, MI350 287.98, Gaudi 2 94.62;
Gaudi 3 is taken to have the same share of its memory. Driver, MIG and error correction
change it: ``torch.cuda.mem_get_info()[1]`` of your card, given as the budget, is exact.
"""

_FORM = "memory=80GB,flops=989e12,bandwidth=3.35e12"
_OTHER = f"; describe another GPU as {_FORM}"
_VENDORS = re.compile(r"nvidia|geforce|amd|instinct|intel|sxm\d?|(?<=\d)gb\b|[^a-z0-9]")
_APPLE = re.compile(r"apple.*|mps|mac.*|m[1-9](pro|max|ultra)?")
_LEAST = {"flops": 1e11, "bandwidth": 1e9, "link": 1e8, "network": 1e8}
"""What no GPU is below: TFLOPS or GB a second that were written as they are."""
_NEEDED = ("memory", "flops", "bandwidth")
_LEAST_MEMORY = 10**8


def load_gpu(name: str | Gpu) -> Gpu:
    """A GPU by name, or as ``memory=80GB,flops=989e12,bandwidth=3.35e12``; a `Gpu` as it is.

    "RTX 4090" and "NVIDIA A100-SXM4-80GB" are names too. `flops` and `bandwidth` are peaks a
    second, of dense bf16 products and of bytes. ``link=450e9,network=50e9`` may follow: bytes that
    it sends a second to GPUs of its machine, and to others (see `LINKS`).

    Raises
    ------
    InvalidRecipe
        No GPU has this name, the nearest and all names are said; or a description lacks something.
    """
    if isinstance(name, Gpu):
        return name
    if isinstance(name, str) and "=" in name:
        return _described(name)
    wanted: object = name
    if isinstance(name, str):
        folded = {_folded(each): each for each in GPUS}
        key = _folded(name)
        wanted = folded.get(key) or folded.get(f"rtx{key}") or name.strip().lower()
        if wanted not in GPUS and _APPLE.fullmatch(key):
            raise InvalidRecipe(
                Argument("gpu"),
                f" {shown(name)} is Apple's, whose kernels, and memory shared with the system, are "
                "not what is counted here; name one of NVIDIA, AMD or Gaudi",
            )
        several = [
            each for plain_name, each in folded.items() if key and plain_name.startswith(key)
        ]
        if wanted not in GPUS and len(several) > 1:
            raise InvalidRecipe(
                Argument("gpu"), f" {shown(name)} may be {' or '.join(several)}; name one"
            )
    others = (_OTHER, ", or give the memory that it has as ", Argument("budget"))
    return GPUS[check_choice(Argument("gpu"), wanted, GPUS, InvalidRecipe, *others)]


def _folded(name: str) -> str:
    return _VENDORS.sub("", name.lower())


def _described(text: str) -> Gpu:
    """A GPU that is given by its figures."""
    values: dict[str, str] = {}
    for part in text.split(","):
        key, _, value = (word.strip() for word in part.partition("="))
        if key in values or key not in ("memory", *_LEAST):
            raise InvalidRecipe(Argument("gpu"), f" has a part {shown(part)}; write it as {_FORM}")
        values[key] = value
    for key in _NEEDED:
        if key not in values:
            raise InvalidRecipe(
                Argument("gpu"), f" {shown(text)} has no {key}; write it as {_FORM}"
            )
    try:
        memory = parse_bytes(values["memory"], what="the memory of gpu")
    except InvalidBudget as error:
        raise InvalidRecipe(str(error), argument="gpu") from error
    if memory < _LEAST_MEMORY:
        said = values["memory"]
        near = f"; did you mean {said}GB?" if said.isdecimal() else ""
        raise InvalidRecipe(Argument("gpu"), f" has memory={said}, less than any GPU{near}")
    peaks = {key: _speed(key, values[key]) for key in _LEAST if key in values}
    made = Gpu(text, peaks["flops"], peaks["bandwidth"], memory, memory)
    link, network = made.link_bytes_per_second, made.network_bytes_per_second
    return replace(
        made,
        link_bytes_per_second=peaks.get("link", link),
        network_bytes_per_second=peaks.get("network", network),
    )


def _speed(key: str, text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not isfinite(speed) or speed <= 0:
        raise InvalidRecipe(
            Argument("gpu"), f" has {key}={text}, which is no number a second; write it as {_FORM}"
        )
    if speed < _LEAST[key]:
        unit = "e12" if key == "flops" else "e9"
        raise InvalidRecipe(
            Argument("gpu"), f" has {key}={text}, counted a second; did you mean {text}{unit}?"
        )
    return speed
