"""Reading a text file, and writing one whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

from scheduler.common.errors import SchedulerError
from scheduler.common.text import shown


def read_text(
    path: str | os.PathLike[str], what: str, error: type[SchedulerError] = SchedulerError
) -> str:
    """The text of a UTF-8 file; `what` is how a sentence calls it ("cost file")."""
    name = os.fspath(path)
    try:
        data = Path(name).read_bytes()
    except FileNotFoundError as cause:
        raise error(f"there is no {what} {shown(name, 200)}; check the path") from cause
    except IsADirectoryError as cause:
        raise error(
            f"{shown(name, 200)} is a directory, not a {what}; name a file in it"
        ) from cause
    except (OSError, ValueError) as cause:
        raise error(f"cannot read the {what} {shown(name, 200)}: {_reason(cause)}") from cause
    return decoded(data, shown(name, 200), what, error)


def decoded(data: bytes, source: str, what: str, error: type[SchedulerError]) -> str:
    """`data` as text, a byte-order mark left out; `source` is how a sentence calls it."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        # What Python pickles begins so, and has no meaning as text.
        pickled = data.startswith(b"\x80")
        hint = " (of torch's memory snapshot `checkpoint-scheduler show` says what it has)"
        raise error(
            f"{source} is not UTF-8 text (byte {cause.start}); a {what} is text in UTF-8"
            f"{hint if pickled else ''}"
        ) from cause


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise what `write_atomically` would, before the work whose result is to be written."""
    name = os.fspath(path)
    try:
        mode = _mode(name)
        if mode is None or stat.S_ISREG(mode):
            descriptor, fresh = _fresh(Path(os.path.realpath(name)), mode)
            os.close(descriptor)
            fresh.unlink()
        elif stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        elif not os.access(name, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, ValueError) as cause:
        raise _unwritten(name, cause) from cause


def write_atomically(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` to `path`, whole or not at all.

    The text goes to a new file in the same directory, which then takes the place of the old one;
    the old one's permissions are kept, and a symbolic link stays a link. A pipe or a device cannot
    be replaced, so it is written to directly. What was there before an error is unchanged.
    """
    name = os.fspath(path)
    try:
        data = text.encode("utf-8")
        mode = _mode(name)
        if mode is not None and not stat.S_ISREG(mode):
            Path(name).write_bytes(data)
        else:
            _replace(Path(os.path.realpath(name)), data, mode)
    except (OSError, ValueError) as cause:
        raise _unwritten(name, cause) from cause


def _unwritten(name: str, cause: OSError | ValueError) -> SchedulerError:
    return SchedulerError(f"cannot write {shown(name, 200)}: {_reason(cause)}")


def _mode(name: str) -> int | None:
    try:
        return Path(name).stat().st_mode
    except FileNotFoundError:
        return None


def _fresh(target: Path, mode: int | None) -> tuple[int, Path]:
    """A new empty file beside `target`, open for writing, and its name."""
    if not target.parent.is_dir():
        raise FileNotFoundError(
            errno.ENOENT, f"there is no directory {str(target.parent)!r}; make it first"
        )
    if mode is not None and not os.access(target, os.W_OK):
        # Replacing needs only the directory's permission and would go over a read-only file.
        raise PermissionError(errno.EACCES, "the file is read-only; choose another name")
    fresh = target.parent / f".{os.urandom(8).hex()}.tmp"
    return os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), fresh


def _replace(target: Path, data: bytes, mode: int | None) -> None:
    descriptor, fresh = _fresh(target, mode)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            fresh.chmod(stat.S_IMODE(mode))
        os.replace(fresh, target)
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise


def _reason(cause: OSError | ValueError) -> str:
    if isinstance(cause, IsADirectoryError):
        return "it is a directory; name a file in it"
    if isinstance(cause, PermissionError) and cause.strerror == os.strerror(cause.errno or 0):
        return "permission denied; choose a place you may write to and read from"
    text = cause.strerror if isinstance(cause, OSError) else None
    text = text or str(cause)
    return text[:1].lower() + text[1:]
