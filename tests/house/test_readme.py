"""What the README shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from scheduler.cli import main as cli

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_torch_example_runs_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    (example,) = [block for block in blocks if "import apply, measure" in block]
    scope: dict[str, Any] = {}
    exec(compile(example, "README.md", "exec"), scope)
    printed = capsys.readouterr().out
    assert "status  optimal" in printed
    assert "Measurement(peak_bytes=" in printed
    plan = scope["plan"]
    assert plan.peak_bytes <= scope["keep_all"] // 2
    with_options = blocks[blocks.index(example) + 1]
    exec(compile(with_options, "README.md", "exec"), scope)
    assert scope["plan"].overhead < plan.overhead
    printed = capsys.readouterr().out
    assert "keep save-" in printed
    assert "aten.addmm.default#0" in printed


def test_one_call_prints_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    (example,) = [block for block in blocks if "auto_checkpoint" in block]
    scope: dict[str, Any] = {}
    exec(compile(example, "README.md", "exec"), scope)
    scope["handle"].remove()
    (shown,) = re.findall(r"^    (checkpointing of .*?) \[...\]$", README, re.M | re.DOTALL)
    assert " ".join(capsys.readouterr().out.split()).startswith(" ".join(shown.split()))


def test_the_graph_example_runs_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    (example,) = [block for block in blocks if "apply_graph" in block]
    scope: dict[str, Any] = {}
    exec(compile(example, "README.md", "exec"), scope)
    assert "Measurement(peak_bytes=" in capsys.readouterr().out
    assert scope["plan"].status == "optimal"
    assert scope["plan"].overhead > 0
    assert sum(scope["running"].forwards.values()) > len(scope["running"].forwards)


def test_the_table_shown_is_the_one_printed(capsys: pytest.CaptureFixture[str]) -> None:
    shown = re.search(r"<!-- output of: (.*?) -->\n```\n(.*?)```", README, flags=re.DOTALL)
    assert shown is not None
    assert cli.main(shown.group(1).split()) == 0
    assert capsys.readouterr().out == shown.group(2)


def test_the_cost_file_shown_is_valid() -> None:
    from scheduler import CostGraph

    (text,) = re.findall(r"```json\n(.*?)```", README, flags=re.DOTALL)
    assert CostGraph.from_json(text).layers[0].name == "h.0"


def test_every_method_in_the_table_exists() -> None:
    from solvers.chain import methods as registry

    rows = re.findall(r"^\| (`.*?`) \|", README, flags=re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert names == set(registry.METHODS)


def test_the_memory_example_runs_as_written() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    (example,) = [block for block in blocks if "scheduler.memory" in block]
    scope: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), scope)
    assert round(scope["state"].total_bytes / 1e9, 1) == 16.6  # type: ignore[attr-defined]
    assert len(scope["costs"]) == 34  # type: ignore[arg-type]


@pytest.mark.parametrize("command", ["fit", "compare"])
def test_the_model_commands_run_as_written(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = README.replace("\\\n", " ")
    (line,) = re.findall(rf"^    checkpoint-scheduler ({command} --model .*)$", text, re.MULTILINE)
    assert cli.main(line.split()) == 0
    assert "llama-3-8b" in capsys.readouterr().out
