"""The pictures: what they show is what replays say, and a person can read it."""

from __future__ import annotations

import math
import random
import re
import sys
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scheduler import CostGraph, GraphPlan, LayerCost, Plan, compare, frontier, solve
from scheduler.cli.page import Files, plan_report
from scheduler.common.errors import SchedulerError
from scheduler.common.text import format_bytes
from scheduler.planning.certify import certified
from scheduler.planning.request import Budget
from scheduler.plans.pictures import plan_picture, strip_picture, timeline_picture
from scheduler.report.curve import Curve, Mark
from scheduler.report.figure import COLOURS, plot
from scheduler.report.labels import clean
from scheduler.report.svg import _DARK, svg
from solvers.schedule import Checkpoint, Item, Items, Keep, keep_all
from solvers.solution import Solution
from tests.chains import DENSENET
from tests.planning.test_graph_api import UNET, UNET_PEAK
from tests.report.svg_reading import SVG, check_texts, facts, of_class, parsed, text_boxes

ROOT = Path(__file__).parents[2]
EXAMPLE = DENSENET
FRONTIER = frontier(EXAMPLE)
WIDTHS = (880, 360)


def plan_of(costs: CostGraph, items: tuple[Item, ...], budget: int | None = None) -> Plan:
    """A plan that nobody solved for."""
    chain = costs.to_chain()
    solution = Solution.of(chain, Items(items), 0)
    size = None if budget is None else Budget(budget)
    return certified(costs, chain, solution, method="by hand", size=size)


def random_costs(length: int, seed: int) -> CostGraph:
    draw = random.Random(seed)
    layers = [
        {
            "name": f"block.{i}",
            "forward_time": draw.randint(1, 9),
            "backward_time": draw.randint(1, 20),
            "output_bytes": draw.randint(0, 9) * 10**6,
            "saved_bytes": draw.randint(0, 50) * 10**6,
            "gradient_bytes": draw.randint(0, 3) * 10**6,
            "output_saved": draw.random() < 0.5,
            "options": [{"name": "lean", "saved_bytes": 0, "recompute_time": 1}],
        }
        for i in range(length)
    ]
    return CostGraph(layers, 10**6, name="random")  # type: ignore[arg-type]


def nested(first: int, last: int, depth: int = 0) -> tuple[Item, ...]:
    if last - first < 4 or depth > 6:
        return (Checkpoint(first, last, tuple(Keep(i) for i in range(first, last + 1))),)
    middle = (first + last) // 2
    body = (*nested(first, middle, depth + 1), *(Keep(i) for i in range(middle + 1, last + 1)))
    return (Checkpoint(first, last, body),)


NESTED = (*nested(0, 11), Keep(12, "lean"), *(Keep(i) for i in range(13, 16)))


