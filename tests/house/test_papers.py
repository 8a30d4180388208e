"""The papers of the house say one thing: commands, versions, names of files."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_all_papers_run_the_same_tests() -> None:
    (command,) = re.findall(r'^TESTS = "(.*?)"', read("noxfile.py"), flags=re.MULTILINE)
    for paper in ("README.md", "CONTRIBUTING.md"):
        assert f"pip install -e '.[test]' && {command}" in read(paper), paper
    assert "nox --no-venv" in read(".ci/run")


def test_one_torch_is_installed_everywhere() -> None:
    papers = ("noxfile.py", ".ci/run", "pyproject.toml")
    assert len({*re.findall(r"torch==([\d.]+)", "".join(map(read, papers)))}) == 1
    assert all("torch==" in read(paper) for paper in papers)


def test_the_citation_is_of_this_version() -> None:
    project = read("pyproject.toml").partition("[project]")[2].partition("\n[")[0]
    citation = read("CITATION.cff")
    for key, field in (("name", "title"), ("version", "version"), ("license", "license")):
        (said,) = re.findall(rf'^{key} = "(.*?)"', project, flags=re.MULTILINE)
        assert f"\n{field}: {said}\n" in citation


def test_the_map_names_what_is_there() -> None:
    rooms = "scheduler|solvers|tests|benchmarks|examples"
    named = re.findall(rf"`((?:{rooms})/[^`\s]*)`", read("CONTRIBUTING.md"))
    assert len(named) > 40
    # Capitals stand for the name of what is added.
    given = [name for name in named if not re.search("[A-Z]{4}", name)]
    assert not [name for name in given if not (ROOT / name).exists()]
