"""The largest size that still fits, by doubling and bisection."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["MOST_SEQUENCES", "MOST_TOKENS", "largest"]

MOST_SEQUENCES, MOST_TOKENS = 2**20, 2**24
"""Where the searches for the largest batch and the longest sequence end."""


def largest(fits: Callable[[int], bool], most: int, guess: int = 1) -> int:
    """The largest n from 0 to `most` with `fits(n)`, where no n fits that is above one that fails.

    Parameters
    ----------
    fits
        Monotone; called about 2·log2 of the answer over the guess times. Zero is taken to fit.
    most
        Where the search ends; returned when even that fits.
    guess
        Where it starts.
    """
    good, step = 0, max(1, min(guess, most))
    bad = most + 1
    while good < most:
        trial = min(step, most)
        if not fits(trial):
            bad = trial
            break
        good, step = trial, 2 * trial
    while bad - good > 1:
        middle = (good + bad) // 2
        if fits(middle):
            good = middle
        else:
            bad = middle
    return good
