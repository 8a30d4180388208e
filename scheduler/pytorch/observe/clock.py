"""Time what runs: by the clock on real tensors, by a roofline on fake ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

import torch
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from scheduler.memory.gpus import Gpu, load_gpu
from scheduler.pytorch.observe.dispatch import OperationMode, tensors_of

Result = TypeVar("Result")


@dataclass(frozen=True)
class Roofline:
    """A machine that takes the longer of arithmetic and memory traffic for each operation.

    The default is an A100-class GPU at about half its peak: 312 TFLOP/s in bf16 and 2.0 TB/s
    (NVIDIA A100 datasheet). Only ratios between layers matter to a plan.

    Attributes
    ----------
    flops_per_second, bytes_per_second
        What it sustains.
    wide_flops_per_second
        What it sustains on numbers of more than 16 bits. Default: the same.
    """

    flops_per_second: float = 156e12
    bytes_per_second: float = 1.5e12
    wide_flops_per_second: float | None = None

    @classmethod
    def of(cls, gpu: str | Gpu) -> Roofline:
        """A named GPU, at the shares of its data sheet's peaks that `Gpu` documents.

        fp32 products are taken for TF32, where there is one.

        Raises
        ------
        InvalidRecipe
            No GPU has this name; the nearest and all names are said.
        """
        machine = load_gpu(gpu)
        flops = machine.sustained_flops
        return cls(flops, machine.sustained_bandwidth, flops * machine.fp32_share)

    def seconds(
        self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> float:
        """What an operation takes on it, by the shapes of what it is given and makes."""
        if not _touches_data(operation):
            return 0.0
        moved = sum(t.numel() * t.element_size() for t in tensors_of((args, kwargs, result)))
        made = tensors_of(result)
        wide = self.wide_flops_per_second if made and made[0].element_size() > 2 else None
        rate = self.flops_per_second if wide is None else wide
        return max(flops(operation, args, kwargs, result) / rate, moved / self.bytes_per_second)


class Clock:
    """Marks in time on real tensors; `between` two marks is in milliseconds."""

    warming, repeats = 1, 3

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"

    def mark(self) -> Any:
        """A point in time on the device."""
        if not self._cuda:
            return time.perf_counter()
        # The host's clock would time the launch of the kernels, not the kernels.
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, start: Any, end: Any) -> float:
        """Milliseconds from one mark to another."""
        if not self._cuda:
            return float(end - start) * 1e3
        end.synchronize()
        return float(start.elapsed_time(end))

    def running(self) -> AbstractContextManager[Any]:
        """A context to run in what is to be timed."""
        return nullcontext()

    def repeated(self, run: Callable[[], Result]) -> list[Result]:
        """What `run` gives each time that it counts."""
        results = []
        for _ in range(self.warming + self.repeats):
            with self.running():
                results.append(run())
        return results[self.warming :]


def spread(*times: Sequence[float]) -> float:
    """By which share repeated runs were longer or shorter, with all times of a run added up."""
    runs = [sum(run) for run in zip(*times, strict=True)]
    middle = median(runs)
    return (max(runs) - min(runs)) / 2 / middle if middle else 0.0


class RooflineClock(Clock):
    """A clock for fake tensors: it advances by each operation's roofline time."""

    warming, repeats = 0, 1  # by a roofline nothing gets warm

    def __init__(self, roofline: Roofline) -> None:
        super().__init__(torch.device("cpu"))
        self._mode = _RooflineMode(roofline)

    def mark(self) -> Any:
        """The seconds so far."""
        return self._mode.seconds

    def running(self) -> AbstractContextManager[Any]:
        """A context to run in what is to be timed."""
        return self._mode


class _RooflineMode(OperationMode):
    def __init__(self, roofline: Roofline) -> None:
        super().__init__()
        self.seconds = 0.0
        self._roofline = roofline

    def _operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        self.seconds += self._roofline.seconds(func, args, kwargs, result)
        return result


def _touches_data(operation: Any) -> bool:
    """Whether it does: views and questions about a tensor do not."""
    if getattr(operation, "is_view", False) or getattr(operation, "namespace", "") == "prim":
        return False
    # Its schema says that it makes a tensor, and it looks into the one that it is given.
    return getattr(operation, "_overloadpacket", None) is not torch.ops.aten._unsafe_view


def flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> float:
    """Floating-point operations of an operation, by the shapes of what it took and gave.

    torch's own formulas (`torch.utils.flop_counter`), and attention on the CPU, which those leave
    out; 0 for what is in neither.
    """
    packet = getattr(func, "_overloadpacket", None)
    if packet in flop_registry:
        return float(flop_registry[packet](*args, **kwargs, out_val=result))
    name = getattr(packet, "__name__", "")
    if name == "_scaled_dot_product_flash_attention_for_cpu":
        return float(sdpa_flop_count(*(tensor.shape for tensor in args[:3])))
    if name == "_scaled_dot_product_flash_attention_for_cpu_backward":
        # Five products where the forward has two: the scores are made again.
        return 2.5 * float(sdpa_flop_count(*(tensor.shape for tensor in args[1:4])))
    return 0.0
