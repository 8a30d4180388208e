"""The frontier solver against every plan of small chains, and against itself on larger ones."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from solvers.chain import brute
from solvers.chain.exact.frontier import Frontier
from solvers.chain.exact.optimum import solve
from solvers.chain.problem import Chain
from solvers.problem import Layer, Option
from solvers.schedule import Checkpoint, Item, Items, Keep
from solvers.solution import Infeasible, Status, Unsuitable
from tests.oracles.oracle import pareto, simulate
from tests.oracles.strategies import chains, plans, possible_forwards

# Drawing 25 layers of 15 fields is slow and large by design, not by accident.
_CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


def examples(count: int) -> settings:
    return settings(
        max_examples=count, deadline=None, derandomize=True, suppress_health_check=_CHECKS
    )


def every_result(chain: Chain) -> list[tuple[int, int]]:
    """Peak and time of every plan, by the oracle."""
    return [simulate(chain, items)[:2] for items in brute.every_plan(chain)]


def check_against_every_plan(chain: Chain) -> None:
    assert Frontier(chain).points == pareto(every_result(chain))


# Every plan of small chains


MOST = 2880
"""Plans of five layers without options."""


@examples(125)
@given(chains(max_layers=5, max_plans=MOST))
def test_points_are_the_pareto_set_of_every_plan(chain: Chain) -> None:
    check_against_every_plan(chain)


@examples(30)
@given(chains(min_layers=5, max_layers=5, max_plans=MOST, recomputable=True))
def test_points_with_five_layers(chain: Chain) -> None:
    check_against_every_plan(chain)


def without_overlap(layer: Layer) -> Layer:
    options = tuple(replace(option, backward_overlap_bytes=0) for option in layer.options)
    return replace(layer, backward_overlap_bytes=0, options=options)


def repeated(chain: Chain, length: int) -> Chain:
    """The chain's layers over and over, the input as large as what is before each repetition.

    As many as brute force can afford.
    """
    period = [without_overlap(layer) for layer in chain.layers]
    layers = (period * length)[:length]
    named = tuple(replace(layer, name=f"l{i}") for i, layer in enumerate(layers))
    made = Chain(tuple(possible_forwards(named)), period[-1].output_bytes)
    if brute.count_plans(made, MOST) > MOST:
        return repeated(chain, length - 1)
    return made


@examples(75)
@given(chains(max_layers=2, max_options=1), st.integers(2, 5))
def test_points_where_spans_repeat_from_the_first_layer_on(chain: Chain, length: int) -> None:
    check_against_every_plan(repeated(chain, length))


@examples(100)
@given(chains(max_layers=2, max_options=1), st.integers(2, 5), st.data())
def test_solve_where_spans_repeat(chain: Chain, length: int, data: st.DataObject) -> None:
    chain = repeated(chain, length)
    points = pareto(every_result(chain))
    peak, time = data.draw(st.sampled_from(points))
    solution = solve(chain, peak)
    assert (solution.peak_bytes, solution.time, solution.status) == (peak, time, Status.OPTIMAL)


@examples(100)
@given(chains(min_layers=2, max_layers=4, max_options=3, max_plans=4000))
def test_points_with_many_options(chain: Chain) -> None:
    check_against_every_plan(chain)


@examples(120)
@given(chains(max_layers=4, max_plans=1500))
def test_replay_agrees_with_the_oracle_on_every_plan(chain: Chain) -> None:
    n = len(chain)
    for items in brute.every_plan(chain):
        peak, time, forwards, backwards = simulate(chain, items)
        result = chain.replay(Items(items))
        assert (result.peak_bytes, result.time) == (peak, time), items
        assert Items(items).counts(n) == forwards, items
        assert backwards == [1] * n, items


@examples(100)
@given(chains(max_layers=4, max_plans=1000))
def test_brute_agrees_with_the_oracle(chain: Chain) -> None:
    assert brute.frontier(chain) == pareto(every_result(chain))


@examples(100)
@given(chains(max_layers=4, max_plans=1000), st.data())
def test_solve_is_the_best_plan_within_a_budget(chain: Chain, data: st.DataObject) -> None:
    results = every_result(chain)
    peaks = [peak for peak, _ in results]
    # Budgets on, just below and just above a peak: there an error by one shows.
    near = st.builds(int.__add__, st.sampled_from(peaks), st.integers(-1, 1))
    budget = data.draw(near | st.integers(0, max(peaks) + 1))
    fitting = [(time, peak) for peak, time in results if peak <= budget]
    for solver in (solve, brute.solve):
        if fitting:
            solution = solver(chain, budget)
            assert (solution.time, solution.peak_bytes) == min(fitting)
            peak, time, *_ = simulate(chain, solution.schedule.items)
            assert (peak, time) == (solution.peak_bytes, solution.time)
            assert solution.status is Status.OPTIMAL
        else:
            with pytest.raises(Infeasible) as caught:
                solver(chain, budget)
            assert caught.value.needs_bytes == min(peaks)
            assert simulate(chain, caught.value.schedule.items)[0] == min(peaks)


# Chains of any length


@examples(75)
@given(chains(max_layers=8))
def test_plans_of_points_are_what_they_say(chain: Chain) -> None:
    frontier = Frontier(chain)
    for peak, time in frontier.points:
        items = frontier.plan(peak)
        assert simulate(chain, items)[:2] == (peak, time)
        result = chain.replay(Items(items))
        assert (result.peak_bytes, result.time) == (peak, time)
        solution = solve(chain, peak)
        assert (solution.peak_bytes, solution.time) == (peak, time)


def test_solve_ends_where_times_are_a_few_units() -> None:
    # A guess at the lost time that is raised by a fraction of itself must not stay where it is.
    a = Layer("a", 0, 0, 0, 1, 2, input_saved=False, output_saved=False)
    b = Layer("b", 1, 0, 1, 0, 0, input_saved=False, output_saved=False)
    chain = Chain((a, b))
    assert Frontier(chain).points == [(2, 3), (3, 1)]
    assert solve(chain, 2).time == 3


@examples(40)
@given(chains(min_layers=10, max_layers=25), st.data())
def test_a_long_chain(chain: Chain, data: st.DataObject) -> None:
    frontier = Frontier(chain)
    points = frontier.points
    assert points
    for (peak, time), (more, less) in pairwise(points):
        assert peak < more
        assert time > less
    # No plan is faster than one without recomputation, and that one is a plan.
    assert points[-1][1] == sum(la.forward_time + la.backward_time for la in chain.layers)
    for peak, time in data.draw(st.lists(st.sampled_from(points), max_size=4)):
        assert simulate(chain, frontier.plan(peak))[:2] == (peak, time)
    # Any plan at all is matched or beaten.
    for _ in range(4):
        peak, time, _, backwards = simulate(chain, data.draw(plans(chain)))
        assert backwards == [1] * len(chain)
        assert time >= fastest(points, peak)


def fastest(points: list[tuple[int, int]], budget: int) -> int:
    """The least time of `points` within `budget`; there must be one."""
    return min(time for peak, time in points if peak <= budget)


@examples(40)
@given(chains(min_layers=10, max_layers=16), st.data())
def test_more_budget_never_slows(chain: Chain, data: st.DataObject) -> None:
    points = Frontier(chain).points
    budgets = st.integers(points[0][0], points[-1][0] + 5)
    last: int | None = None
    for budget in sorted(data.draw(st.lists(budgets, min_size=2, max_size=5))):
        solution = solve(chain, budget)
        assert solution.peak_bytes <= budget
        assert solution.time == fastest(points, budget)
        assert last is None or solution.time <= last
        last = solution.time
    with pytest.raises(Infeasible) as caught:
        solve(chain, points[0][0] - 1)
    assert caught.value.needs_bytes == points[0][0]


def scaled(chain: Chain, size: int, time: int) -> Chain:
    """`chain` with all bytes times `size` and all times times `time`."""
    layers = tuple(
        replace(
            la,
            forward_time=la.forward_time * time,
            backward_time=la.backward_time * time,
            recompute_time=la.recompute_time * time,
            output_bytes=la.output_bytes * size,
            saved_bytes=la.saved_bytes * size,
            forward_transient_bytes=la.forward_transient_bytes * size,
            drop_transient_bytes=la.drop_transient_bytes * size,
            backward_transient_bytes=la.backward_transient_bytes * size,
            backward_overlap_bytes=la.backward_overlap_bytes * size,
            gradient_bytes=la.gradient_bytes * size,
            ending_transient_bytes=None
            if la.ending_transient_bytes is None
            else la.ending_transient_bytes * size,
            first_transient_bytes=la.first_transient_bytes * size,
            again_transient_bytes=la.again_transient_bytes * size,
            beside_bytes=la.beside_bytes * size,
            options=tuple(scaled_option(o, size, time) for o in la.options),
        )
        for la in chain.layers
    )
    return Chain(layers, chain.input_bytes * size)


def scaled_option(option: Option, size: int, time: int) -> Option:
    sizes = {
        field.name: value * size
        for field in fields(Option)
        if field.name.endswith("_bytes") and (value := getattr(option, field.name)) is not None
    }
    return replace(option, recompute_time=option.recompute_time * time, **sizes)


@examples(40)
@given(chains(min_layers=10, max_layers=16), st.integers(1, 1000), st.integers(1, 1000))
def test_points_scale_with_sizes_and_times(chain: Chain, size: int, time: int) -> None:
    expected = [(p * size, t * time) for p, t in Frontier(chain).points]
    assert Frontier(scaled(chain, size, time)).points == expected


@examples(40)
@given(chains(min_layers=10, max_layers=16))
def test_a_layer_of_no_cost_at_the_end(chain: Chain) -> None:
    # A plan of the old chain and "keep" for the new layer never peaks higher. The other way, the
    # old plan pays at most d_{L-1}, which the new chain makes only once the forwards are over.
    nothing = Layer("nothing", 0, 0, 0, 0, 0, input_saved=False, output_saved=False)
    nothing = replace(nothing, recomputable=chain.layers[-1].recomputable)
    old = Frontier(chain).points
    new = Frontier(Chain((*chain.layers, nothing), chain.input_bytes)).points
    gradient = chain.layers[-1].output_bytes
    assert all(fastest(new, peak) <= time for peak, time in old)
    assert all(fastest(old, peak + gradient) <= time for peak, time in new)


@examples(40)
@given(chains(min_layers=10, max_layers=16), st.data())
def test_gradients_that_stay_cost_at_most_their_bytes(chain: Chain, data: st.DataObject) -> None:
    # Parameter gradients of the last layer stay, so they are there in all but the first sweep.
    last = chain.layers[-1]
    more = data.draw(st.integers(1, 2 * 10**9))
    layer = replace(last, gradient_bytes=last.gradient_bytes + more)
    base = Frontier(chain).points
    heavier = Frontier(Chain((*chain.layers[:-1], layer), chain.input_bytes)).points
    assert all(fastest(base, peak) <= time for peak, time in heavier)
    assert all(fastest(heavier, peak + more) <= time for peak, time in base)


@examples(40)
@given(chains(min_layers=10, max_layers=16, max_options=2))
def test_options_only_help(chain: Chain) -> None:
    bare = Chain(tuple(replace(la, options=()) for la in chain.layers), chain.input_bytes)
    points = Frontier(chain).points
    assert all(fastest(points, peak) <= time for peak, time in Frontier(bare).points)


# The oracle's own reach


def uniform(length: int, options: int = 0) -> Chain:
    layer = Layer("l", 1, 2, 1, 1, 1, options=tuple(Option(f"o{k}", 0, 1) for k in range(options)))
    return Chain((layer,) * length, 1)


def test_every_plan_of_two_layers() -> None:
    k0, k1 = Keep(0), Keep(1)
    c0, c1 = Checkpoint(0, 0, (k0,)), Checkpoint(1, 1, (k1,))
    levels: list[tuple[Item, ...]] = [(k0, k1), (c0, k1), (k0, c1), (c0, c1)]
    expected = {*levels, *((Checkpoint(0, 1, body),) for body in levels)}
    found = list(brute.every_plan(uniform(2)))
    assert len(found) == len(expected) == 8
    assert set(found) == expected


@examples(60)
@given(chains(max_layers=5, max_plans=MOST))
def test_plans_are_counted_without_making_them(chain: Chain) -> None:
    found = list(brute.every_plan(chain))
    assert len(set(found)) == len(found) == brute.count_plans(chain)


@examples(60)
@given(chains(max_layers=4, max_plans=1000), st.data())
def test_every_plan_has_any_plan(chain: Chain, data: st.DataObject) -> None:
    items = data.draw(plans(chain))
    assert _without_repeats(items) in set(brute.every_plan(chain))


def _without_repeats(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """`items` with every body that is one checkpoint of the same span replaced by its body."""
    plain: list[Item] = []
    for item in items:
        if isinstance(item, Checkpoint):
            body = _without_repeats(item.body)
            only = body[0] if len(body) == 1 else None
            if isinstance(only, Checkpoint):
                body = only.body
            item = Checkpoint(item.first, item.last, body)
        plain.append(item)
    return tuple(plain)


def test_brute_refuses_what_it_cannot_finish() -> None:
    assert brute.count_plans(uniform(6)) == 25_216
    for chain in (uniform(9), uniform(4, options=9), uniform(500)):
        with pytest.raises(Unsuitable, match="more than 2,000,000"):
            brute.every_plan(chain)
        with pytest.raises(Unsuitable):
            brute.solve(chain, 100)
    # Length alone is no reason: where nothing can be recomputed there is one plan.
    fixed = replace(uniform(1).layers[0], recomputable=False)
    assert len(list(brute.every_plan(Chain((fixed,) * 300)))) == 1
