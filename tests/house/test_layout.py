"""How the code hangs together: what may import what, and what loads when."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOLVERS = sorted((ROOT / "solvers").rglob("*.py"))
SCHEDULER = sorted((ROOT / "scheduler").rglob("*.py"))
HEAVY = {"numpy", "scipy", "ortools", "numba", "networkx", "torch", "transformers", "pandas"} | {
    "jinja2",
    "matplotlib",
}


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


def imported_at_once(path: Path) -> set[str]:
    """Names of the modules that importing a file imports."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    loose = ast.Module(
        [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)], type_ignores=[]
    )
    names: set[str] = set()
    for node in loose.body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
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
    if "pytorch" not in path.parts:
        assert not roots(imported(path)) & {"torch", "transformers"}
        lazy = path.name == "plan.py"  # Plan.applied, inside the method
        used = imported_at_once(path) if lazy else imported(path)
        assert not any(name.startswith("scheduler.pytorch") for name in used)


def test_data_flows_one_way() -> None:
    # Each room may use those before it; what is not named may be used by all.
    order = [
        {"errors"},
        {"text", "values", "units", "files", "jsontext", "edges"}
        | {"report.tables", "report.svg", "report.html"},
        {
            "report.svglabels",
            "report.svgaxes",
            "report.svgtimeline",
            "report.svgcurve",
            "report.svgstrip",
        },
        {"layers", "nodes", "costtable", "costfile", "costs", "computegraph", "readers"},
        {"report.plantext", "report.graphtext", "planfile", "planfields", "planreplay"}
        | {"graphsteps", "limits", "graphlimits", "export.flags"},
        {"plan"},
        {"graphplan"},
        {"certify", "graphsolve", "against", "export.exported", "export.runtime"},
        {"export.torchfile", "export.targets"},
        {"pareto", "comparison", "chaincomparison", "graphpareto", "graphcomparison"},
        {"moments", "diff"},
        {"pictures", "planrows"},
        {"planreport"},
        {"api", "watching"},
        {"commands", "reportcommand"},
        {"exportcommand"},
        {"cli"},
    ]
    level = {f"scheduler.{name}": i for i, names in enumerate(order) for name in names}
    for path in SCHEDULER:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if module not in level:
            continue
        used = [level[name] for name in imported_at_once(path) if name in level]
        # The errors say sizes in words, and words are about errors' level of dependence: none.
        allowed = max(level[module], 1)
        assert all(other <= allowed for other in used), module


def loaded_by(*arguments: str) -> set[str]:
    """Top-level modules in sys.modules after running Python with `arguments`."""
    code = (
        "import runpy, sys\n"
        f"sys.argv = {list(arguments)!r}\n"
        "try:\n"
        "    runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)\n"
        "except SystemExit as stop:\n"
        "    assert not stop.code, stop.code\n"
        "print('LOADED', *{name.partition('.')[0] for name in sys.modules})\n"
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
    assert not loaded & HEAVY


def test_solving_loads_only_what_it_needs() -> None:
    loaded = loaded_by("scheduler", "solve", "--example", "gpt2-small", "--budget", "5GB")
    assert "numba" in loaded
    assert not loaded & {"torch", "transformers", "pandas", "networkx", "ortools"}