def plans() -> dict[str, Plan]:
    costs = random_costs(16, 1)
    return {
        "solved": solve(EXAMPLE, budget="1GB", reserved="10MB"),
        "tight": solve(EXAMPLE, budget="310MB"),
        "roomy": solve(EXAMPLE, budget="80GB"),
        "nested": plan_of(costs, NESTED),
        "graph": solve(UNET, budget=3 * UNET_PEAK // 4),
        "compute": solve(ROOT / "tests/data/graphs/res4.json", budget=10**9),
        "one layer": plan_of(random_costs(1, 2), keep_all(1)),
        "nothing": plan_of(
            CostGraph(
                (
                    LayerCost(
                        name="a", forward_time=0, backward_time=0, output_bytes=0, saved_bytes=0
                    ),
                )
            ),
            keep_all(1),
        ),
    }


PLANS = plans()


def artists(axes: Axes) -> dict[str, Any]:
    """What is drawn on the axes, by its name."""
    return {artist.get_gid() or "": artist for artist in axes.get_children()}


def areas(axes: Axes) -> dict[str, list[tuple[float, float, float]]]:
    """Start, end and height of every column, by what they are."""
    found = {}
    for name, artist in artists(axes).items():
        if hasattr(artist, "get_data") and name in ("first", "again", "back", "keep-all"):
            values, edges, _ = artist.get_data()
            columns = zip(edges, edges[1:], values, strict=False)
            found[name] = [each for each in columns if not math.isnan(each[2])]
    return found


def check_points(axes: Axes, points: list[tuple[int, float]]) -> None:
    """The stairs of the frontier turn at each point, or half a pixel from it."""
    line = artists(axes)["frontier"]
    assert line.get_drawstyle() == "steps-post"
    points_of = axes.transData.transform
    drawn = points_of(line.get_xydata()) * 72 / axes.figure.dpi
    for place in points_of(points) * 72 / axes.figure.dpi:
        assert abs(drawn - place).max(axis=1).min() <= 0.51


# --- the memory of a step ------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PLANS)
def test_a_timeline_shows_its_replay(name: str, width: int) -> None:
    plan = PLANS[name]
    root = parsed(timeline_picture(plan, width=width))
    done = plan.replay()
    (peak,) = of_class(root, "peak")
    assert int(peak.get("data-bytes", "")) == done.peak_bytes
    assert done.set_by.split()[1] in root.findtext(f"{SVG}desc", "")
    said = f"peak {format_bytes(done.peak_bytes)}"
    assert any(words.startswith(said) for words, _ in text_boxes(root))
    budgets = [int(each.get("data-bytes", "")) for each in of_class(root, "budget")]
    if plan.budget_bytes is not None and name not in ("roomy", "compute"):
        assert budgets == [plan.budget_bytes - plan.reserved_bytes]
    else:
        assert budgets == []
    assert bool(of_class(root, "again")) == any(runs > 1 for runs in plan.forwards.values())
    check_texts(root)


@pytest.mark.parametrize("name", ["solved", "tight", "nested", "graph"])
def test_the_bars_of_a_timeline_stand_where_the_replay_says(name: str) -> None:
    plan = PLANS[name]
    axes = plan.plot()
    drawn = [areas(axes)[kind] for kind in ("first", "again", "back") if kind in areas(axes)]
    heights = {height for columns in drawn for _, _, height in columns}
    assert max(heights) == plan.peak_bytes
    assert max(end for columns in drawn for _, end, _ in columns) == pytest.approx(plan.time)
    timeline = [during for _, during, _ in plan.timeline()]
    assert max(timeline) == plan.peak_bytes
    # Whatever lasts long enough to be seen is drawn at its height.
    assert len([each for each in timeline if each in heights]) > len(timeline) / 3


def test_keeping_everything_is_drawn_for_comparison() -> None:
    plan = PLANS["solved"]
    columns = areas(plan.plot())["keep-all"]
    assert max(height for _, _, height in columns) == plan.keep_all_peak_bytes
    assert max(end for _, end, _ in columns) == pytest.approx(plan.keep_all_time)


# --- time against memory -------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
def test_a_curve_has_every_method_where_it_is(width: int) -> None:
    plan = PLANS["solved"]
    comparison = compare(EXAMPLE, budget="1GB", reserved="10MB")
    root = parsed(FRONTIER.picture(plan, comparison, width))
    shown = {
        each.get("data-method"): (int(each.get("data-bytes", "")), float(each.get("data-time", "")))
        for each in of_class(root, "method")
    }
    rows = {row.method: (row.peak_bytes, row.time) for row in comparison.rows if row.time}
    assert shown == rows
    (mark,) = of_class(root, "plan")
    assert (int(mark.get("data-bytes", "")), float(mark.get("data-time", ""))) == (
        plan.peak_bytes,
        plan.time,
    )
    (bound,) = of_class(root, "plan-bound")
    assert float(bound.get("data-time", "")) == plan.lower_bound_time
    check_texts(root)
    words = " ".join(words for words, _ in text_boxes(root))
    assert "this plan" in words
    assert "keep-all" in words
    if width == WIDTHS[0]:
        assert all(method in words for method in rows if method != "optimal")


def test_the_line_of_the_budget_is_named_as_what_it_is() -> None:
    plan = PLANS["solved"]
    for text in (FRONTIER.picture(plan), timeline_picture(plan)):
        words = [words for words, _ in text_boxes(parsed(text))]
        assert "944.1 MiB: budget 1.000 GB (953.7 MiB) less 9.537 MiB reserved" in words
    words = [words for words, _ in text_boxes(parsed(timeline_picture(PLANS["tight"])))]
    assert "budget 310.0 MB (295.6 MiB)" in words


def test_a_strip_says_what_its_bars_and_lines_are() -> None:
    said = {name: " ".join(parsed(strip_picture(PLANS[name])).itertext()) for name in PLANS}
    assert "Each bar is a layer: the lower, the more often it runs." in said["roomy"]
    assert "Each bar is a node: " in said["compute"]
    assert "Each line below" not in said["roomy"]
    assert "Each line below is a segment: its input is kept, the rest of it runs" in said["solved"]
    assert ("nested" in said["solved"], "nested segments within it" in said["tight"]) == (0, 1)


def test_the_curve_goes_through_every_optimal_point() -> None:
    check_points(FRONTIER.plot(), list(FRONTIER))


def test_the_bounds_of_a_sweep_hold_for_smaller_budgets() -> None:
    sweep = frontier(UNET, points=5)
    bounds = artists(sweep.plot())["bound"]
    assert bounds.get_drawstyle() == "steps-pre"
    drawn = list(zip(bounds.get_xdata(), bounds.get_ydata(), strict=True))
    assert sweep.plans
    for plan in sweep.plans:
        assert plan.budget_bytes is not None or plan.method == "keep-all"
        assert (plan.budget_bytes or plan.peak_bytes, plan.lower_bound_time) in drawn
    # Between two budgets the stairs have the bound of the larger one, which is below every plan.
    for peak, time in sweep:
        assert next(bound for budget, bound in drawn if budget >= peak) <= time
    check_texts(parsed(sweep.picture()))


def test_a_thinned_frontier_claims_nothing() -> None:
    thinned = frontier(EXAMPLE, max_points=16)
    assert not thinned.exact
    root = parsed(thinned.picture())
    assert "near-optimal plans" in root.findtext(f"{SVG}desc", "")
    assert not of_class(root, "void")
    assert of_class(parsed(FRONTIER.picture()), "void")


# --- what happens to each layer ------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PLANS)
def test_a_strip_has_every_layer(name: str, width: int) -> None:
    plan = PLANS[name]
    root = parsed(strip_picture(plan, "a model", width))
    cells = of_class(root, "layer")
    assert [int(each.get("data-layer", "")) for each in cells] == list(range(len(plan.layers)))
    assert [int(each.get("data-runs", "")) for each in cells] == list(plan.forwards.values())
    for cell, layer in zip(cells, plan.layers, strict=True):
        assert layer in cell.findtext(f"{SVG}title", "")
    check_texts(root)


def test_a_strip_tells_options_and_segments() -> None:
    plan = PLANS["nested"]
    root = parsed(strip_picture(plan))
    states = {
        int(each.get("data-layer", "")): each.get("data-state", "")
        for each in of_class(root, "layer")
    }
    assert states[12] == "option"
    assert states[15] == "first"
    assert states[11] == "again"
    assert states[0] == "nested"
    spans = {
        (int(each.get("data-first", "")), int(each.get("data-last", "")), int(depth))
        for each in of_class(root, "segment")
        if (depth := each.get("data-depth")) is not None
    }
    assert spans == {(0, 11, 0), (0, 5, 1), (0, 2, 2)}


@pytest.mark.parametrize("width", WIDTHS)
def test_a_strip_names_options(width: int) -> None:
    costs = random_costs(16, 1)
    names = ("save-attention", "save-35%", "every-second-matmul", "lean")
    layers = [
        replace(layer, options=tuple(replace(layer.options[0], name=name) for name in names))
        for layer in costs.layers
    ]
    costs = CostGraph(tuple(layers), costs.input_bytes)
    items: tuple[Item, ...] = (
        *(Keep(i, names[0]) for i in range(6)),
        Checkpoint(6, 8, (Keep(6, names[1]), Keep(7), Keep(8, names[1]))),
        *(Keep(i, names[2]) for i in range(9, 14)),
        Keep(14, names[0]),
        Keep(15),
    )
    root = parsed(strip_picture(plan_of(costs, items), width=width))
    lines = [each.get("data-option") for each in of_class(root, "option")]
    assert lines == [names[n] for n in (0, 1, 1, 2, 0)]
    words = [words for words, _ in text_boxes(root)]
    assert names[0] in words
    said = root.findtext(f"{SVG}desc", "")
    assert "By option: save-attention (7), save-35% (2), every-second-matmul (5)." in said
    check_texts(root)


def test_a_timeline_shows_what_options_make_again() -> None:
    costs = random_costs(16, 1)
    plan = plan_of(costs, tuple(Keep(i, "lean") for i in range(16)))
    columns = areas(plan.plot())["again"]
    assert len(columns) == 16
    assert sum(end - start for start, end, _ in columns) == pytest.approx(16, abs=plan.time / 400)


# --- all of them ---------------------------------------------------------------------------------


def every_picture() -> list[str]:
    plan = PLANS["solved"]
    pictures = [FRONTIER.picture(plan, compare(EXAMPLE, budget="1GB"))]
    for each in PLANS.values():
        pictures += [timeline_picture(each), strip_picture(each)]
    return pictures


def test_a_picture_needs_nothing_else_and_has_two_dresses() -> None:
    for picture in every_picture():
        root = parsed(picture)
        assert not re.search(r"href|url\(|<script|@import|\bon\w+=", picture)
        assert set(re.findall(r"https?://[^\"]+", picture)) == {"http://www.w3.org/2000/svg"}
        assert "prefers-color-scheme:dark" in picture
        assert root.findtext(f"{SVG}title")
        assert root.findtext(f"{SVG}desc")
        assert root.get("role") == "img"
        _, _, width, height = map(float, root.get("viewBox", "").split())
        assert (width, height) == (float(root.get("width", "")), float(root.get("height", "")))


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [COLOURS, COLOURS | _DARK])
def test_colours_can_be_told_apart(colours: dict[str, str]) -> None:
    for words in ("ink", "muted", "limit"):
        assert contrast(colours[words], colours["paper"]) >= 4.5
    for mark in ("first", "nested", "option", "back"):
        assert contrast(colours[mark], colours["paper"]) >= 2.5
    # Neighbours in a timeline and in a strip, also where only lightness is seen or red is green.
    for one, other in (("first", "again"), ("again", "back"), ("again", "nested")):
        assert contrast(colours[one], colours[other]) >= 1.15
        pairs = zip(seen(colours[one]), seen(colours[other]), strict=True)
        assert sum(abs(a - b) for a, b in pairs) > 50


