"""What README, site and notebook show is what happens; ``DOCS=write`` writes it into them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.house.pages import BLOCK, PAGES, ROOT, played, public_names

WRITES = os.environ.get("DOCS") == "write"
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning")
@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_as_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ROOT / name
    text = path.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    now = played(text, name)
    if WRITES:
        path.write_text(now, encoding="utf-8")
    else:
        assert now == text
