"""What to keep inside a block: against running it with every set, and against its own promises."""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from itertools import combinations, pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.problem import InvalidProblem
from solvers.selection import knapsack
from solvers.selection.pareto import Choice, Pareto, choice, convex, pareto, thin
from solvers.selection.problem import Block, Operation
from tests.oracles.selection_oracle import Oracle, Priced, blocks, random_block


def examples(count: int) -> settings:
    return settings(max_examples=count, deadline=None, derandomize=True)


def facts(choices: Sequence[Choice]) -> list[Priced]:
    return [(c.saved_bytes, c.recompute_time, len(c.kept), c.kept) for c in choices]


def loss(choices: Sequence[Choice], fewer: Sequence[Choice]) -> int:
    """The most time that having only `fewer` costs at any limit of bytes."""
    return max(
        min(f.recompute_time for f in fewer if f.saved_bytes <= c.saved_bytes) - c.recompute_time
        for c in choices
    )


def loose(prices: Sequence[tuple[int, int]]) -> Block:
    """Operations of these bytes and times that have nothing to do with each other."""
    operations = tuple(Operation("", time, (), (i,)) for i, (_, time) in enumerate(prices))
    return Block(operations, tuple(size for size, _ in prices), frozenset(), len(prices))


def random_prices(seed: int, count: int, most: int) -> list[tuple[int, int]]:
    random = Random(seed)
    return [(random.randint(0, most), random.randint(0, most)) for _ in range(count)]


# Against running the block with every set of operations


@examples(250)
@given(blocks(9))
def test_the_pareto_set_is_that_of_every_legal_set(block: Block) -> None:
    found = pareto(block)
    assert facts(found) == Oracle(block).pareto()
    assert found.gap_time == 0


@pytest.mark.parametrize("seed", range(6))
def test_the_pareto_set_of_fourteen_operations(seed: int) -> None:
    block = random_block(seed, 14)
    assert facts(pareto(block)) == Oracle(block).pareto()


@examples(100)
@given(blocks(6))
def test_a_set_made_by_hand_is_the_smallest_legal_set_around_it(block: Block) -> None:
    oracle = Oracle(block)
    useful = {
        i for i in range(block.stop) if block.operations[i].writes or not block.operations[i].views
    }
    legal = [set(kept) for kept in oracle.legal() if useful.issuperset(kept)]
    for chosen in range(1 << len(block.operations)):
        kept = {i for i in range(len(block.operations)) if chosen >> i & 1}
        around = [found for found in legal if found >= kept & useful]
        if not around:
            with pytest.raises(InvalidProblem, match="cannot be kept"):
                choice(block, kept)
        else:
            least = tuple(sorted(set.intersection(*around)))
            assert facts([choice(block, kept)]) == [oracle.priced(least)]


@examples(20)
@given(st.integers(0, 2**32 - 1))
def test_seventy_loose_operations_against_a_table_over_bytes(seed: int) -> None:
    prices = random_prices(seed, 70, 12)
    most = [0] * (sum(size for size, _ in prices) + 1)
    for size, time in prices:
        for limit in reversed(range(size, len(most))):
            most[limit] = max(most[limit], most[limit - size] + time)
    saved = sum(time for _, time in prices)
    expected = [(0, saved - most[0])] + [
        (size, saved - after)
        for size, (before, after) in enumerate(pairwise(most), 1)
        if after > before
    ]
    assert [(c.saved_bytes, c.recompute_time) for c in pareto(loose(prices))] == expected


# Where there are too many


@pytest.mark.parametrize("most", [2, 3, 7, 40])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_left_out_on_the_way_is_told(seed: int, most: int) -> None:
    for block in (loose(random_prices(seed, 22, 1000)), random_block(seed, 40)):
        everything, found = pareto(block), pareto(block, most)
        assert everything.gap_time == 0
        assert len(found) <= most
        assert loss(everything, found) <= found.gap_time
        assert found == everything or found.gap_time > 0
        assert all(choice(block, c.kept) == c for c in found)
        assert [c.saved_bytes for c in found] == sorted({c.saved_bytes for c in found})
        assert found[0].saved_bytes == 0
        assert found[-1].recompute_time == everything[-1].recompute_time


def test_operations_tied_too_widely_are_given_up_and_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = 0
    for seed in range(30):
        block = random_block(seed, 25)
        everything = pareto(block)
        with monkeypatch.context() as patch:
            patch.setattr(knapsack, "MOST_STATES", 1)
            found = pareto(block)
        assert loss(everything, found) <= found.gap_time
        assert all(choice(block, c.kept) == c for c in found)
        lost += found != everything
    assert lost > 3