def seen(colour: str) -> tuple[float, float, float]:
    """A colour as somebody without green receptors sees it (Viénot, Brettel and Mollon 1999)."""
    r, g, b = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    mixed = 0.29275 * r + 0.70725 * g
    return mixed, mixed, -0.02234 * r + 0.02234 * g + b


def test_names_of_any_kind_are_drawn() -> None:
    names = ["<b>&\"'</b>", "]]>", "层" * 40, "x" * 300, "é"]
    layers = [
        {"name": name, "forward_time": 1, "backward_time": 2, "output_bytes": 5, "saved_bytes": 9}
        for name in names
    ]
    costs = CostGraph(layers, name="</svg><script>")  # type: ignore[arg-type]
    plan = plan_of(costs, (Checkpoint(0, 3, tuple(map(Keep, range(4)))), Keep(4)), budget=10**6)
    for width in WIDTHS:
        pictures = (
            timeline_picture(plan, width=width),
            strip_picture(plan, costs.name, width),
            frontier(costs).picture(plan, compare(costs, budget=10**6), width),
        )
        for picture in pictures:
            assert "<script" not in picture
            check_texts(parsed(picture))


def test_what_xml_forbids_is_replaced() -> None:
    assert clean('\x00\x1b[31m a\nb \ud800 <&"') == '��[31m a�b � <&"'


