"""What may import what: the contracts of `[tool.importlinter]`, kept and seen to break.

They count imports inside functions and for types alone, as the count of circles here does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import networkx as nx
import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("scheduler", "solvers")
FULL = 14
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """What `lint-imports` says of the packages that lie in a folder."""
    return subprocess.run(
        [sys.executable, "-c", LINT, "--no-cache", "--no-logo"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        # The packages of this folder, not installed ones; lines wide enough not to be broken.
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "300"},
    )


def imports() -> nx.DiGraph[str]:
    """Every module, faces of packages included, and what each imports anywhere in it."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    return nx.DiGraph(
        {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    )


def test_the_contracts_are_kept() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout


def test_nothing_imports_in_a_circle() -> None:
    parts = nx.strongly_connected_components(imports())
    assert not [sorted(part) for part in parts if len(part) > 1]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        ("solvers/problem.py", "import scheduler.common.text"),
        ("solvers/graph/schedule.py", "import solvers.graph.methods"),
        ("scheduler/common/text.py", "def late() -> None:\n    import scheduler.costs.edges"),
        ("scheduler/plans/facts.py", "if TYPE_CHECKING:\n    import scheduler.planning.comparison"),
        ("scheduler/pytorch/model/find.py", "import scheduler.pytorch.verification.verify"),
        ("scheduler/memory/shape/shape.py", "import scheduler.memory.fitting.fit"),
    ],
)
def test_a_wrong_import_is_seen(copied: Path, place: str, wrong: str) -> None:
    file = copied / place
    file.write_text(f"{file.read_text()}\nfrom typing import TYPE_CHECKING\n\n{wrong}\n")
    done = lint(copied)
    module = place.removesuffix(".py").replace("/", ".")
    assert done.returncode == 1
    assert f"{module} -> {wrong.rpartition('import ')[2]} (l." in done.stdout


def test_a_room_without_a_place_is_seen(copied: Path) -> None:
    (copied / "scheduler" / "attic.py").touch()
    done = lint(copied)
    assert done.returncode == 1
    assert "scheduler.attic" in done.stdout


def test_no_folder_is_full() -> None:
    for package in PACKAGES:
        for folder in {path.parent for path in (ROOT / package).rglob("*.py")}:
            assert len(list(folder.glob("*.py"))) <= FULL, folder
