"""Sizes: what each spelling means, and what is refused."""

from __future__ import annotations

import math
import pickle
from fractions import Fraction

import numpy as np
import pytest

from scheduler.common.errors import InfeasibleBudget, InvalidBudget, SchedulerError
from scheduler.common.text import (
    first_sentence,
    format_both,
    format_bytes,
    format_smallest,
    format_time,
)
from scheduler.common.units import check_unit, parse_bytes, resolve_budget, resolve_reserved


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (1, 1),
        (40_000_000_000, 40 * 10**9),
        (4e10, 40 * 10**9),
        (np.int64(7), 7),
        (np.uint8(7), 7),
        (np.float32(8.0), 8),
        (np.array(9), 9),
        ("40000000000", 40 * 10**9),
        ("40_000_000_000", 40 * 10**9),
        ("40GB", 40 * 10**9),
        ("40 GB", 40 * 10**9),
        ("  40gb ", 40 * 10**9),
        ("40GiB", 40 * 2**30),
        ("40gib", 40 * 2**30),
        ("123B", 123),
        ("123 bytes", 123),
        ("1 byte", 1),
        ("3KB", 3000),
        ("3KiB", 3072),
        ("3MB", 3 * 10**6),
        ("3MiB", 3 * 2**20),
        ("3TB", 3 * 10**12),
        ("3TiB", 3 * 2**40),
        ("3PB", 3 * 10**15),
        ("3PiB", 3 * 2**50),
        ("1.5GiB", 3 * 2**29),
        (".5KB", 500),
        ("+2KB", 2000),
        ("0.1GB", 10**8),
        ("1.1111111111KB", 1111),
        # A float would give ...839 and ...423 here.
        ("1234.567890123456789PB", 1234567890123456789),
        ("0.3TiB", 3 * 2**40 // 10),
    ],
)
def test_what_a_size_means(given: object, expected: int) -> None:
    size = parse_bytes(given)
    assert size == expected
    assert type(size) is int


@pytest.mark.parametrize("letter", ["K", "M", "G", "T", "P", "g"])
@pytest.mark.parametrize("number", ["40", "1.5"])
def test_a_bare_letter_is_refused_with_both_spellings(number: str, letter: str) -> None:
    with pytest.raises(InvalidBudget) as caught:
        parse_bytes(f"{number}{letter}")
    message = str(caught.value)
    assert f"{number}{letter.upper()}B" in message
    assert f"{number}{letter.upper()}iB" in message


def test_the_sentence_for_40g() -> None:
    with pytest.raises(InvalidBudget) as caught:
        parse_bytes("40G")
    assert str(caught.value) == (
        "the budget '40G' has two readings; write 40GB (40·10⁹ bytes) or 40GiB (40·2³⁰ bytes)"
    )


@pytest.mark.parametrize(
    "given",
    [
        *(0, -1, 0.0, -5e9, 1.5, math.nan, math.inf, -math.inf, np.float64("nan"), np.int64(-3)),
        *("0", "0GB", "-40GB", "0.0001B", "", "   ", "forty", "GB", "nan", "inf", "1e10", "1.5"),
        *("40GB!", "40 G B", "4 0GB", "1,000", "٤٠GB", "40XB", "40Gi", "1__0", "9" * 5000),
        *(True, False, np.bool_(True), None, b"40GB", [40], {}, 1j, np.array([4, 5])),
        *(2**62, 10**30, "5000PB", 1e300),
    ],
)
def test_what_is_not_a_budget(given: object) -> None:
    with pytest.raises(InvalidBudget, match="the budget"):
        parse_bytes(given)


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ("forty", "'forty' is not a size; write it as '40GB', '40GiB' or a number of bytes"),
        ("40Gi", "did you mean 'GiB'?"),
        ("-40GB", "must be at least one byte, got '-40GB'"),
        (0, "must be at least one byte, got 0"),
        (math.nan, "must be finite, got nan"),
        (1.5, "must be a whole number of bytes, got 1.5"),
        ("1.5", "add a unit, as in 1.5GB or 1.5GiB"),
        (True, "must be a size, got True"),
        ("5000PB", "beyond 2**62"),
    ],
)
def test_a_refusal_says_why(given: object, part: str) -> None:
    with pytest.raises(InvalidBudget) as caught:
        parse_bytes(given)
    assert part in str(caught.value)


def test_zero_can_be_allowed_and_the_size_has_a_name() -> None:
    assert parse_bytes(0, allow_zero=True) == 0
    assert parse_bytes("0GB", allow_zero=True) == 0
    with pytest.raises(InvalidBudget, match=r"^reserved must be zero or more, got -1"):
        parse_bytes(-1, what="reserved", allow_zero=True)


