"""The HTML file: whole, alone, and with the figures of the replay.

A browser is not among what the tests install, so what one would say is checked on the text: that
it is well-formed, loads nothing, and that whatever is wide scrolls or shrinks.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from scheduler import CostGraph, Plan, compare, frontier, solve
from scheduler.cli.page import Files, plan_report
from scheduler.common.text import format_bytes, format_time
from scheduler.plans.rows import plan_rows
from solvers.schedule import Keep
from tests.planning.test_graph_api import UNET, UNET_PEAK
from tests.report.svg_reading import SVG, check_texts, of_class
from tests.report.test_pictures import EXAMPLE, NESTED, plan_of, random_costs

FILES = Files("plan.json", " --costs costs.json", "report.html")


def report_of(plan: Plan, costs: CostGraph, **limits: float) -> str:
    budget = plan.budget_bytes or plan.peak_bytes
    comparison = compare(costs, budget=budget, reserved=plan.reserved_bytes, **limits)  # type: ignore[arg-type]
    whole = frontier(costs, **limits)  # type: ignore[arg-type]
    return plan_report(plan, costs, (whole, comparison), FILES)


REPORTS = {
    "chain": (solve(EXAMPLE, budget="310MB", reserved="1MB"), EXAMPLE, {}),
    "graph": (solve(UNET, budget=3 * UNET_PEAK // 4), UNET, {"time_limit": 5.0}),
    "options": (plan_of(random_costs(16, 1), NESTED), random_costs(16, 1), {}),
}
TEXTS = {name: report_of(plan, costs, **limits) for name, (plan, costs, limits) in REPORTS.items()}


def parsed(text: str) -> ElementTree.Element:
    head, _, rest = text.partition("\n")
    assert head == "<!DOCTYPE html>"
    return ElementTree.fromstring(rest)


def table(root: ElementTree.Element, name: str) -> list[list[str]]:
    (found,) = (each for each in root.iter("table") if each.get("data-table") == name)
    return [["".join(cell.itertext()) for cell in row] for row in found.iter("tr")]


@pytest.mark.parametrize("name", TEXTS)
def test_the_file_stands_alone(name: str) -> None:
    text = TEXTS[name]
    root = parsed(text)
    assert not re.search(r"<script|<link|<img|<iframe|\bsrc=|href=|url\(|@import|\bon\w+=", text)
    assert set(re.findall(r"https?://[^\"<\s]+", text)) == {"http://www.w3.org/2000/svg"}
    policy = next(m for m in root.iter("meta") if m.get("http-equiv"))
    assert policy.get("content") == "default-src 'none'; style-src 'unsafe-inline'"
    assert 'name="viewport" content="width=device-width, initial-scale=1"' in text
    assert "prefers-color-scheme:dark" in text
    assert len(text) < 1_000_000
    assert text == report_of(*REPORTS[name][:2], **REPORTS[name][2])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", TEXTS)
def test_nothing_is_wider_than_the_window(name: str) -> None:
    text = TEXTS[name]
    root = parsed(text)
    assert "figure svg{display:block;width:100%;height:auto}" in text
    parents = {child: parent for parent in root.iter() for child in parent}
    for each in root.iter("table"):
        assert parents[each].get("class") == "scroll"
    assert ".scroll{overflow-x:auto" in text
    assert re.search(r"pre\{overflow-x:auto", text)
    pictures = list(root.iter(f"{SVG}svg"))
    kinds = [each.get("data-picture") for each in pictures]
    # Each is there for wide windows and for narrow ones, and one of the two is hidden.
    assert kinds == [k for k in ("timeline", "curve", "strip") for _ in range(2)]
    assert [parents[each].get("class") for each in pictures] == ["wide", "narrow"] * 3
    for each in pictures:
        check_texts(each)
        width = float(each.get("viewBox", "").split()[2])
        assert width == (880 if parents[each].get("class") == "wide" else 360)


@pytest.mark.parametrize("name", TEXTS)
def test_the_figures_are_those_of_the_replay(name: str) -> None:
    plan, costs, _ = REPORTS[name]
    root = parsed(TEXTS[name])
    done = plan.replay(costs)
    facts = {
        each.findtext("dt"): "".join(each.find("dd").itertext())  # type: ignore[union-attr]
        for each in root.iter("div")
        if each.find("dt") is not None
    }
    assert facts["peak"].startswith(f"{format_bytes(done.peak_bytes)}{done.set_by};")
    assert facts["time of a step"].startswith(format_time(done.time, plan.time_unit))
    for picture in root.iter(f"{SVG}svg"):
        if picture.get("data-picture") == "timeline":
            (peak,) = of_class(picture, "peak")
            assert int(peak.get("data-bytes", "")) == done.peak_bytes
    header, *body = table(root, "plan")
    rows = plan_rows(plan, costs)
    column = header.index("highest")
    assert [row[column] for row in body] == [format_bytes(row.highest_bytes) for row in rows]
    assert [row[-1] for row in body] == ["peak" if row.sets_peak else "" for row in rows]
    methods = {row[0]: row[1:] for row in table(root, "methods")[1:]}
    everything = format_bytes(plan.keep_all_peak_bytes)
    assert methods["keep-all"][0] == everything


def test_how_to_make_it_again_makes_it_again() -> None:
    plan, costs, _ = REPORTS["chain"]
    root = parsed(TEXTS["chain"])
    lines = "".join(next(root.iter("pre")).itertext()).splitlines()
    assert lines[0] == (
        "checkpoint-scheduler solve costs.json --budget 310000000B --method optimal "
        "--reserved 1000000B -o plan.json"
    )
    assert lines[1:] == [
        "checkpoint-scheduler show plan.json --costs costs.json",
        "checkpoint-scheduler report plan.json --costs costs.json -o report.html",
    ]
    assert solve(costs, budget=310000000, reserved=1000000) == plan
    assert plan.costs_sha256 in TEXTS["chain"]
    graph = "".join(next(parsed(TEXTS["graph"]).iter("pre")).itertext())
    assert "--method auto --optimal-in forward -o plan.json" in graph


def test_a_report_without_solving() -> None:
    plan, costs, _ = REPORTS["chain"]
    root = parsed(plan_report(plan, costs, None, FILES))
    kinds = {each.get("data-picture") for each in root.iter(f"{SVG}svg")}
    assert kinds == {"timeline", "strip"}
    assert [each.get("data-table") for each in root.iter("table")] == ["plan"]


def test_a_long_plan_is_cut() -> None:
    costs = random_costs(900, 4)
    items = tuple(Keep(i, "lean" if i % 2 else None) for i in range(900))
    plan = plan_of(costs, items)
    text = plan_report(plan, costs, None, FILES)
    assert "700 more rows: show --csv prints them all." in text
    assert len(text) < 1_000_000


def test_names_are_escaped() -> None:
    names = ["<b>&\"'</b>", "</td><script>", "{{ 7 * 7 }}", "$x_1$"]
    layers = [
        {"name": name, "forward_time": 1, "backward_time": 2, "output_bytes": 5, "saved_bytes": 9}
        for name in names
    ]
    costs = CostGraph(layers, name="</title><script>")  # type: ignore[arg-type]
    plan = plan_of(costs, tuple(map(Keep, range(4))), budget=10**6)
    text = report_of(plan, costs)
    assert "<script" not in text
    rows = [row[0] for row in table(parsed(text), "plan")[1:]]
    assert rows == ["<b>&\"'</b>–$x_1$"]
    assert "{{ 7 * 7 }}" in text