def test_what_a_notebook_shows() -> None:
    plan = PLANS["solved"]
    assert plan._repr_svg_() == timeline_picture(plan)
    loaded = Plan.from_json(plan.to_json())
    assert loaded._repr_svg_() == strip_picture(loaded) == plan_picture(loaded)
    graph = PLANS["graph"]
    assert isinstance(graph, GraphPlan)
    assert 'data-picture="timeline"' in (graph._repr_svg_() or "")
    assert FRONTIER._repr_svg_() == FRONTIER.picture()


def test_notebooks_show_a_picture_or_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = replace(EXAMPLE, name="a < b")
    table = compare(costs, budget="1GB")
    compute = PLANS["compute"].own_costs()
    for shown in (costs, compute, table):
        assert shown._repr_svg_() is None
        assert shown._repr_html_() == f"<pre>{escape(str(shown))}</pre>"
    assert "a &lt; b: 75 layers" in (costs._repr_html_() or "")
    assert FRONTIER._repr_html_() is PLANS["solved"]._repr_html_() is None
    monkeypatch.setattr("scheduler.report.notebook.can_draw", lambda: False)
    for each in (FRONTIER, PLANS["solved"]):
        assert each._repr_html_() == f"<pre>{escape(str(each))}</pre>"


def test_a_plan_of_a_thousand_layers_is_not_large() -> None:
    costs = random_costs(1000, 3)
    plan = plan_of(costs, (*nested(0, 599), *(Keep(i) for i in range(600, 1000))))
    drawn = areas(plan.plot())
    heights = [each[2] for kind in ("first", "again", "back") for each in drawn[kind]]
    assert max(heights) == plan.peak_bytes
    assert len(timeline_picture(plan)) < 200_000
    strip = strip_picture(plan)
    assert len(strip) < 400_000
    check_texts(parsed(strip))


