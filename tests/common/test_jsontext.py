"""JSON that nests deeper than Python's recursion limit lets its own reader go."""

from __future__ import annotations

import json
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from scheduler import CostGraph, Plan, SchedulerError, solve
from scheduler.common.jsontext import _loads, parse_json

LEVELS = 800  # of bodies, two JSON values each: beyond the recursion limit


def drawn(draw: random.Random, depth: int) -> Any:
    if depth and draw.random() < 0.7:
        members = [drawn(draw, depth - 1) for _ in range(draw.randint(0, 3))]
        if draw.random() < 0.5:
            return members
        return {f'{i} "[{{,:': member for i, member in enumerate(members)}
    return draw.choice([0, -1.5e-3, 10**30, True, None, 'a "b" \\ \n ü', "", float("inf")])


def outcome(read: Any, text: str) -> object:
    try:
        return read(text)
    except json.JSONDecodeError as error:
        return error.msg, error.pos


def test_both_readers_agree_on_whole_and_broken_texts() -> None:
    draw = random.Random(11)
    broken = 0
    for _ in range(300):
        text = json.dumps(drawn(draw, 4), indent=draw.choice([None, 1]))
        at = draw.randrange(len(text))
        for each in (text, text[:at], text[:at] + draw.choice(',:]}["x ') + text[at + 1 :]):
            expected = outcome(json.loads, each)
            broken += isinstance(expected, tuple)
            assert outcome(_loads, each) == expected, each
    assert broken > 200


def test_deep_texts_are_checked_as_others_are() -> None:
    def read(middle: str) -> Any:
        text = '{"a": [' * LEVELS + middle + "]}" * LEVELS
        return parse_json(text, "x", SchedulerError, deep=True)

    value = read("7")
    for _ in range(LEVELS):
        value = value["a"][0]
    assert value == 7
    with pytest.raises(SchedulerError, match="the key 'b' appears twice"):
        read('{"b": 1, "b": 2}')
    with pytest.raises(SchedulerError, match="x, line 1, column 5603: this is not valid JSON"):
        read("1 2")


def test_plans_are_read_in_threads_without_touching_the_process() -> None:
    costs = CostGraph(
        [
            {"forward_time": 1, "backward_time": 2, "output_bytes": 1, "saved_bytes": 9}
            for _ in range(LEVELS + 1)
        ]  # type: ignore[arg-type]
    )
    plan = solve(costs, budget=10**6)
    items = "0"
    for i in range(1, LEVELS + 1):
        items = f'{{"checkpoint": [0, {i - 1}], "body": [{items}]}}, {i}'
    record = {**plan.to_dict(), "items": []}
    text = json.dumps(record).replace('"items": []', f'"items": [{items}]')
    limit = sys.getrecursionlimit()
    seen = set()

    def read(_: int) -> int:
        depth = Plan.from_json(text).depth
        seen.add(sys.getrecursionlimit())
        return depth

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(read, range(24))) == {LEVELS}
    assert seen == {limit} == {sys.getrecursionlimit()}