@examples(100)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(2, 10))
def test_thin_loses_least_of_all_selections(seed: int, count: int, most: int) -> None:
    random = Random(seed)
    sizes = sorted(random.sample(range(50), count))
    times = sorted(random.sample(range(40), count), reverse=True)
    choices = [Choice((), size, time) for size, time in zip(sizes, times, strict=True)]
    inner = choices[1:-1]
    ends = [choices[0], choices[-1]] if count > 1 else choices
    least = min(
        loss(choices, [*ends, *chosen])
        for k in range(min(most - len(ends), len(inner)) + 1)
        for chosen in combinations(inner, k)
    )
    found = thin(choices, most)
    assert found.gap_time == loss(choices, found.choices) == least
    assert len(found.choices) <= most
    assert (found.choices[0], found.choices[-1]) == (choices[0], choices[-1])
    assert set(found.choices) <= set(choices)


def test_thin_adds_what_was_missing_before() -> None:
    choices = [Choice((), 0, 9), Choice((0,), 1, 5), Choice((0, 1), 2, 0)]
    assert thin(choices, 2).gap_time == 4
    assert thin(Pareto(choices, 3), 2).gap_time == 7
    assert thin(Pareto(choices, 3), 3).gap_time == 3
    assert pickle.loads(pickle.dumps(Pareto(choices, 3))).gap_time == 3


@examples(50)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_the_convex_choices_are_best_at_every_price(seed: int, count: int) -> None:
    random = Random(seed)
    sizes = sorted(random.sample(range(50), count))
    times = sorted(random.sample(range(40), count), reverse=True)
    choices = [Choice((), size, time) for size, time in zip(sizes, times, strict=True)]
    found = convex(choices)
    assert set(found) <= set(choices)
    assert (found[0], found[-1]) == (choices[0], choices[-1])
    for price in (0.01, 0.1, 0.5, 1.0, 2.0, 10.0):
        costs = [c.recompute_time + price * c.saved_bytes for c in choices]
        assert min(c.recompute_time + price * c.saved_bytes for c in found) == min(costs)
    slopes = [
        (b.recompute_time - a.recompute_time) / (b.saved_bytes - a.saved_bytes)
        for a, b in pairwise(found)
    ]
    assert all(a < b for a, b in pairwise(slopes))  # none is between its neighbours


# Large blocks


def test_equal_operations_are_counted() -> None:
    # 2**200 sets; equal ones are taken in order, across the words of the masks.
    found = pareto(loose([(5, 7)] * 200))
    assert facts(found) == [(5 * k, 7 * (200 - k), k, tuple(range(k))) for k in range(201)]


def test_a_block_like_a_transformer() -> None:
    # 150 operations of 20 sizes and times of about their traffic.
    random = Random(0)
    sizes = [2**20 * k for k in (32, 64, 8, 16, 112, 224, 4, 2, 128, 1)]
    sizes += [2**10 * k for k in (32, 64, 1024, 96, 256, 1, 2, 4, 512, 128)]
    prices = [
        (s, 4000 + int(random.choice([1, 2, 3]) * s / 3350)) for s in random.choices(sizes, k=150)
    ]
    found = pareto(loose(prices))
    whole = found[0].recompute_time
    assert whole == sum(time for _, time in prices)
    assert found[-1] == Choice(tuple(range(150)), sum(size for size, _ in prices), 0)
    assert found.gap_time < whole / 1000
    assert pareto(loose(prices)) == found
    few = thin(found, 12)
    assert len(few.choices) <= 12
    assert few.gap_time - found.gap_time == loss(found, few.choices)


# By hand


def test_a_storage_is_counted_once_and_a_given_one_not_at_all() -> None:
    make = Operation("mm", 5, (0,), (1,))
    view = Operation("t", 0, (1,), (), (1,))
    beside = Operation("norm", 3, (1,), (2,), (0, 1))
    block = Block((make, view, beside), (100, 10, 1), frozenset({0}), 3)
    assert choice(block, [0]) == Choice((0,), 10, 3)
    assert choice(block, [1]) == Choice((), 0, 8)
    assert choice(block, [2]) == Choice((2,), 11, 5)
    assert choice(block, [0, 1, 2]) == Choice((0, 2), 11, 0)
    assert facts(pareto(block)) == [(0, 8, 0, ()), (10, 3, 1, (0,)), (11, 0, 2, (0, 2))]


def test_writers_of_a_storage_and_early_readers_are_kept_together() -> None:
    # h = a + b; n = norm(h); h += mlp(n): who stores h must store n, which would read the last h.
    add = Operation("add", 2, (0,), (1,))
    norm = Operation("norm", 3, (1,), (2,))
    mlp = Operation("mm", 9, (2,), (3,))
    residual = Operation("add_", 1, (1, 3), (1,))
    use = Operation("mul", 1, (1,), (4,))
    block = Block((add, norm, mlp, residual, use), (8, 4, 4, 4, 4), frozenset({0}), 5)
    assert choice(block, [0]) == choice(block, [3]) == Choice((0, 1, 3), 8, 10)
    assert choice(block, [1]).kept == (1,)
    assert choice(block, [2, 4]).kept == (2, 4)
    # Where the forward stops before the second write, h would come back with it.
    stopped = Block(block.operations, block.storage_bytes, block.given, 3)
    sentence = r"operation 0 \('add'\) cannot be kept: operation 3 \('add_'\).* storage 1"
    with pytest.raises(InvalidProblem, match=sentence):
        choice(stopped, [0])
    assert choice(stopped, [2, 3, 4]).kept == (2,)
    assert pareto(stopped)[-1] == Choice((1, 2), 8, 2)


