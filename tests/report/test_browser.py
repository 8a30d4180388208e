"""Reports in a real browser: nothing overflows, no label covers another, nothing is complained of.

They run with ``pytest -m browser``, and need Chromium.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scheduler import CostGraph, solve
from scheduler.cli.main import main
from tests.planning.test_graph_api import UNET, UNET_PEAK
from tests.report.browser import Browser
from tests.report.test_pictures import random_costs

pytestmark = pytest.mark.browser

WIDTHS = (1280, 390)
NAMES = ("chain", "graph", "long", "options")

MEASURE = """
(() => {
  const box = e => { const r = e.getBoundingClientRect();
    return [r.left, r.top, r.right, r.bottom]; };
  const seen = e => e.getClientRects().length > 0;
  const scrolls = e => e.closest('.scroll, pre') !== null;
  return {
    page: document.documentElement.scrollWidth,
    window: window.innerWidth,
    paper: getComputedStyle(document.body).backgroundColor,
    wide: [...document.querySelectorAll('body *')].filter(e => seen(e) && !scrolls(e) &&
      e.getBoundingClientRect().right > window.innerWidth).map(e => e.outerHTML.slice(0, 200)),
    pictures: [...document.querySelectorAll('svg')].filter(seen).map(svg => ({
      kind: svg.dataset.picture, box: box(svg),
      paper: getComputedStyle(svg.querySelector('.ckpt-paper path')).fill,
      texts: [...svg.querySelectorAll('text')].map(t => ({
        words: t.textContent, box: box(t), fill: getComputedStyle(t).fill,
        size: parseFloat(getComputedStyle(t).fontSize) * svg.getBoundingClientRect().width /
          svg.viewBox.baseVal.width})),
    })),
  };
})()
"""


def costs_of(name: str) -> CostGraph:
    if name == "chain":
        return CostGraph.example("densenet121")
    if name == "graph":
        return UNET
    if name == "options":
        return random_costs(60, 1)
    layers = random_costs(8, 2).layers
    many = [
        replace(layers[i % 8], name=f"model.decoder.layers.{i}.with_a_rather_long_name")
        for i in range(1000)
    ]
    return CostGraph(tuple(many), name="a model with a thousand layers and a long name")


@pytest.fixture(scope="module", params=NAMES)
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made by the command line, as a person does."""
    folder = tmp_path_factory.mktemp(request.param)
    costs = costs_of(request.param)
    costs.save(folder / "costs.json")
    keep_all = UNET_PEAK if costs is UNET else solve(costs, budget="100TB").keep_all_peak_bytes
    budget = keep_all * 3 // 4 if costs is UNET else keep_all // 2
    solve(costs, budget=budget).save(folder / "plan.json")
    path = folder / "report.html"
    arguments = ["report", str(folder / "plan.json"), "--costs", str(folder / "costs.json")]
    limit = ["--time-limit", "5"] if request.param in ("graph", "long") else []
    assert main([*arguments, *limit, "-o", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_report_in_a_browser(browser: Browser, report: Path, width: int, scheme: str) -> None:
    browser.open(report, width, scheme)
    seen = browser.value(MEASURE)
    assert seen["window"] == width
    assert seen["page"] <= width
    assert seen["wide"] == []
    assert browser.said == []
    assert browser.asked == [report.as_uri()]
    dark = scheme == "dark"
    assert brightness(seen["paper"]) < 60 if dark else brightness(seen["paper"]) > 200
    assert [each["kind"] for each in seen["pictures"]] == ["timeline", "curve", "strip"]
    for picture in seen["pictures"]:
        check(picture, dark)


def check(picture: dict[str, Any], dark: bool) -> None:
    """Its texts are inside it, apart from each other, large enough, and stand out."""
    left, top, right, bottom = picture["box"]
    paper = brightness(picture["paper"])
    assert paper < 60 if dark else paper > 200
    assert picture["texts"]
    for i, each in enumerate(picture["texts"]):
        words, (x0, y0, x1, y1) = each["words"], each["box"]
        assert left <= x0 <= x1 <= right, words
        assert top <= y0 <= y1 <= bottom, words
        assert each["size"] >= 11, words
        assert abs(brightness(each["fill"]) - paper) > 80, words
        for other in picture["texts"][:i]:
            a0, b0, a1, b1 = other["box"]
            apart = x1 <= a0 or a1 <= x0 or y1 <= b0 or b1 <= y0
            assert apart, (words, other["words"])


def brightness(colour: str) -> float:
    """Of ``rgb(1, 2, 3)``, from 0 to 255."""
    red, green, blue = (float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3])
    return 0.299 * red + 0.587 * green + 0.114 * blue


def test_without_a_browser_it_is_said_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.report import browser

    monkeypatch.setenv("CHROMIUM", "/no/such/chromium")
    with pytest.raises(AssertionError, match="apt-get install chromium"):
        browser.chromium()
