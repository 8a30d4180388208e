"""HiGHS in a process of its own, which can be ended.

HiGHS cannot be told to stop: in a thread it would go on after Ctrl-C or a time limit, and abort the
interpreter at its end. Messages are pickles on pipes: programs one way, progress and answers back.
"""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from solvers.graph.milp import mip
from solvers.graph.milp.mip import Answer, Program, Watch

__all__ = ["Worker"]

_POLL = 0.05
"""Seconds between two looks at whether to stop."""


class Worker:
    """A process that solves one program after the other; it starts with the first one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._messages: queue.Queue[tuple[str, Any]] = queue.Queue()

    def solve(
        self,
        program: Program,
        *,
        stop: Callable[[], bool],
        watch: Watch | None = None,
        **options: Any,
    ) -> Answer | None:
        """The answer, or None when `stop()` came first; then, and on Ctrl-C, the process ends.

        `options` are those of `mip.solve`.
        """
        process = self._started()
        assert process.stdin is not None
        try:
            pickle.dump((program, watch is not None, options), process.stdin)
            process.stdin.flush()
            while not stop():
                try:
                    kind, content = self._messages.get(timeout=_POLL)
                except queue.Empty:
                    continue
                if kind == "answer":
                    return content  # type: ignore[no-any-return]
                if kind == "progress" and watch is not None:
                    watch(*content)
                elif kind == "end":
                    raise RuntimeError(f"HiGHS's process ended by itself ({process.wait()})")
        except BaseException:
            self.close()
            raise
        self.close()
        return None

    def close(self) -> None:
        """End the process, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()
            self._process = None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            # The same modules as here, however this interpreter came to find them.
            paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from solvers.graph.milp.worker import serve; serve()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": paths},
            )
            self._messages = queue.Queue()
            assert self._process.stdout is not None
            reader = threading.Thread(
                target=_read, args=(self._process.stdout, self._messages), daemon=True
            )
            reader.start()
        return self._process


def _read(pipe: IO[bytes], messages: queue.Queue[tuple[str, Any]]) -> None:
    try:
        while True:
            messages.put(pickle.load(pipe))
    except (EOFError, ValueError, OSError, pickle.UnpicklingError):
        messages.put(("end", None))


def serve() -> None:
    """The process: solve what comes in until the other side is gone."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the other side to handle
    # What a solver prints must not get between the messages.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()

    def tell(kind: str, content: object) -> None:
        pickle.dump((kind, content), out)
        out.flush()

    while True:
        try:
            program, watched, options = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        watch = (lambda *found: tell("progress", found)) if watched else None
        tell("answer", mip.solve(program, watch=watch, **options))


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(0)
