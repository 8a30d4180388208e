"""The cache of compiled kernels: what is damaged is compiled again, and no run fails for it."""

from __future__ import annotations

import errno
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

ROOT = Path(__file__).parents[3]
SOURCE = """
from solvers.chain.exact.compiled import compiled

@compiled
def total(values):
    found = 0
    for value in values:
        found += value
    return found
"""

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "zeros": lambda data: bytes(len(data)),
    "a hole": lambda data: (
        data[: len(data) // 3] + bytes(len(data) // 3) + data[2 * (len(data) // 3) :]
    ),
    "its end": lambda data: data[:-100] + bytes(100),
    "another file": lambda data: b"not what was here\n",
}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], tuple[int, int]]:
    """Runs a kernel as a new process would: how often it was loaded, and how often compiled."""
    import numba
    import numpy as np

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "kernel.py"
    path.write_text(SOURCE)

    def count() -> tuple[int, int]:
        total: Any = runpy.run_path(str(path))["total"]
        assert total(np.arange(10)) == 45
        return sum(total.stats.cache_hits.values()), sum(total.stats.cache_misses.values())

    return count


def files(where: Path, ending: str) -> list[Path]:
    return sorted(where.rglob(f"*.{ending}"))


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_replaced(
    counted: Callable[[], tuple[int, int]], tmp_path: Path, damage: str, ending: str
) -> None:
    assert counted() == (0, 1)
    assert counted() == (1, 0)
    (path,) = files(tmp_path, ending)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert counted() == (0, 1)
    assert counted() == (1, 0)


def test_code_of_an_older_source_is_compiled_again(
    counted: Callable[[], tuple[int, int]], tmp_path: Path
) -> None:
    """A process that is killed between its two writes leaves a new index of old code."""
    counted()
    (code,) = files(tmp_path, "nbc")
    old = code.read_bytes()
    source = tmp_path / "kernel.py"
    source.write_text(SOURCE.replace("found = 0", "found = 45").replace("+= value", "-= 0"))
    counted()
    code.write_bytes(old)
    assert counted() == (0, 1)


def test_a_full_disk_and_no_place_at_all(
    counted: Callable[[], tuple[int, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from numba.core import caching

    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(caching.IndexDataCacheFile, "_open_for_write", full)
        assert counted() == (0, 1)
        assert counted() == (0, 1)
    assert not files(tmp_path, "nbc")
    assert counted() == (0, 1)
    (index,) = files(tmp_path, "nbi")
    index.write_bytes(b"")
    with monkeypatch.context() as patched:
        patched.setattr(caching.IndexDataCacheFile, "_open_for_write", full)
        assert counted() == (0, 1)
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    assert counted() == (0, 1)


def test_a_command_mends_the_cache(tmp_path: Path) -> None:
    # With what is compiled already: all of it takes 20 seconds, twice.
    for package in ("scheduler", "solvers"):
        shutil.copytree(ROOT / package, tmp_path / package)
    environment = {key: os.environ[key] for key in os.environ if key != "NUMBA_CACHE_DIR"}
    command = [sys.executable, "-m", "scheduler", "solve", "--example", "gpt2-small"]

    def solved() -> str:
        done = subprocess.run(
            [*command, "--budget", "5GB", "--json"],
            cwd=tmp_path,
            env={**environment, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        return done.stdout.partition('"seconds"')[0]

    plan = solved()
    damages = list(DAMAGES.values())
    # Of the two kernels that a command calls, the one that is compiled soon, and what it calls.
    paths = [*files(tmp_path, "nbi"), *files(tmp_path, "nbc")]
    paths = [path for path in paths if ".build-" not in path.name]
    damaged = [damages[i % len(damages)](path.read_bytes()) for i, path in enumerate(paths)]
    for path, data in zip(paths, damaged, strict=True):
        path.write_bytes(data)
    assert solved() == plan
    mended = [p.name for p, data in zip(paths, damaged, strict=True) if p.read_bytes() != data]
    assert {name.rpartition(".")[2] for name in mended if ".read_back-" in name} == {"nbi", "nbc"}
    # Once more, nothing is compiled, so nothing is written.
    written = {path: path.stat().st_mtime_ns for path in files(tmp_path, "nb*")}
    assert solved() == plan
    assert {path: path.stat().st_mtime_ns for path in files(tmp_path, "nb*")} == written
