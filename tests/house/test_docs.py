"""What README, site and notebook show is what happens; ``DOCS=write`` writes it into them."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.house.pages import BLOCK, PAGES, ROOT, alike, check_names, played, public_names

WRITES = os.environ.get("DOCS") == "write"
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in NAMES}
NOTEBOOK = ROOT / "examples" / "size_a_run.ipynb"


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning")
@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_as_it_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    now = played(TEXTS[name], name)
    if WRITES:
        (ROOT / name).write_text(now, encoding="utf-8")
    else:
        assert now == TEXTS[name]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Parsing dates")
def test_the_notebook_is_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbclient
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook: Any = nbformat.read(NOTEBOOK, 4)
    before = [text_of(cell) for cell in notebook.cells]
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=100, resources=where).execute()
    if WRITES:
        for cell in notebook.cells:
            cell.metadata.clear()  # when it was run
        nbformat.write(notebook, NOTEBOOK)
    else:
        assert [text_of(cell) for cell in notebook.cells] == before


def text_of(cell: Any) -> str:
    """What a cell has printed and shown, but pictures."""
    shown = (out.get("text") or out["data"]["text/plain"] for out in cell.get("outputs", ()))
    return alike("".join(shown))


def test_the_readme_is_a_page() -> None:
    assert TEXTS["README.md"].count("\n") <= 150


def test_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)", TEXTS["README.md"])
    assert links
    assert all((ROOT / link).exists() for link in links)


def test_few_blocks_are_not_run_and_say_why() -> None:
    reasons = [
        block["reason"]
        for text in TEXTS.values()
        for block in BLOCK.finditer(text)
        if block["reason"]
    ]
    assert all(len(reason) > 20 for reason in reasons)
    assert len(reasons) <= 4, reasons
    # A mark that belongs to no block would hide nothing, or the wrong one.
    assert sum(text.count("<!-- not run") for text in TEXTS.values()) == len(reasons)


def test_blocks_are_of_kinds_that_are_run_or_written() -> None:
    data = ("json", "csv")
    for name, text in TEXTS.items():
        blocks = [block for block in BLOCK.finditer(text) if not block["reason"]]
        assert len(re.findall(r"^ *```", text, re.M)) == 2 * sum(1 for _ in BLOCK.finditer(text))
        for block in blocks:
            titled = block["language"] in data and block["title"]
            assert titled or block["language"] in ("python", "console", "output"), name


def test_commands_within_sentences_name_what_exists() -> None:
    known = set(re.findall(r"--[a-z-]+", TEXTS["docs/reference/cli.md"]))
    seen = 0
    for name, text in TEXTS.items():
        for code in re.findall(r"`([^`]+)`", BLOCK.sub("", text)):
            words = shlex.split(code.replace("\n", " "), comments=True) if " " in code else [code]
            if words[0] in ("python", "pip", "nox", "torchrun"):
                check_names(words)
                seen += 1
            elif name.startswith("docs") or words[0] == "checkpoint-scheduler":
                assert {word for word in words if word.startswith("--")} <= known, (name, code)
    assert seen > 5


def test_every_method_in_the_table_exists() -> None:
    from solvers.chain.methods import METHODS

    table = TEXTS["docs/choose.md"].split("## Which method")[1]
    rows = re.findall(r"^\| (`.*?`) \|", table, flags=re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([^`]+)`", row)} == set(METHODS)


def test_every_method_of_graphs_is_told() -> None:
    from solvers.graph.methods import METHODS

    rows = re.findall(r"^\| `(.*?)` \|", TEXTS["docs/concepts/graphs.md"], flags=re.MULTILINE)
    assert {*rows, "keep-all"} == set(METHODS)


def test_the_reference_has_every_public_name() -> None:
    pages = (text for name, text in TEXTS.items() if name.startswith("docs/reference/"))
    told = {path.rpartition(".")[2] for path in re.findall(r"^::: (\S+)", "".join(pages), re.M)}
    told |= errors_told()
    missing = {name for name in public_names() if name.rpartition(".")[2] not in told}
    assert missing == {"scheduler.GraphPlan"}  # another name of Plan, which the page says


def errors_told() -> set[str]:
    """The whole module of errors is one entry."""
    from scheduler.common import errors

    assert "::: scheduler.common.errors\n" in TEXTS["docs/reference/api.md"]
    return set(errors.__all__)


def test_the_notebook_has_no_error_stored() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    kinds = {out["output_type"] for cell in cells for out in cell.get("outputs", ())}
    assert kinds == {"stream", "execute_result"}
