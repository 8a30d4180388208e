"""What a trace of torch.profiler says of a model: times by module, and what was allocated."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from scheduler.common.errors import InvalidCosts
from scheduler.common.text import format_bytes, format_time
from scheduler.report.tables import WIDTH, aligned, wrapped

_MODULE = "nn.Module: "
_BACKWARD = "autograd::engine::evaluate_function: "
_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
_MOST = 40
"""Modules that are printed, those of the longest times."""

Path = tuple[str, ...]


@dataclass(slots=True)
class ModuleTime:
    """Times of a module, or of a `record_function`, with all that it calls; in milliseconds.

    All calls together; backwards are those of operations that its forward ran.
    """

    calls: int = 0
    forward: float = 0.0
    backward: float = 0.0


@dataclass(frozen=True, slots=True)
class Trace:
    """What is read from a trace.

    Attributes
    ----------
    modules
        By the modules from the outermost to it, in the profiler's words: a class and a number.
    on_device
        Times are of kernels, and not of the operations that launch them.
    peak_bytes
        The most that torch had allocated, on the device where there is one; None where the profiler
        did not record it (``profile_memory=True``).
    """

    modules: Mapping[Path, ModuleTime]
    on_device: bool
    peak_bytes: int | None

    def text(self, width: int = WIDTH) -> str:
        """A table of the modules, and what else there is and is not."""
        times = {path: one.forward + one.backward for path, one in self.modules.items()}
        kept = sorted(times, key=times.__getitem__, reverse=True)[:_MOST]
        rows: list[tuple[str, ...]] = [("module", "calls", "forward", "backward")]
        for path, one in self.modules.items():
            if path in kept:
                each = (format_time(time, "ms") for time in (one.forward, one.backward))
                rows.append(("  " * (len(path) - 1) + path[-1], str(one.calls), *each))
        said = "Times are of all calls together, with what a module calls, of "
        said += "kernels on the device." if self.on_device else "operations on the CPU."
        if len(kept) < len(times):
            said += f" {len(times) - len(kept)} modules of shorter times are left out."
        if not times:
            said = (
                "The trace names no modules: record it with profile(..., with_stack=True), or with "
                "record_function around what is to be told apart."
            )
        if self.peak_bytes is not None:
            said += f" The most that torch had allocated: {format_bytes(self.peak_bytes)}."
        said += (
            " What each layer saves for its backward, and how large it is, a trace does not say: "
            "scheduler.pytorch.profile(model, inputs) measures costs."
        )
        return "\n".join([*(aligned(rows) if times else ()), wrapped(said, width)])

    def __str__(self) -> str:
        return self.text()


def is_trace(value: object) -> bool:
    """Whether the value of a JSON text is a trace."""
    return isinstance(value, Mapping) and isinstance(value.get("traceEvents"), list)


def parse_trace(text: str, source: str) -> Trace:
    """The trace in a text; `source` is what a message calls it."""
    try:
        events = [e for e in json.loads(text)["traceEvents"] if "name" in e and "ts" in e]
        sweep = _Sweep(e for e in events if e["ph"] == "X" and e.get("cat") not in _KERNELS)
        kernels = [e for e in events if e["ph"] == "X" and e.get("cat") in _KERNELS]
        if kernels:
            sweep.use(kernels)
        return Trace(sweep.found, bool(kernels), _peak(events))
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise InvalidCosts(f"{source} is not a whole trace ({what}); export it again") from error


class _Open(NamedTuple):
    """A module that runs, or the backward of an operation in one."""

    end: float
    path: Path
    backward: bool


class _Sweep:
    """Events in the order in which they begin, with what is open on each thread meanwhile."""

    def __init__(self, events: Iterable[Mapping[str, Any]]) -> None:
        self.found: dict[Path, ModuleTime] = {}
        self.owners: dict[Any, Path] = {}
        self.launched: dict[Any, _Open] = {}
        threads: dict[Any, list[_Open]] = {}
        for event in sorted(events, key=lambda one: (one["ts"], -one["dur"])):
            stack = threads.setdefault(event.get("tid"), [])
            while stack and stack[-1].end <= event["ts"]:
                stack.pop()
            opened = self._opened(event, stack[-1] if stack else _Open(0, (), False))
            if opened is not None:
                stack.append(opened)

    def _opened(self, event: Mapping[str, Any], inside: _Open) -> _Open | None:
        name, kind, said = event["name"], event.get("cat"), event.get("args") or {}
        end, number = event["ts"] + event["dur"], said.get("Sequence number")
        if kind == "user_annotation" or (kind == "python_function" and name.startswith(_MODULE)):
            own = name.removeprefix(_MODULE)
            path = (*inside.path, own)
            if inside.backward:  # run again, it is where it was
                path = next((known for known in self.found if known[-1] == own), (own,))
            one = self.found.setdefault(path, ModuleTime())
            one.calls += 1
            one.forward += event["dur"] / 1e3
            return _Open(end, path, False)
        if name.startswith(_BACKWARD):
            opened = _Open(end, self.owners.get(number, ()), True)
            self._add(opened, event["dur"])
            return opened
        if number is not None and not inside.backward:
            # An operation without a backward has the number of the next that has one.
            self.owners[number] = inside.path
        if kind in ("cuda_runtime", "cuda_driver"):
            self.launched[said.get("correlation")] = inside
        return None

    def _add(self, opened: _Open, microseconds: float) -> None:
        which = "backward" if opened.backward else "forward"
        for depth in range(1, len(opened.path) + 1):
            one = self.found[opened.path[:depth]]
            setattr(one, which, getattr(one, which) + microseconds / 1e3)

    def use(self, kernels: Iterable[Mapping[str, Any]]) -> None:
        """Take the times of kernels in place of those of the CPU."""
        for one in self.found.values():
            one.forward = one.backward = 0.0
        for kernel in kernels:
            opened = self.launched.get((kernel.get("args") or {}).get("correlation"))
            if opened is not None:
                self._add(opened, kernel["dur"])


def _peak(events: Iterable[Mapping[str, Any]]) -> int | None:
    most: dict[bool, int] = {}
    for said in (event["args"] for event in events if event["name"] == "[memory]"):
        device = said["Device Type"] != 0
        most[device] = max(most.get(device, 0), said["Total Allocated"])
    return most.get(True, most.get(False))
