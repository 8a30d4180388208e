"""A headless Chromium, told what to do over its DevTools protocol, through two pipes."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["Browser", "chromium"]

INSTALL = (
    "the browser tests need Chromium, and there is none: install Debian's (apt-get install "
    "chromium), or set CHROMIUM to the path of one"
)
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_PATIENCE = 60.0
"""Seconds to wait for an answer."""


def chromium() -> str:
    """The program's path.

    Raises
    ------
    AssertionError
        There is none; says how to get it.
    """
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
    assert os.access(found, os.X_OK), INSTALL
    return found


class Browser:
    """One page of one Chromium.

    Parameters
    ----------
    folder
        An empty one, for what Chromium writes.

    Attributes
    ----------
    said
        What the page's console, its errors and the browser's log say, since it was opened.
    asked
        The addresses that were loaded since then.
    """

    def __init__(self, folder: Path) -> None:
        self.said: list[str] = []
        self.asked: list[str] = []
        self._number = 0
        self._session: str | None = None
        self._left = b""
        reads, self._to = os.pipe()
        self._from, writes = os.pipe()
        # Chromium reads from 3 and writes to 4, which these must not be already.
        own_in, own_out = (fcntl.fcntl(each, fcntl.F_DUPFD, 10) for each in (reads, writes))
        shell = f'exec "$@" 3<&{own_in} 4>&{own_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", chromium(), *_FLAGS, f"--user-data-dir={folder}"],
            pass_fds=(own_in, own_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for each in (reads, writes, own_in, own_out):
            os.close(each)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def call(self, method: str, **parameters: object) -> Any:
        """The answer to one message."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def open(self, path: Path, width: int, scheme: str) -> None:
        """Load a file in a window so many pixels wide; `scheme` is "light" or "dark"."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.said.clear()
        self.asked.clear()
        self.call("Page.navigate", url=path.as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript is on the page."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"]["value"]

    def picture(self, path: Path) -> None:
        """Write the whole page as PNG."""
        done = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(done["data"]))

    def _next(self) -> Any:
        """The next message; what the page says and loads is remembered."""
        end = time.monotonic() + _PATIENCE
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._from], [], [], max(end - time.monotonic(), 0))
            assert ready, f"Chromium said nothing for {_PATIENCE:g} s"
            read = os.read(self._from, 1 << 16)
            assert read, f"Chromium ended with status {self._process.wait()}"
            self._left += read
        text, _, self._left = self._left.partition(b"\0")
        message = json.loads(text)
        about = message.get("params", {})
        if message.get("method") in (
            "Log.entryAdded",
            "Runtime.consoleAPICalled",
            "Runtime.exceptionThrown",
        ):
            self.said.append(json.dumps(about))
        elif message.get("method") == "Network.requestWillBeSent":
            self.asked.append(about["request"]["url"])
        return message