def test_what_needs_an_operation_that_cannot_be_kept_cannot_be_kept() -> None:
    # Storage 1 needs what reads it early (1), that needs the same of storage 2 (2), and what 2
    # makes is written after the stop.
    operations = (
        Operation("a", 2, (0,), (1,)),
        Operation("b", 2, (1,), (2,)),
        Operation("c", 2, (2,), (3,)),
        Operation("b_", 2, (2,), (2,)),
        Operation("a_", 2, (1,), (1,)),
        Operation("d", 2, (1,), (4,)),
        Operation("c_", 2, (3,), (3,)),
    )
    block = Block(operations, (1,) * 5, frozenset({0}), 6)
    for i in range(5):
        with pytest.raises(InvalidProblem, match=r"operation 2 \('c'\) cannot be kept"):
            choice(block, [i])
    assert facts(pareto(block)) == Oracle(block).pareto() == [(0, 12, 0, ()), (1, 10, 1, (5,))]


def test_what_is_stored_for_nothing_is_kept() -> None:
    make = Operation("nonzero", 5, (0,), (1,))
    number = Operation("item", 7, (1,), ())
    block = Block((make, number), (1, 3), frozenset({0}), 2)
    assert facts(pareto(block)) == [(0, 5, 1, (1,)), (3, 0, 2, (0, 1))]


def test_the_empty_block() -> None:
    assert facts(pareto(Block((), (), frozenset(), 0))) == [(0, 0, 0, ())]


# What is refused

MAKE = Operation("mm", 5, (0,), (1,))


@pytest.mark.parametrize(
    ("operations", "sizes", "given", "stop", "sentence"),
    [
        ((MAKE,), (1, 1), {0}, 2, "stop is 2, but it has 1 operations"),
        ((MAKE,), (1, 1), {0}, -1, "stop must not be negative"),
        ((MAKE,), (1, -1), {0}, 1, "storage_bytes must not be negative"),
        ((MAKE,), (1, 1), {0, 7}, 1, "the block names storage 7, but storage_bytes has 2"),
        ((MAKE,), (1,), {0}, 1, "operation 0 ('mm') names storage 1, but storage_bytes has 1"),
        ((MAKE,), (1, 1), set(), 1, "operation 0 ('mm') uses storage 0 before anything writes it"),
        ((MAKE,), (1, 1), {0, 1}, 1, "operation 0 ('mm') writes storage 1, which is given"),
        ((MAKE,), (1, 2**62), {0}, 1, "sizes add up to"),
        ((Operation("mm", 2**62, (), ()),), (), set(), 1, "times add up to"),
    ],
)
def test_blocks_that_are_refused(
    operations: tuple[Operation, ...],
    sizes: tuple[int, ...],
    given: set[int],
    stop: int,
    sentence: str,
) -> None:
    with pytest.raises(InvalidProblem, match=re.escape(sentence)):
        Block(operations, sizes, frozenset(given), stop)


def test_operations_and_calls_that_are_refused() -> None:
    block = Block((MAKE,), (1, 1), frozenset({0}), 1)
    two = [Choice((), 0, 2), Choice((), 1, 2)]
    for sentence, call in (
        ("storage 1 is in writes and in views", lambda: Operation("add_", 1, (), (1,), (1,))),
        ("a view and takes no time", lambda: Operation("t", 1, (), (), (1,))),
        ("time must be an integer", lambda: Operation("mm", 1.5, (), ())),  # type: ignore[arg-type]
        ("reads must not be negative", lambda: Operation("mm", 1, (-1,), ())),
        ("kept must ascend", lambda: Choice((1, 0), 0, 0)),
        ("recompute_time must not be negative", lambda: Choice((), 0, -1)),
        ("1 is no operation of a block of 1", lambda: choice(block, [1])),
        ("most_points must be at least 2", lambda: pareto(block, 1)),
        ("most must be at least 2", lambda: thin(pareto(block), 1)),
        ("there is none to thin", lambda: thin([], 3)),
        ("number 1 is out of order", lambda: thin(two, 2)),
        ("gap_time must not be negative", lambda: Pareto([], -1)),
    ):
        with pytest.raises(InvalidProblem, match=re.escape(sentence)):
            call()
