"""The exceptions of the project, drawn as a tree.

    IntaglioError
    ├── UsageError          an invalid option or argument
    │   └── ContextLengthError  a prompt or text of more tokens than the model takes
    ├── SourceError         a checkpoint that cannot be exported
    ├── BundleError         a bundle that is missing, damaged, or from a newer version
    ├── StorageError        a file cannot be written: disk full, read-only, no permission
    ├── GraphError          a graph or a recipe that a pass does not support
    ├── EngineError         an engine that does not open or run, or inputs that do not fit it
    ├── BuildError          a graph that an engine builder rejected
    ├── BusyError           a scheduler whose queue is full
    ├── WorkerError         a worker of an executor that died, or differs from this process
    └── MissingExtraError   a library of an optional extra is not installed

Each message is one line: what, got, expected, fix. The command line prints it and exits with 2.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class IntaglioError(Exception):
    """Any error that the user can fix. The message is one line: what, got, expected, fix."""


class UsageError(IntaglioError):
    """An invalid option or argument."""

    param: str | None = None  # the field of a request that is at fault, if that is known


class ContextLengthError(UsageError):
    """A prompt or text of more tokens than the model takes."""


class SourceError(IntaglioError):
    """A checkpoint that cannot be exported."""


class BundleError(IntaglioError):
    """A bundle that is missing, damaged, or written by a newer version."""


class StorageError(IntaglioError):
    """A file cannot be written: no space, no permission, read-only."""

    path: Path | None = None


class GraphError(IntaglioError):
    """A graph or a recipe that a pass does not support."""


class EngineError(IntaglioError):
    """An engine that does not open or run, or inputs that do not fit it."""


class BuildError(IntaglioError):
    """A graph that an engine builder rejected."""


class BusyError(IntaglioError):
    """A scheduler whose queue is full: try again later."""


class WorkerError(IntaglioError):
    """A worker of an executor that died, or whose versions or processor differ from those of this process."""


class MissingExtraError(IntaglioError):
    """A library of an optional extra is not installed."""


def one_line(error: BaseException, limit: int | None = None) -> str:
    """The message of a library's exception on one line, truncated to `limit` characters."""
    return " ".join(str(error).split())[:limit]


FULL = {
    errno.ENOSPC: "Free some space, or choose another disk.",
    errno.EDQUOT: "Your quota is used up: free some space, or choose another disk.",
    errno.EFBIG: "The file is larger than this disk, or your account, allows: choose another disk.",
}
FIXES = {
    **FULL,
    errno.EROFS: "Choose a writable directory.",
    errno.EACCES: "Choose a directory that you may write to.",
    errno.EPERM: "Choose a directory that you may write to.",
}
NOT_OF_A_DISK = (AssertionError, AttributeError, ImportError, LookupError, MemoryError, NameError, TypeError)
NEARLY_FULL = 1 << 16  # free bytes, below which a failed write is due to them


@contextmanager
def storage_errors(path: Path, partial: Path | None = None) -> Iterator[None]:
    """Convert errors while writing `path` into a `StorageError` that says how to fix it, a library's own errors too.

    `partial`: the directory of the partial output, which is removed afterwards.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, StorageError):
            if partial is None or error.path is None or not error.path.is_relative_to(partial):
                raise
            assert isinstance(error.__cause__, Exception)
            error = error.__cause__  # reported for `path`, as users do not know temporary names
        number = _storage_errno(error, path, partial)
        if number is None:
            raise
        room = ""
        if number == errno.ENOSPC:
            free, written = _free(path), 0
            if partial is not None:
                written = sum(file.lstat().st_size for file in partial.rglob("*") if file.is_file())
            disk = _directory(path) if partial is None else partial.parent
            room = f"; needs more than {written + free} bytes, {disk} has {written + free} bytes free"
        refused = StorageError(
            f"cannot write {path}: {os.strerror(number)}{room}. Nothing was left behind. {FIXES[number]}"
        )
        refused.path = path
        raise refused from error


def full_errno(error: BaseException) -> int | None:
    """The error number if `error`, or one that it was raised from, says that a disk is full; else None.

    Libraries raise exceptions of their own with the system's text, such as "No space left on device (os error 28)".
    """
    cause: BaseException | None = error
    while cause is not None:
        for number in FULL:
            if getattr(cause, "errno", None) == number or os.strerror(number) in str(cause):
                return number
        cause = cause.__cause__ or cause.__context__
    return None


def _storage_errno(error: Exception, path: Path, partial: Path | None) -> int | None:
    """The number of the file system's error behind `error`, a key of `FIXES`; None if it is another error."""
    if (number := full_errno(error)) is not None:
        return number
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno if error.errno in FIXES and _is_of(error, path, partial) else None
    # NumPy, torch and ONNX Runtime only say that writing failed.
    failed: BaseException | None = error
    while isinstance(failed, IntaglioError):
        failed = failed.__cause__
    unclear = failed is not None and not isinstance(failed, NOT_OF_A_DISK)
    return errno.ENOSPC if unclear and _free(path) < NEARLY_FULL else None


def _is_of(error: OSError, path: Path, partial: Path | None) -> bool:
    """Whether the error is about `path`, its folder, or a file that is written; not about a file that is read."""
    if not isinstance(error.filename, str | Path):
        return True
    named, target = Path(error.filename).absolute(), path.absolute()
    written = [target] if partial is None else [partial.absolute(), target]
    if written[0].parent == target:  # the folder of a temporary directory has other files too
        written = written[:1]
    return target.is_relative_to(named) or any(named.is_relative_to(each) for each in written)


def _directory(path: Path) -> Path:
    return next(each for each in (path, *path.absolute().parents) if each.is_dir())


def _free(path: Path) -> int:
    """The bytes that a user may still write to the disk of `path`."""
    return shutil.disk_usage(_directory(path)).free