@pytest.mark.parametrize(
    ("budget_gb", "expected"),
    [
        (40, 40 * 10**9),
        (0.1, 10**8),
        (2.3, 2_300_000_000),
        (1e-9, 1),
        (np.float64(0.7), 7 * 10**8),
        (np.int32(3), 3 * 10**9),
        (Fraction(1, 3), 333_333_333),
    ],
)
def test_budget_gb_is_exact(budget_gb: object, expected: int) -> None:
    assert resolve_budget(budget_gb) == expected


def test_three_spellings_of_one_budget() -> None:
    assert resolve_budget(40) == resolve_budget(budget="40GB") == resolve_budget(None, 40 * 10**9)


def test_no_budget_shows_how_to_give_one() -> None:
    with pytest.raises(InvalidBudget, match=r"no budget given; pass budget_gb=40 .*budget='40GiB'"):
        resolve_budget()


def test_two_budgets_are_one_too_many() -> None:
    with pytest.raises(InvalidBudget, match=r"both budget_gb=40 and budget='40GB' are given"):
        resolve_budget(40, "40GB")


@pytest.mark.parametrize(
    "given",
    [0, -1, math.nan, math.inf, True, 1e-12, [1], 1e300, 10**400, 1j],
)
def test_what_is_not_a_number_of_gb(given: object) -> None:
    with pytest.raises(InvalidBudget, match="budget_gb"):
        resolve_budget(given)


def test_bytes_in_place_of_gb_are_told() -> None:
    with pytest.raises(
        InvalidBudget, match="budget_gb counts GB, got 40000000000; did you mean 40"
    ):
        resolve_budget(4 * 10**10)
    with pytest.raises(InvalidBudget, match="reserved_gb counts GB, got 16000000000; did you mean"):
        resolve_reserved(16 * 10**9)


def test_a_reserve_has_two_spellings_too() -> None:
    assert resolve_reserved(0.5) == resolve_reserved(None, "500MB") == 5 * 10**8
    assert resolve_reserved() == resolve_reserved(0) == resolve_reserved(0, 0) == 0
    with pytest.raises(InvalidBudget, match="both reserved_gb=1 and reserved='1GB' are given"):
        resolve_reserved(1, "1GB")
    with pytest.raises(InvalidBudget, match="pass text as reserved='1GB'"):
        resolve_reserved("1GB")
    with pytest.raises(InvalidBudget, match="reserved_gb must be zero or more, got -1"):
        resolve_reserved(-1)


@pytest.mark.parametrize(
    ("gb", "given", "peak", "meant"),
    [
        (None, 40, 30 * 10**9, "40 is 40 bytes, next to nothing of the 27.94 GiB .* '40GB'"),
        (None, "40", 30 * 10**9, "did you mean '40GB'"),
        (None, 40.0, 30 * 10**9, "did you mean '40GB'"),
        (None, 1, 30 * 10**9, "1 is 1 byte, .* '1GB'"),
        (None, 511, 10**10, "'511GB'"),
        (None, 16, 20 * 10**6, "'16MB'"),
        (None, 40, 40 * 10**6, "'40MB'"),
        (None, 500, 2 * 10**6, "'500KB'"),
        (None, 1, 10**6 + 1, "'1MB'"),
        (None, 2 * 10**15, 10**9, "is more than a million times the 953.7 MiB"),
        (10**9, None, 10**9, "size_gb=1000000000 is more than .* did you mean 1 GB"),
        (2 * 10**6, None, 10**9, "is more than a million times the 953.7 MiB"),
        (2 * 10**6, None, 4 * 10**6, "did you mean size=2000000, which counts bytes"),
    ],
)
def test_a_number_in_another_unit_is_refused(
    gb: int | None, given: object, peak: int, meant: str
) -> None:
    size = parse_bytes(given) if gb is None else gb * 10**9
    with pytest.raises(InvalidBudget, match=meant):
        check_unit("size", gb, given, size, lambda: peak)


@pytest.mark.parametrize(
    ("gb", "given", "peak"),
    [
        (None, "40B", 30 * 10**9),
        (None, 512, 10**12),
        (None, 0, 30 * 10**9),
        (None, 10**15, 10**7),
        (None, "2PB", 10**7),
        (None, 10**18, 10**12),
        (40, None, 10**6),
        # Next to what somebody made by hand every number is what it says.
        *((None, size, peak) for size in (1, 40, 10**12, 10**18) for peak in (0, 1, 10**6 - 1)),
        *((size, None, peak) for size in (1, 10**9) for peak in (0, 1, 10**6 - 1)),
    ],
)
def test_a_number_that_can_be_meant_is_not(gb: int | None, given: object, peak: int) -> None:
    size = parse_bytes(given, allow_zero=True) if gb is None else gb * 10**9
    check_unit("size", gb, given, size, lambda: peak)


