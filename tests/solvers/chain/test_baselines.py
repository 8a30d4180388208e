"""The baseline methods for chains: closed forms, simple searches, single-level plans exactly."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from solvers.chain import binomial, greedy, segments, uniform
from solvers.chain.exact.frontier import Frontier
from solvers.chain.methods import single_level
from solvers.chain.problem import Chain
from solvers.problem import Layer
from solvers.schedule import Checkpoint, Item, Items, Keep, depth, keep_all
from solvers.solution import Infeasible, Solution, Status, Unsuitable
from tests.oracles.strategies import chains

Solver = Callable[[Chain, int], Solution[Items]]

UNIFORM: list[Solver] = [
    uniform.solve,
    uniform.solve_sqrt,
    uniform.solve_ratio,
    uniform.solve_keep_all,
    uniform.solve_every_layer,
]
BASELINES: list[Solver] = [*UNIFORM, greedy.solve]
PLENTY = 2**62


def examples(count: int) -> settings:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    return settings(
        max_examples=count, deadline=None, derandomize=True, suppress_health_check=checks
    )


def single_level_plans(chain: Chain, first: int = 0) -> Iterator[tuple[Item, ...]]:
    """Every plan whose bodies keep everything, also those that checkpoint the chain's end."""
    if first == len(chain):
        yield ()
        return
    options = [None, *(option.name for option in chain.layers[first].options)]
    for rest in single_level_plans(chain, first + 1):
        for option in options:
            yield (Keep(first, option), *rest)
    for last in range(first, len(chain)):
        if not chain.layers[last].recomputable:
            break
        body = tuple(Keep(i) for i in range(first, last + 1))
        for rest in single_level_plans(chain, last + 1):
            yield (Checkpoint(first, last, body), *rest)


def best_points(chain: Chain) -> list[tuple[int, int]]:
    """Pareto set of the replays of every single-level plan."""
    results = [chain.replay(Items(items)) for items in single_level_plans(chain)]
    points: list[tuple[int, int]] = []
    for peak, cost in sorted((r.peak_bytes, r.time) for r in results):
        if not points or cost < points[-1][1]:
            points.append((peak, cost))
    return points


def random_chain(length: int, seed: int, kinds: int = 0) -> Chain:
    """A chain of `length` layers, of only `kinds` different ones if that is not 0."""
    draw = random.Random(seed)
    layers: list[Layer] = []
    for i in range(length):
        if kinds and i >= kinds:
            layers.append(replace(layers[draw.randrange(kinds)], name=f"l{i}"))
            continue
        f = draw.randint(10**6, 10**8)
        layers.append(
            Layer(
                name=f"l{i}",
                forward_time=f,
                backward_time=2 * f,
                output_bytes=draw.randint(1, 2**26),
                saved_bytes=draw.randint(1, 2**28),
                recompute_time=7 * f // 10,
                forward_transient_bytes=draw.randint(0, 2**22),
                drop_transient_bytes=draw.randint(0, 2**24),
                backward_transient_bytes=draw.randint(0, 2**24),
                gradient_bytes=draw.randint(0, 2**10),
                input_saved=draw.random() < 0.7,
                output_saved=draw.random() < 0.5,
            )
        )
    return Chain(tuple(layers), 2**24)


def identical(length: int, **changes: int | bool) -> Chain:
    layer = Layer("a", 10, 20, 4, 9, 7, 1, 3, 2, 1, 5)
    layer = replace(layer, **changes)  # type: ignore[arg-type]
    return Chain(tuple(replace(layer, name=f"l{i}") for i in range(length)), layer.output_bytes)


# Single-level plans


@examples(125)
@given(chains(max_layers=5))
def test_the_single_level_frontier_is_that_of_every_plan(chain: Chain) -> None:
    assert Frontier(chain, nested=False).points == best_points(chain)


def test_equal_layers_that_do_not_save_their_input() -> None:
    # The first span is the model of all equal ones, and must have what the later ones need of it.
    layer = Layer("a", 1, 1, 1, 1, 1, input_saved=False, output_saved=False)
    chain = Chain(tuple(replace(layer, name=f"l{i}") for i in range(4)), 1)
    assert Frontier(chain, nested=False).points[0][0] == best_points(chain)[0][0] == 6