def test_a_frontier_of_fifty_thousand_points_is_thinned_unseen() -> None:
    draw = random.Random(5)
    points, peak, time = [], 10**9, 9e6
    for _ in range(50_000):
        peak, time = peak + draw.randrange(1, 10**7), time - draw.uniform(0.01, 80)
        points.append((peak, time))
    plan = Mark("optimal", *points[20_000])
    shown = Curve(
        "huge", points, "optimal plans", True, (), [], plan, plan.time, time, "ms", None, 0
    )
    assert len(svg(shown, 880)) < 100_000
    check_points(plot(shown, None), points[::500])


def test_the_pictures_of_the_docs_are_up_to_date() -> None:
    import runpy

    drawn = runpy.run_path(str(ROOT / "benchmarks" / "pictures.py"))["pictures"]()
    folder = ROOT / "docs" / "pictures"
    # The same facts: another version of matplotlib may place them a little elsewhere.
    assert {path.name: facts(path.read_text(encoding="utf-8")) for path in folder.iterdir()} == {
        name: facts(text) for name, text in drawn.items()
    }


# --- on anybody's axes ----------------------------------------------------------------------------


def test_plots_have_a_figure_of_their_own_or_are_drawn_where_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Others may have loaded it before, as Lightning does.
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    solved, loaded = PLANS["solved"], Plan.from_json(PLANS["solved"].to_json())
    comparison = compare(EXAMPLE, budget="1GB")
    sweep, of_graph = frontier(UNET, points=3), compare(UNET, budget=UNET_PEAK, time_limit=2.0)
    everything: list[Any] = [solved, loaded, FRONTIER, comparison, sweep, of_graph]
    for i, shown in enumerate(everything):
        own = shown.plot()
        for name in (f"{i}.png", f"{i}.pdf", f"{i}.svg"):
            own.figure.savefig(tmp_path / name)
            assert (tmp_path / name).stat().st_size > 1000
        axes = Figure(figsize=(5, 4)).add_subplot(1, 2, 2)
        assert shown.plot(ax=axes) is axes
        assert axes.get_title()
        assert axes.get_legend() is not None
    assert (tmp_path / "0.png").read_bytes().startswith(b"\x89PNG")
    assert "matplotlib.pyplot" not in sys.modules  # no figure is anybody's "current" one


def test_a_plan_without_costs_is_plotted_as_a_strip() -> None:
    loaded = Plan.from_json(PLANS["nested"].to_json())
    names = artists(loaded.plot())
    assert {"layer", "segment"} <= names.keys()
    assert {"first", "peak"} <= artists(PLANS["nested"].plot()).keys()


def test_a_comparison_is_plotted_with_every_method_and_the_budget() -> None:
    comparison = compare(EXAMPLE, budget="1GB", reserved="10MB")
    drawn = artists(comparison.plot())
    assert list(drawn["budget"].get_xdata()) == [990 * 10**6] * 2
    marks = {
        (artist.get_xdata()[0], artist.get_ydata()[0])
        for name, artist in drawn.items()
        if name.startswith("method")
    }
    assert marks == {(row.peak_bytes, row.time) for row in comparison.rows if row.time is not None}
    stairs = drawn["frontier"]
    optima = {(row.peak_bytes, row.optimal_time_at_peak) for row in comparison.rows if row.time}
    assert set(zip(stairs.get_xdata()[:-1], stairs.get_ydata()[:-1], strict=True)) <= optima


def test_two_frontiers_share_axes() -> None:
    axes = Figure().add_subplot()
    other = frontier(random_costs(16, 1))
    FRONTIER.plot(axes)
    other.plot(axes)
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    for peak, time in (*FRONTIER, *other):
        assert left <= peak <= right
        assert low <= time <= high


def test_a_users_settings_do_not_change_what_is_written() -> None:
    plan = PLANS["solved"]
    usual = timeline_picture(plan)
    with matplotlib.rc_context({"text.usetex": True, "font.size": 30, "axes.facecolor": "red"}):
        before = dict(matplotlib.rcParams)
        assert timeline_picture(plan) == usual
        assert dict(matplotlib.rcParams) == before


def test_without_matplotlib_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.report.figure.find_spec", lambda name: None)
    plan, sentence = PLANS["solved"], r"pip install 'checkpoint-scheduler\[report\]'"
    for draw in (plan.plot, FRONTIER.plot, partial(timeline_picture, plan)):
        with pytest.raises(SchedulerError, match=f"a picture needs matplotlib.*{sentence}"):
            draw()
    assert plan._repr_svg_() is None
    assert FRONTIER._repr_svg_() is None
    with pytest.raises(SchedulerError, match=f"a report needs jinja2.*{sentence}"):
        plan_report(plan, EXAMPLE, None, Files("plan.json", " --costs costs.json", "report.html"))
