"""Compilation by numba, kept on disk where there is a place for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

__all__ = ["compiled"]

_F = TypeVar("_F", bound=Callable[..., Any])


def compiled(function: _F) -> _F:
    """A function that is compiled at its first call; numba's cache watches its own file only.

    While it runs, other threads do too: one of them may show how long it takes, or give it up.
    """
    result: Any
    try:
        result = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # nowhere to put a cache: compile in every process
        result = numba.njit(nogil=True)(function)
    return cast(_F, result)
