"""Compilation by numba, kept on disk where there is a place for it."""

from __future__ import annotations

import contextlib
import hashlib
import pickle
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.serialize import dumps

_F = TypeVar("_F", bound=Callable[..., Any])


class _Checked(CompileResultCacheImpl):
    """What is kept of a compilation, with a digest: damaged code would take the process down."""

    def reduce(self, result: Any) -> tuple[str, bytes]:
        code = dumps(super().reduce(result))
        return self._digest(code), code

    def rebuild(self, context: Any, kept: tuple[str, bytes]) -> Any:
        digest, code = kept
        if digest != self._digest(code):
            raise ValueError("the compiled code is damaged")
        return super().rebuild(context, pickle.loads(code))

    def _digest(self, code: bytes) -> str:
        # With the source's stamp: numba writes an index before the code that it speaks of, so a
        # killed process leaves new indices of old code.
        return hashlib.sha256(repr(self.locator.get_source_stamp()).encode() + code).hexdigest()


class _Cache(FunctionCache):
    """numba's cache of one function, where no damaged file and no full disk ends a command."""

    _impl_class = _Checked

    def load_overload(self, signature: Any, context: Any) -> Any:
        try:
            return super().load_overload(signature, context)
        except Exception:  # what is no pickle any more raises whatever its bytes happen to mean
            with contextlib.suppress(OSError):
                self.flush()
            return None  # as of a function that was never compiled

    def save_overload(self, signature: Any, result: Any) -> None:
        with contextlib.suppress(Exception):
            super().save_overload(signature, result)


def compiled(function: _F) -> _F:
    """A function that is compiled at its first call; numba's cache watches its own file only.

    While it runs, other threads do too: one of them may show how long it takes, or give it up.
    """
    result: Any = numba.njit(nogil=True)(function)
    with contextlib.suppress(RuntimeError):  # nowhere to put a cache: compile in every process
        result._cache = _Cache(function)
    return cast(_F, result)