@examples(40)
@given(chains(min_layers=6, max_layers=8, max_options=0))
def test_the_single_level_frontier_of_longer_chains(chain: Chain) -> None:
    assert Frontier(chain, nested=False).points == best_points(chain)


@examples(120)
@given(chains(max_layers=5))
def test_single_level_solves_every_budget(chain: Chain) -> None:
    points = best_points(chain)
    for peak, cost in points:
        solution = single_level(chain, peak)
        assert (solution.peak_bytes, solution.time) == (peak, cost)
        assert solution.lower_bound_time == chain.least_time
    least = points[0][0]
    for (_, before), (peak, _) in pairwise(points):  # just below a point, the one before is best
        assert single_level(chain, peak - 1).time == before
    with pytest.raises(Infeasible) as caught:
        single_level(chain, least - 1)
    assert caught.value.needs_bytes == least
    result = chain.replay(caught.value.schedule)
    assert (result.peak_bytes, result.time) == points[0]


@examples(25)
@given(chains(min_layers=20, max_layers=30, max_options=1), st.integers(0, 2**32))
def test_one_budget_agrees_with_the_frontier(chain: Chain, seed: int) -> None:
    points = Frontier(chain, nested=False).points
    for peak, cost in random.Random(seed).sample(points, min(4, len(points))):
        solution = single_level(chain, peak)
        assert (solution.peak_bytes, solution.time) == (peak, cost)
        assert depth(solution.schedule.items) <= 1


