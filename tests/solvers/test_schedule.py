"""Checkpoints as values, however deep they nest: equality, hashes and what is printed."""

from __future__ import annotations

import sys

import pytest

from solvers.schedule import Checkpoint, Item, Items, Keep, check_cover, depth

DEPTH = 5000


def nested(levels: int, option: str | None = None, first: int = 0) -> Checkpoint:
    """Checkpoints around each other, each with one layer more; the option is the innermost's."""
    item = Checkpoint(first, first, (Keep(first, option),))
    for last in range(first + 1, first + levels):
        item = Checkpoint(first, last, (item, Keep(last)))
    return item


def test_deep_ones_are_as_deep_as_they_say() -> None:
    assert sys.getrecursionlimit() < DEPTH
    assert depth((nested(DEPTH),)) == DEPTH
    check_cover((nested(DEPTH),), 0, DEPTH - 1)


def test_deep_ones_that_are_equal() -> None:
    one, other = nested(DEPTH), nested(DEPTH)
    assert one is not other
    assert one == other
    assert hash(one) == hash(other)
    assert repr(one) == repr(other)
    assert str(one) == repr(one)
    assert len({one, other}) == 1
    assert Items((one,)) == Items((other,))
    assert hash(Items((one,))) == hash(Items((other,)))
    assert repr(Items((one,))) == f"Items(items=({one!r},))"


@pytest.mark.parametrize(
    "other",
    [nested(DEPTH, "option"), nested(DEPTH, first=1), nested(DEPTH - 1), nested(DEPTH + 1)],
    ids=["innermost", "layers", "less deep", "deeper"],
)
def test_deep_ones_that_differ(other: Checkpoint) -> None:
    one = nested(DEPTH)
    assert one != other
    assert hash(one) != hash(other)
    assert repr(one) != repr(other)
    assert len({one, other}) == 2
    assert Items((one,)) != Items((other,))


def test_what_is_printed_of_a_deep_one() -> None:
    printed = repr(nested(DEPTH, "o"))
    assert printed.startswith(f"Checkpoint(first=0, last={DEPTH - 1}, body=(Checkpoint(first=0, ")
    assert "Checkpoint(first=0, last=0, body=(Keep(layer=0, option='o'),))" in printed
    assert printed.count("Checkpoint(") == printed.count("Keep(") == DEPTH
    assert printed.count("(") == printed.count(")")


SMALL: list[Item] = [
    Keep(0),
    Keep(3, "half"),
    Checkpoint(0, 0, ()),
    Checkpoint(0, 0, (Keep(0),)),
    Checkpoint(0, 1, (Keep(0), Keep(1))),
    Checkpoint(0, 1, (Checkpoint(0, 0, (Keep(0),)), Keep(1))),
    Checkpoint(0, 1, (Checkpoint(0, 0, (Keep(0), Keep(1))),)),  # the same items in other bodies
    Checkpoint(0, 1, (Keep(0), Checkpoint(1, 1, (Keep(1),)))),
    Checkpoint(0, 1, (Keep(0), Checkpoint(1, 1, (Keep(1, "o'clock"),)))),
    nested(4),
    nested(4, "option"),
]


@pytest.mark.parametrize("item", SMALL, ids=repr)
def test_what_is_printed_makes_it_again(item: Item) -> None:
    names = {"Checkpoint": Checkpoint, "Keep": Keep, "Items": Items}
    assert eval(repr(item), names) == item
    assert eval(repr(Items((item,))), names) == Items((item,))


def test_small_ones_differ() -> None:
    assert len(set(SMALL)) == len({repr(item) for item in SMALL}) == len(SMALL)
    for i, one in enumerate(SMALL):
        assert [one == other for other in SMALL] == [i == j for j in range(len(SMALL))]


def test_a_checkpoint_is_nothing_else() -> None:
    assert Checkpoint(0, 0, (Keep(0),)) != (0, 0, (Keep(0),))
    assert Checkpoint(0, 0, (Keep(0),)).__eq__(Keep(0)) is NotImplemented
