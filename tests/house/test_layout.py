"""How the code hangs together: what may import what, and what loads when."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import scheduler

ROOT = Path(__file__).parents[2]
SOLVERS = sorted((ROOT / "solvers").rglob("*.py"))
SCHEDULER = sorted((ROOT / "scheduler").rglob("*.py"))
HEAVY = {"numpy", "scipy", "ortools", "highspy", "numba", "networkx", "torch", "transformers"}
HEAVY |= {"pandas", "jinja2", "matplotlib"}


def imported(path: Path) -> set[str]:
    """Names of all modules that a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            module = node.module or ""
            names |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return names


def roots(names: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("path", SOLVERS, ids=lambda path: path.stem)
def test_solvers_stand_alone(path: Path) -> None:
    assert not roots(imported(path)) & {"scheduler", "torch", "transformers", "tests"}
    calls = [
        node.func.id
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    assert not {"open", "print", "input"} & set(calls)


@pytest.mark.parametrize("path", SCHEDULER, ids=lambda path: str(path.relative_to(ROOT)))
def test_torch_stays_in_its_room(path: Path) -> None:
    # Exported files are put together from the text of `standalone`, which nothing imports but what
    # the adapter does in the same way: it is written once.
    if "standalone" in path.parts:
        return
    shared = {f"scheduler.export.standalone.{name}" for name in ("state", "caches")}
    used = {name for name in imported(path) if name.startswith("scheduler.export.standalone")}
    assert all(any(name.startswith(each) for each in shared) for name in used)
    assert not used or "pytorch" in path.parts
    if "pytorch" not in path.parts:
        assert not roots(imported(path)) & {"torch", "transformers"}
        assert not any(name.startswith("scheduler.pytorch") for name in imported(path))


def loaded_by(*arguments: str) -> set[str]:
    """Names of the modules that running Python with `arguments` loads, beyond those of any run."""
    code = (
        "import runpy, sys\n"
        "before = set(sys.modules)\n"
        f"sys.argv = {list(arguments)!r}\n"
        "try:\n"
        "    runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)\n"
        "except SystemExit as stop:\n"
        "    assert not stop.code, stop.code\n"
        "print('LOADED', *sys.modules.keys() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize(
    "arguments",
    [
        ("scheduler", "--help"),
        ("scheduler", "solve", "--help"),
        ("scheduler", "--version"),
        ("scheduler", "show", "--example", "gpt2-small"),
        ("scheduler.api",),
        ("solvers.chain.methods",),
    ],
    ids=" ".join,
)
def test_what_is_light(arguments: tuple[str, ...]) -> None:
    loaded = loaded_by(*arguments)
    assert "argparse" in loaded or arguments[0] != "scheduler"
    assert not roots(loaded) & HEAVY


HELP_NEEDS = {"scheduler", "scheduler.common", "scheduler.common.errors", "scheduler.common.text"}
HELP_NEEDS |= {
    f"scheduler.cli{name}" for name in ("", ".main", ".io", ".options", ".modelargs", ".pipeline")
}
HELP_NEEDS |= {
    "scheduler.cli.commands" if path.stem == "__init__" else f"scheduler.cli.commands.{path.stem}"
    for path in (ROOT / "scheduler" / "cli" / "commands").glob("*.py")
}
"""All that is loaded by --help outside the standard library: what words the options."""

SLOW = {"ast", "asyncio", "csv", "dataclasses", "datetime", "decimal", "difflib", "email"}
SLOW |= {"hashlib", "http", "inspect", "json", "logging", "multiprocessing", "pathlib", "pickle"}
SLOW |= {"random", "secrets", "socket", "subprocess", "tempfile", "threading", "unittest"}
SLOW |= {"urllib", "zipfile", "importlib.metadata", "importlib.resources"}
"""Modules of the standard library that take longer than the parser, or bring such."""


@pytest.mark.parametrize(
    "arguments", [("--help",), *((path, "--help") for path in ("solve", "fit", "report"))]
)
def test_help_loads_only_what_it_needs(arguments: tuple[str, ...]) -> None:
    loaded = loaded_by("scheduler", *arguments)
    own = {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names}
    assert own <= HELP_NEEDS
    assert not loaded & SLOW


def test_the_version_loads_no_command() -> None:
    # What is installed as which version is told by the standard library, which takes a while.
    loaded = loaded_by("scheduler", "--version")
    assert {name for name in loaded if name.startswith(("scheduler", "solvers"))} <= HELP_NEEDS


def test_the_face_loads_what_is_asked_for() -> None:
    code = (
        "import sys, scheduler\n"
        "loaded = lambda: {name for name in sys.modules if name.startswith('scheduler')}\n"
        "assert loaded() == {'scheduler'}, loaded()\n"
        "assert set(scheduler.__all__) <= set(dir(scheduler))\n"
        "assert not hasattr(scheduler, 'nothing')\n"
        "scheduler.NoPlanFound\n"
        "assert 'scheduler.costs' not in loaded()\n"
        "from scheduler import *\n"
        "assert solve is scheduler.solve is scheduler.api.solve\n"
        "assert CostGraph is scheduler.costs.CostGraph\n"
        "assert all(vars(scheduler)[name] is globals()[name] for name in scheduler.__all__)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_type_checkers_see_the_whole_face() -> None:
    path = ROOT / "scheduler" / "__init__.py"
    (block,) = (n for n in ast.parse(path.read_text(encoding="utf-8")).body if type(n) is ast.If)
    seen = [
        alias.name
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert sorted(seen) == sorted(scheduler.__all__)
    for path in SCHEDULER:  # what is behind the face must not go through it
        assert "scheduler" not in imported(path)


def test_solving_loads_only_what_it_needs() -> None:
    loaded = roots(loaded_by("scheduler", "solve", "--example", "gpt2-small", "--budget", "5GB"))
    assert "numba" in loaded
    assert not loaded & {"torch", "transformers", "pandas", "networkx", "ortools"}
