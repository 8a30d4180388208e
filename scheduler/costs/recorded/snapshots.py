"""What a snapshot of torch.cuda.memory says: its highest moment, and what was alive then."""

from __future__ import annotations

import io
import pickle
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from scheduler.common.errors import InvalidCosts
from scheduler.common.text import counted, format_bytes
from scheduler.report.tables import WIDTH, aligned, wrapped

_MOST = 20
"""Places that are printed, those of the most bytes."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is read from a snapshot, of the device that had allocated the most.

    Attributes
    ----------
    device
        Its number.
    peak_bytes
        The most that was allocated at once, as far back as the history goes; without one, what is.
    alive
        Bytes of tensors that were alive then, by the line that allocated them, the most first.
    events
        Of the history; 0 where none was recorded.
    """

    device: int
    peak_bytes: int
    alive: Mapping[str, int]
    events: int

    def text(self, width: int = WIDTH) -> str:
        """A table of what was alive, and what else there is and is not."""
        places = list(self.alive.items())
        rows = [(place, format_bytes(size)) for place, size in places[:_MOST]]
        if places[_MOST:]:
            size = sum(size for _, size in places[_MOST:])
            rows.append((f"{len(places) - _MOST} other lines", format_bytes(size)))
        said = f"Device {self.device}: {format_bytes(self.peak_bytes)} allocated "
        said += f"at the highest moment of {counted(self.events, 'event')}, by line:"
        if not self.events:
            said = (
                f"Device {self.device}: {format_bytes(self.peak_bytes)} allocated when it was made "
                "(no history: torch.cuda.memory._record_memory_history() begins one), by line:"
            )
        not_there = (
            "Which module a tensor is of, and whether a backward waits for it, a snapshot does not "
            "say: scheduler.pytorch.profile(model, inputs) measures costs."
        )
        return "\n".join([wrapped(said, width), *aligned(rows), wrapped(not_there, width)])

    def __str__(self) -> str:
        return self.text()


class _Plain(pickle.Unpickler):
    """Reads numbers, texts and containers of them; any other pickle could run a program."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it holds {module}.{name}, which no snapshot does")


def parse_snapshot(data: bytes, source: str) -> Snapshot:
    """The snapshot in a pickle, of which nothing is run; `source` is what a message calls it."""
    try:
        value = _Plain(io.BytesIO(data)).load()
        devices: dict[int, list[Mapping[str, Any]]] = {}
        for segment in value["segments"]:
            devices.setdefault(segment.get("device", 0), []).extend(segment["blocks"])
        histories = dict(enumerate(value.get("device_traces", ())))
        found = [
            _of_device(device, blocks, histories.get(device, ()))
            for device, blocks in (devices or {0: []}).items()
        ]
    except Exception as error:  # a pickle that is none may raise anything
        own = isinstance(error, pickle.UnpicklingError)
        why = str(error) if own else "it has not the segments and blocks of one"
        raise InvalidCosts(
            f"{source} is no snapshot that torch.cuda.memory._dump_snapshot wrote: {why}"
        ) from error
    return max(found, key=lambda one: one.peak_bytes)


def _of_device(
    device: int, blocks: Iterable[Mapping[str, Any]], history: Iterable[Mapping[str, Any]]
) -> Snapshot:
    left: Counter[str] = Counter()
    for block in blocks:
        if block["state"] == "active_allocated":
            left[_place(block)] += block["size"]
    steps = [_change(event) for event in history]
    # What is allocated at the end is known, and so what was at the beginning.
    total = peak = left.total() - sum(steps)
    highest = 0
    for i, step in enumerate(steps, 1):
        total += step
        if total > peak:
            peak, highest = total, i
    if not steps:
        return Snapshot(device, peak, dict(left.most_common()), 0)
    alive: dict[int, tuple[str, int]] = {}
    for event, step in list(zip(history, steps, strict=True))[:highest]:
        if step > 0:
            alive[event["addr"]] = _place(event), step
        elif step < 0:
            alive.pop(event["addr"], None)
    by_line: Counter[str] = Counter()
    for place, size in alive.values():
        by_line[place] += size
    by_line["before the history"] += peak - by_line.total()
    return Snapshot(device, peak, dict((+by_line).most_common()), len(steps))


def _change(event: Mapping[str, Any]) -> int:
    signs = {"alloc": 1, "free_requested": -1}
    return signs.get(event["action"], 0) * int(event.get("size", 0))


def _place(event: Mapping[str, Any]) -> str:
    """The innermost line that is not torch's own."""
    for frame in event.get("frames") or ():
        file = str(frame.get("filename"))
        if file.endswith(".py") and "/torch/" not in file:
            return f"{file}:{frame.get('line')} {frame.get('name')}"
    return "no line of Python"
