"""The modules that exported files are put together from: real ones, and what is exported."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module, resources
from pathlib import Path
from types import ModuleType

import pytest
import torch

from scheduler.export import export
from tests.export.export_cases import MODEL, gpt2_plan, loaded

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "scheduler" / "export" / "standalone"
MODULES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")
PLAN = ("state", "caches", "apply", "plan", "segment", "kept")
TARGETS = {
    "torch": PLAN,
    "jax": ("jax",),
    **{name: (*PLAN, name) for name in ("accelerate", "fsdp", "lightning", "transformers")},
}


def definitions(text: str) -> list[str]:
    """Functions and classes as they are written, their decorators left out."""
    nodes = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    return [ast.get_source_segment(text, node) or "" for node in nodes]


def text_of(module: str) -> str:
    file = resources.files("scheduler.export.standalone") / f"{module}.py"
    return file.read_text(encoding="utf-8")


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_exported_is_their_text(target: str) -> None:
    exported = export(gpt2_plan(), target).text
    expected = [each for module in TARGETS[target] for each in definitions(text_of(module))]
    assert definitions(exported) == expected
    assert "scheduler." not in "".join(line for line in exported.splitlines() if line[:1] != "#")
    data = [n for n in ast.parse(exported).body if isinstance(n, ast.Assign | ast.AnnAssign)]
    names = [node.targets[0].id for node in data if isinstance(node, ast.Assign)]  # type: ignore[attr-defined]
    assert len({*names}) == len(names)
    assert {"LAYERS", "CHECKPOINTS"} <= {*names}  # the plan's, not the empty ones


def test_every_module_is_exported() -> None:
    assert {*MODULES} == {"torchtitan", *(module for each in TARGETS.values() for module in each)}
    titan = export(gpt2_plan(), "torchtitan").text
    assert definitions(titan)[-1] == definitions(text_of("torchtitan"))[-1]


@pytest.fixture
def planned() -> Iterator[ModuleType]:
    """The module `apply` with a nested plan."""
    data = import_module("scheduler.export.standalone.plan")
    made = ModuleType("made")
    exec(export(gpt2_plan(6), "torch").text, made.__dict__)
    data.LAYERS.extend(made.LAYERS)
    data.CHECKPOINTS.extend(made.CHECKPOINTS)
    yield import_module("scheduler.export.standalone.apply")
    data.LAYERS.clear()
    data.CHECKPOINTS.clear()


def test_they_run_where_they_are(tmp_path: Path, planned: ModuleType) -> None:
    tiny = loaded(tmp_path, MODEL, "tiny")
    found = []
    for plan in (False, True):
        model, tokens = tiny.gpt2(6)
        applied = planned.apply_plan(model) if plan else None
        torch.manual_seed(1)
        model(tokens).backward()
        if applied is not None:
            assert len(applied.blocks) > 2
            applied.remove()
        found.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("module", MODULES)
def test_each_can_be_imported(module: str) -> None:
    if module == "jax":
        pytest.importorskip("jax")
    assert import_module(f"scheduler.export.standalone.{module}").__doc__


def test_exporting_does_not_import_them() -> None:
    code = (
        "import sys\n"
        "from scheduler import CostGraph, solve\n"
        "from scheduler.export import TARGETS, export\n"
        "plan = solve(CostGraph.example('gpt2-small'), 6)\n"
        "for target in TARGETS: export(plan, target)\n"
        "print(*sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    names = done.stdout.split()
    assert "scheduler.export.python" in names
    assert not {"torch", "jax", "lightning", "transformers"} & {*names}
    assert not any(name.startswith("scheduler.export.standalone.") for name in names)


def test_they_are_linted_and_typed() -> None:
    for module in MODULES:
        assert not [word for word in ("noqa", "type: ignore", "mypy:") if word in text_of(module)]
        for node in ast.walk(ast.parse(text_of(module))):
            if isinstance(node, ast.FunctionDef):
                assert node.returns is not None, (module, node.name)
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--show-files", str(FOLDER)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert {Path(line).stem for line in done.stdout.split()} == {*MODULES, "__init__"}