def test_a_budget_far_below_what_is_needed_is_refused() -> None:
    with pytest.raises(InvalidBudget, match=r"40000 is 40000 bytes, next .*'40000MB'"):
        check_unit("budget", None, "40000", 40_000, lambda: 30 * 10**9)
    check_unit("budget", None, None, 80 * 10**9, lambda: 10**18)  # a GPU's
    for given in ("40000B", 10**6):
        check_unit("budget", None, given, parse_bytes(given), lambda: 30 * 10**9)
    check_unit("reserved", None, 40_000, 40_000, lambda: 30 * 10**9)


def test_text_as_budget_gb_points_to_budget() -> None:
    with pytest.raises(InvalidBudget, match="pass text as budget='40GB'"):
        resolve_budget("40GB")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (65536, "64.00 KiB"),
        (3498429440, "3.258 GiB"),
        (40 * 10**9, "37.25 GiB"),
        (155 * 10**9, "144.4 GiB"),
        (1023 * 2**30, "1023 GiB"),
        (1094 * 2**30, "1.068 TiB"),
        (3 * 2**60, "3072 PiB"),
        (10 * 2**30 - 1, "10.00 GiB"),
        (-(2**20), "-1.000 MiB"),
    ],
)
def test_sizes_read_as_torch_prints_them(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (40 * 10**9, "40.00 GB (37.25 GiB)"),
        (3 * 10**9, "3.000 GB (2.794 GiB)"),
        (5 * 10**6, "5.000 MB (4.768 MiB)"),
        (2048, "2.048 KB (2.000 KiB)"),
        (3 * 10**12, "3.000 TB (2.728 TiB)"),
        (12, "12 bytes"),
        (1, "1 byte"),
    ],
)
def test_the_budget_is_echoed_in_both_units(size: int, text: str) -> None:
    assert format_both(size) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1442.8224, "ms", "1.443 s"),
        (12.245, "ms", "12.24 ms"),
        (0.0005, "s", "500.0 us"),
        (5000, "s", "5000 s"),
        (0, "ms", "0.000 ms"),
        (123456, "steps", "123456 steps"),
        (10587689662080.0, "unit", "10587689662080 unit"),
        (1234.5, "unit", "1234 unit"),
    ],
)
def test_times_read_in_the_unit_that_suits(value: float, unit: str, text: str) -> None:
    assert format_time(value, unit) == text


def test_what_is_named_as_the_smallest_does() -> None:
    assert format_smallest(2112) == "2.112 KB (2.063 KiB)"
    assert (format_smallest(10), format_smallest(1)) == ("10 bytes", "1 byte")
    for size in (1000, 9_999_501, 99_996_000, 999_950_001, 999_999_999, 3 * 2**40, 3 * 2**40 + 1):
        for text in format_smallest(size).rstrip(")").split(" ("):
            assert size <= parse_bytes(text) <= size * 1.001 + 1


def test_what_reads_the_same_is_told_apart() -> None:
    budget = 80 * 2**30
    error = InfeasibleBudget(budget, budget + 20, "a layer")
    assert str(error).endswith("is 85.90 GB (80.01 GiB), set by a layer")
    close = InfeasibleBudget(80_000_000_001, 80_000_000_002, "a layer")
    assert str(close).endswith("80.01 GB (74.51 GiB), 1 byte more than the budget, set by a layer")
    assert "more than the budget" not in str(InfeasibleBudget(budget, 2 * budget, "a layer"))


def test_infeasible_says_the_budget_the_smallest_and_what_sets_it() -> None:
    error = InfeasibleBudget(3 * 10**9, 3498429440, "the backward of 'head'")
    assert str(error) == (
        "no plan fits a budget of 3.000 GB (2.794 GiB): the smallest feasible budget is "
        "3.499 GB (3.259 GiB), set by the backward of 'head'"
    )
    assert isinstance(error, SchedulerError)
    assert error.smallest_budget_bytes == 3498429440


def test_infeasible_names_the_reserve_and_the_method_and_survives_pickling() -> None:
    error = InfeasibleBudget(3 * 10**9, 4 * 10**9, "the forward of 'a'", 2**30, "uniform")
    assert "(1.000 GiB of it reserved)" in str(error)
    assert "no plan of method 'uniform'" in str(error)
    error = error.reserving("weights 1 GiB")
    assert "(1.000 GiB of it reserved: weights 1 GiB)" in str(error)
    beyond = InfeasibleBudget(2**30, 2**32, "a layer", 2**31, reserved_for="weights 2 GiB")
    less = "1.074 GB (1.000 GiB), less than the 2.000 GiB that are reserved (weights 2 GiB): the sm"
    assert less in str(beyond)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_what_errors_of_others_say_is_part_of_a_sentence() -> None:
    error = RuntimeError("It failed at 1.5\nin here. Saved values are gone. Call it once.")
    assert first_sentence(error) == "RuntimeError: It failed at 1.5 in here"
    assert first_sentence(ValueError()) == "ValueError"