@pytest.mark.parametrize("seed", range(3))
def test_one_budget_loses_no_optimum_where_sets_are_large(seed: int) -> None:
    chain = random_chain(80, seed)
    points = Frontier(chain, nested=False).points
    assert len(points) > 1000
    for (_, before), (peak, cost) in list(pairwise(points))[:: len(points) // 6]:
        solution = single_level(chain, peak)
        assert (solution.peak_bytes, solution.time) == (peak, cost)
        assert single_level(chain, peak - 1).time == before


def test_single_level_is_optimal_only_when_nothing_is_recomputed() -> None:
    chain = identical(6)
    whole = chain.replay(Items(keep_all(6))).peak_bytes
    assert single_level(chain, whole).status is Status.OPTIMAL
    assert single_level(chain, whole).schedule.items == keep_all(6)
    assert single_level(chain, whole - 1).status is Status.FEASIBLE


def test_a_layer_that_must_be_kept_is_kept() -> None:
    chain = identical(9)
    layers = list(chain.layers)
    layers[4] = replace(layers[4], recomputable=False)
    chain = Chain(tuple(layers), chain.input_bytes)
    with pytest.raises(Infeasible) as caught:
        single_level(chain, 0)
    assert Keep(4) in caught.value.schedule.items
    assert all(Keep(4) in uniform.uniform_plan(chain, k) for k in range(1, 10))
    assert Keep(4) in greedy.solve(chain, PLENTY).schedule.items


def test_long_chains_are_solved() -> None:
    chain = random_chain(340, 1, kinds=12)
    points = Frontier(chain, nested=False).points
    peak, cost = points[len(points) // 3]
    assert single_level(chain, peak).time == cost
    chain = random_chain(1000, 2, kinds=12)
    for solver in (uniform.solve, greedy.solve, single_level):
        whole = uniform.solve_keep_all(chain, PLENTY).peak_bytes
        assert solver(chain, whole // 3).peak_bytes <= whole // 3


# The √L rule


def test_the_figures_of_the_sqrt_rule() -> None:
    # 5 and 6 are the neighbours of √32; the ceiling makes 4, 7 and 8 as good.
    assert uniform.best_integer_k(32) == [4, 5, 6, 7, 8]
    assert {uniform.integer_peak(32, k) for k in (4, 5, 6, 7, 8)} == {12}
    assert uniform.best_integer_k(80) == [8, 9, 10]
    assert {uniform.integer_peak(80, k) for k in (8, 9, 10)} == {18}
    assert uniform.sqrt_saving(32) == pytest.approx(2.83, abs=0.005)
    assert uniform.sqrt_saving(80) == pytest.approx(4.47, abs=0.005)


@pytest.mark.parametrize("layers", [1, 2, 32, 80, 1000])
def test_the_rules_minimise_what_they_say(layers: int) -> None:
    k = uniform.sqrt_rule(layers)
    assert layers / k + k == pytest.approx(uniform.sqrt_peak(layers))
    assert layers / uniform.sqrt_peak(layers) == pytest.approx(uniform.sqrt_saving(layers))
    k = uniform.ratio_rule(layers, 3, 20)
    around = [3 * layers / q + 20 * q for q in (k * 0.99, k, k * 1.01)]
    assert min(around) == around[1]
    assert uniform.ratio_rule(layers, 7, 7) == pytest.approx(uniform.sqrt_rule(layers))


def test_the_ratio_rule_at_its_edges() -> None:
    assert uniform.ratio_rule(9, 1, 0) == math.inf
    assert uniform.ratio_rule(9, 0, 1) == 0
    assert uniform.ratio_rule(9, 0, 0) == 3
    assert uniform.ratio_peak(32, 5, 2, 10) == 2 * 7 + 10 * 5
    # A transformer block: an interior is about 20 boundaries, so every layer is its own segment.
    assert round(uniform.ratio_rule(32, 1, 20)) == 1


def test_segments_of_k_and_the_one_that_ends_the_chain() -> None:
    first = Checkpoint(0, 2, (Keep(0), Keep(1), Keep(2)))
    assert uniform.uniform_plan(identical(5), 3) == (first, Keep(3), Keep(4))
    assert uniform.uniform_plan(identical(3), 3) == keep_all(3)
    every = uniform.solve_every_layer(identical(4), PLENTY)
    assert every.schedule.items == (*(Checkpoint(i, i, (Keep(i),)) for i in range(3)), Keep(3))
    assert uniform.solve_keep_all(identical(4), PLENTY).status is Status.OPTIMAL


def test_the_closed_forms_use_their_k() -> None:
    chain = identical(32)
    sqrt_plan = uniform.uniform_plan(chain, 6)
    assert uniform.solve_sqrt(chain, PLENTY).schedule.items == sqrt_plan
    k = round(math.sqrt(32 * 4 / (9 + 4)))
    assert uniform.solve_ratio(chain, PLENTY).schedule.items == uniform.uniform_plan(chain, k)
    free = identical(5, saved_bytes=0, output_saved=False, backward_overlap_bytes=0)
    assert uniform.solve_ratio(free, PLENTY).schedule.items == keep_all(5)  # k = L
    fixed = identical(5, recomputable=False)
    assert all(solver(fixed, PLENTY).schedule.items == keep_all(5) for solver in BASELINES)


@examples(150)
@given(chains(max_layers=12, max_options=0), st.data())
def test_the_quick_evaluation_is_the_replay(chain: Chain, data: st.DataObject) -> None:
    drawn: list[tuple[int, int]] = []
    at = 0
    while at < len(chain):
        end = at
        while end < len(chain) and chain.layers[end].recomputable:
            end += 1
        last = at
        if end > at and data.draw(st.booleans()):
            last = data.draw(st.integers(at, end - 1))
            drawn.append((at, last))
        at = last + 1
    result = chain.replay(Items(segments.plan_of(len(chain), tuple(drawn))))
    quick = segments.evaluate(chain, segments.Tables(chain), tuple(drawn))
    assert quick == (result.peak_bytes, result.time)


# All methods


@examples(120)
@given(chains(max_layers=10))
def test_baselines_are_valid_within_budget_and_no_faster_than_single_level(chain: Chain) -> None:
    points = Frontier(chain, nested=False).points
    for solver in BASELINES:
        with pytest.raises(Infeasible) as caught:
            solver(chain, -1)
        least = caught.value.needs_bytes
        assert chain.replay(caught.value.schedule).peak_bytes == least
        for budget in (least, 2 * least, PLENTY):
            solution = solver(chain, budget)
            result = chain.replay(solution.schedule)
            assert (result.peak_bytes, result.time) == (solution.peak_bytes, solution.time)
            assert result.peak_bytes <= budget
            assert solution.time >= min(cost for peak, cost in points if peak <= budget)
        if least:
            with pytest.raises(Infeasible):
                solver(chain, least - 1)


@examples(60)
@given(chains(max_layers=12, max_options=0))
def test_uniform_is_the_best_of_every_k(chain: Chain) -> None:
    tried = [uniform.uniform_segments(chain, k) for k in range(1, len(chain) + 1)]
    if not chain.layers[-1].recomputable:
        tried += [cut[:-1] for cut in tried]  # the last segment kept
    plans = [segments.plan_of(len(chain), cut) for cut in [*tried, ()]]
    results = [chain.replay(Items(items)) for items in plans]
    for budget in {result.peak_bytes for result in results}:
        best = min(r.time for r in results if r.peak_bytes <= budget)
        assert uniform.solve(chain, budget).time == best
    with pytest.raises(Infeasible) as caught:
        uniform.solve(chain, min(r.peak_bytes for r in results) - 1)
    assert caught.value.needs_bytes == min(r.peak_bytes for r in results)


@pytest.mark.parametrize("kept", [{6}, {2}, {0, 3, 6}])
@pytest.mark.parametrize("solver", [uniform.solve, greedy.solve])
def test_nothing_is_recomputed_when_everything_fits(solver: Solver, kept: set[int]) -> None:
    chain = identical(7)
    layers = [replace(la, recomputable=i not in kept) for i, la in enumerate(chain.layers)]
    chain = Chain(tuple(layers), chain.input_bytes)
    whole = chain.replay(Items(keep_all(7))).peak_bytes
    assert solver(chain, whole).schedule.items == keep_all(7)
    assert depth(solver(chain, whole - 1).schedule.items) == 1
    assert depth(uniform.solve_sqrt(chain, PLENTY).schedule.items) == 1  # the rule's one plan


@pytest.mark.parametrize("solver", [uniform.solve, greedy.solve])
def test_the_last_segment_may_be_kept_before_a_tail_that_must_be(solver: Solver) -> None:
    chain = identical(7)
    layers = (*chain.layers[:6], replace(chain.layers[6], recomputable=False))
    chain = Chain(layers, chain.input_bytes)
    plan = segments.plan_of(7, ((0, 2),))
    assert solver(chain, chain.replay(Items(plan)).peak_bytes).schedule.items == plan


def test_the_greedy_walk_ends_a_segment_above_the_threshold() -> None:
    chain = identical(7)  # 13 bytes a layer
    assert greedy.greedy_segments(chain, 13) == ((0, 1), (2, 3), (4, 5))
    assert greedy.greedy_segments(chain, 26) == ((0, 2), (3, 5))
    assert greedy.greedy_segments(chain, 12) == tuple((i, i) for i in range(6))
    assert greedy.greedy_segments(chain, 7 * 13) == ()
    assert greedy.solve(chain, PLENTY).schedule.items == keep_all(7)
    layers = (*chain.layers[:6], replace(chain.layers[6], recomputable=False))
    ends_kept = Chain(layers, chain.input_bytes)
    assert greedy.greedy_segments(ends_kept, 1000) == ((0, 5),)
    # Where one layer dominates no larger threshold ends a segment before it.
    sizes = [replace(layer, saved_bytes=90) for layer in chain.layers]
    chain = Chain((*sizes[:6], replace(sizes[6], saved_bytes=1000)), chain.input_bytes)
    least = chain.replay(Items(segments.plan_of(7, tuple((i, i) for i in range(6))))).peak_bytes
    assert greedy.solve(chain, least).peak_bytes <= least


@pytest.mark.parametrize("solver", [*BASELINES, single_level])
def test_the_same_input_gives_the_same_plan(solver: Solver) -> None:
    chain = random_chain(30, 5)
    budget = uniform.solve_keep_all(chain, PLENTY).peak_bytes
    assert solver(chain, budget) == solver(chain, budget)


# Binomial


def test_binomial_plans_take_the_forwards_of_the_closed_form() -> None:
    path = Path(__file__).parents[2] / "data" / "binomial_optimal.csv"
    with path.open(newline="") as file:
        rows = [[int(cell) for cell in row[:5]] for row in list(csv.reader(file))[1:]]
    assert len(rows) == 182
    for length, snapshots, repeats, expected, total in rows:
        counts = Items(binomial.plan(length, snapshots)).counts(length)
        assert binomial.advances(length, snapshots) == expected
        assert sum(counts) == total == length + expected
        assert max(counts) <= repeats + 1


def test_binomial_plans_store_no_more_than_their_snapshots() -> None:
    size = {"output_bytes": 1, "saved_bytes": 0, "recompute_time": 10}
    none = dict.fromkeys(
        ("forward_transient_bytes", "drop_transient_bytes", "backward_transient_bytes"), 0
    )
    other = {"backward_overlap_bytes": 0, "gradient_bytes": 0, "output_saved": False}
    for length in range(2, 14):
        chain = identical(length, **size, **none, **other)
        for snapshots in range(1, length):
            result = chain.replay(Items(binomial.plan(length, snapshots)))
            assert result.time == 10 * binomial.advances(length, snapshots) + 30 * length
            # Beyond the snapshots: a layer's output, and the gradient of the chain's.
            assert result.peak_bytes <= snapshots + 3


def test_binomial_advances_are_the_least_of_the_recursion() -> None:
    best = {(1, c): 0 for c in range(1, 12)}
    for length in range(2, 40):
        for c in range(1, 12):
            splits = range(length - 1, length) if c == 1 else range(1, length)
            best[length, c] = min(
                p + best[p, c] + (best[length - p, c - 1] if length - p > 1 else 0) for p in splits
            )
            assert binomial.advances(length, c) == best[length, c]


@pytest.mark.parametrize("input_saved", [True, False])
@pytest.mark.parametrize("output_saved", [True, False])
@pytest.mark.parametrize("recompute_time", [3, 10])
def test_binomial_takes_the_fastest_that_fits(
    input_saved: bool, output_saved: bool, recompute_time: int
) -> None:
    for length, saved in ((1, 9), (2, 9), (9, 9), (17, 0)):
        chain = identical(
            length,
            saved_bytes=saved,
            input_saved=input_saved,
            output_saved=output_saved,
            recompute_time=recompute_time,
        )
        every = [chain.replay(Items(binomial.plan(length, c))) for c in range(1, max(2, length))]
        for budget in {result.peak_bytes for result in every}:
            best = min((r.time, r.peak_bytes) for r in every if r.peak_bytes <= budget)
            solution = binomial.solve(chain, budget)
            assert (solution.time, solution.peak_bytes) == best
        least = min(result.peak_bytes for result in every)
        with pytest.raises(Infeasible) as caught:
            binomial.solve(chain, least - 1)
        assert caught.value.needs_bytes == least


def test_binomial_does_not_take_the_peak_to_grow_with_the_snapshots() -> None:
    none = dict.fromkeys(
        ("output_bytes", "saved_bytes", "forward_transient_bytes", "backward_transient_bytes"), 0
    )
    layers = identical(3, drop_transient_bytes=3, backward_overlap_bytes=0, **none).layers
    chain = Chain(tuple(replace(layer, gradient_bytes=1) for layer in layers))
    peaks = [chain.replay(Items(binomial.plan(3, c))).peak_bytes for c in (1, 2)]
    assert peaks == [4, 3]
    assert binomial.solve(chain, 3).schedule.items == binomial.plan(3, 2)
    with pytest.raises(Infeasible) as caught:
        binomial.solve(chain, 2)
    assert caught.value.needs_bytes == 3


def test_binomial_plans_may_nest_as_deep_as_a_long_chain() -> None:
    items = binomial.plan(2000, 1)
    assert depth(items) == 1999
    assert sum(Items(binomial.plan(2000, 12)).counts(2000)) == 2000 + binomial.advances(2000, 12)


def test_binomial_names_the_first_layer_that_differs() -> None:
    chain = identical(4)
    layers = list(chain.layers)
    layers[2] = replace(layers[2], saved_bytes=11)
    with pytest.raises(
        Unsuitable, match=r"layer 'l2' differs from .*'l0' in saved_bytes \(11 inst"
    ):
        binomial.solve(Chain(tuple(layers), 4), PLENTY)
    layers[2] = replace(layers[2], saved_bytes=9, recomputable=False)
    with pytest.raises(Unsuitable, match=r"layer 'l2' differs .* in recomputable"):
        binomial.solve(Chain(tuple(layers), 4), PLENTY)
    with pytest.raises(Unsuitable, match="layer 'l0' differs in recomputable"):
        binomial.solve(identical(3, recomputable=False), PLENTY)
    with pytest.raises(Unsuitable, match="layer 'l0' reads input_bytes 5 and makes output_bytes 4"):
        binomial.solve(replace(chain, input_bytes=5), PLENTY)


@pytest.mark.parametrize(("steps", "snapshots"), [(0, 1), (1, 0)])
def test_binomial_refuses_nonsense(steps: int, snapshots: int) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        binomial.plan(steps, snapshots)
