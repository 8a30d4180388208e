"""What torch itself records of a run, read as far as it goes: traces, and snapshots of memory."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

from scheduler.common.errors import InvalidCosts
from scheduler.common.files import decoded
from scheduler.costs.recorded.snapshots import Snapshot, parse_snapshot
from scheduler.costs.recorded.traces import Trace, parse_trace

_PICKLE, _GZIP = b"\x80", b"\x1f\x8b"


def read_recorded(path: str | os.PathLike[str]) -> Trace | Snapshot | None:
    """What a file holds that torch wrote; None where it is neither of these.

    Traces are those of ``torch.profiler``, ``export_chrome_trace("trace.json")``, compressed ones
    too. Snapshots are pickles of ``torch.cuda.memory._dump_snapshot``; nothing in them is run.

    Raises
    ------
    InvalidCosts
        It seems to be one of them and cannot be read.
    """
    name = os.fspath(path)
    if not Path(name).is_file():  # a pipe gives what it has once
        return None
    try:
        data = Path(name).read_bytes()
        data = gzip.decompress(data) if data.startswith(_GZIP) else data
    except (OSError, EOFError, ValueError):
        return None
    if data.startswith(_PICKLE):
        return parse_snapshot(data, name)
    if b'"traceEvents"' not in data:
        return None
    return parse_trace(decoded(data, name, "trace", InvalidCosts), name)
