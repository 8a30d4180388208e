"""README.md and the pages under docs/, done as a reader does them.

The blocks of a page run in their order, in one scope and one empty folder:

- ``python`` runs; an ``output`` block after it is what it prints.
- ``console`` has commands after ``$``, and below them what they print. Where nothing is shown
  anything may be printed. Commands of this project run; of others the files, extras and sessions
  that they name must exist.
- A block with a ``title="costs.json"`` is written to that file.
- An output that ends in a line ``…`` shows the beginning.
- ``<!-- not run: WHY -->`` above a block leaves it out.
"""

from __future__ import annotations

import io
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

from scheduler.cli.main import main as command

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>.+?) -->\n)?"
    r'^```(?P<language>\w+)(?: title="(?P<title>.+?)")?[^\n`]*\n(?P<text>.*?)^```$',
    re.M | re.DOTALL,
)
_CUT = "…\n"
_USAGE = 2
_VARIES = re.compile(r"^\s*solved  in .*", re.M)
"""What is another number in each run."""


def played(page: str, source: str) -> str:
    """The text of a page, run in the current folder, with the outputs that its blocks have now."""
    scope: dict[str, Any] = {"__name__": source}
    printed: str | None = None

    def again(block: re.Match[str]) -> str:
        nonlocal printed
        before, text = printed, block["text"]
        printed = None

        def with_text(new: str) -> str:
            return page[block.start() : block.start("text")] + new + "```"

        if block["reason"]:
            return block[0]
        if block["language"] == "python":
            line = page.count("\n", 0, block.start("text"))
            code = compile("\n" * line + text, source, "exec")
            with _written() as output:
                exec(code, scope)
            printed = output.getvalue()
        elif block["language"] == "console":
            return with_text("".join(_console(text)))
        elif block["language"] == "output":
            assert before is not None, f"{source}: an output belongs below what prints it"
            return with_text(_shown(before, text))
        if block["title"]:
            file = Path(block["title"])
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
        return block[0]

    return BLOCK.sub(again, page)


@contextmanager
def _written() -> Iterator[io.StringIO]:
    """What is written to both streams, in its order."""
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        yield output


def _shown(printed: str, before: str) -> str:
    """What is printed, in the place of what a page has shown of it."""
    varies = iter(_VARIES.findall(before))
    printed = _VARIES.sub(lambda now: next(varies, now[0]), printed)
    lines = (line for line in printed.splitlines() if not line.startswith("[transformers]"))
    printed = "".join(f"{line.rstrip()}\n" for line in lines)
    if before.endswith(_CUT):
        return "".join(printed.splitlines(keepends=True)[: before.count("\n") - 1]) + _CUT
    return printed


def _console(text: str) -> Iterator[str]:
    """The block again, command by command."""
    for part in re.findall(r"^\$ (?:.*\\\n)*.*\n(?:(?!\$ ).*\n)*", text, re.M):
        typed = re.match(r"\$ (?:.*\\\n)*.*\n", part)[0]  # type: ignore[index]
        shown = part.removeprefix(typed)
        with _written() as output:
            status = max(map(_run, typed[2:].replace("\\\n", " ").split("&&")))
        assert status < _USAGE or (shown and status != _USAGE), f"{typed}{output.getvalue()}"
        yield typed
        if "--help" in typed and sys.version_info >= (3, 13):
            yield shown  # argparse lays it out in another way there
        else:
            yield _shown(output.getvalue(), shown) if shown else ""


def _run(line: str) -> int:
    """Run a command, or look at what it names; its exit status."""
    line, _, target = line.partition(" > ")
    words = shlex.split(line, comments=True)
    if words[0] != "checkpoint-scheduler":
        check_names(words)
        return 0
    output = io.StringIO()
    with redirect_stdout(output if target else sys.stdout):
        try:
            status = command(words[1:])
        except SystemExit as end:  # of --help
            status = int(end.code or 0)
    if target:
        Path(target.strip()).write_text(output.getvalue(), encoding="utf-8")
    return status


def check_names(words: list[str]) -> None:
    """Of a command that is not run here: what it names exists, and it names something."""
    extras = {e for word in words for e in re.findall(r"\[([\w,]+)\]", word) for e in e.split(",")}
    files = {word for word in words if re.fullmatch(r"(\.ci|examples|benchmarks|tests)/.*", word)}
    sessions = set(words[words.index("-s") + 1 :]) if "nox" in words else set()
    whole = words[0] in ("pytest", "mkdocs", "torchrun") or words[:3] == ["pip", "install", "."]
    assert extras | files | sessions or whole, f"not run, and why is not said: {words}"
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    known = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    assert all(re.search(rf"^{extra} = \[", declared, re.M) for extra in extras), words
    assert all((ROOT / file).exists() for file in files), words
    assert all(re.search(rf'def {name}\(|name="{name}"', known) for name in sessions), words


def alike(text: str) -> str:
    """A text without what is another number in each run."""
    return _VARIES.sub("", text)


def public_names() -> Iterator[str]:
    """Every name that users import, with its package."""
    for package in ("", ".memory", ".pytorch", ".pytorch.callbacks"):
        module = import_module(f"scheduler{package}")
        yield from (f"{module.__name__}.{name}" for name in module.__all__)
