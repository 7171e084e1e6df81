"""The exceptions of the project, drawn as a tree.

    IntaglioError
    ├── UsageError          an invalid option or argument
    ├── SourceError         a checkpoint that cannot be exported
    ├── BundleError         a bundle that is missing, damaged, or from a newer version
    ├── StorageError        a file cannot be written: disk full, read-only, no permission
    ├── GraphError          a graph or a recipe that a pass does not support
    ├── EngineError         an engine that does not open or run, or inputs that do not fit it
    ├── BuildError          a graph that an engine builder rejected
    ├── BusyError           a scheduler whose queue is full
    └── MissingExtraError   a library of an optional extra is not installed

Each message is one line: what, got, expected, fix. The command line prints it and exits with 2.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class IntaglioError(Exception):
    """Any error that the user can fix. The message is one line: what, got, expected, fix."""


class UsageError(IntaglioError):
    """An invalid option or argument."""


class SourceError(IntaglioError):
    """A checkpoint that cannot be exported."""


class BundleError(IntaglioError):
    """A bundle that is missing, damaged, or written by a newer version."""


class StorageError(IntaglioError):
    """A file cannot be written: no space, no permission, read-only."""


class GraphError(IntaglioError):
    """A graph or a recipe that a pass does not support."""


class EngineError(IntaglioError):
    """An engine that does not open or run, or inputs that do not fit it."""


class BuildError(IntaglioError):
    """A graph that an engine builder rejected."""


class BusyError(IntaglioError):
    """A scheduler whose queue is full: try again later."""


class MissingExtraError(IntaglioError):
    """A library of an optional extra is not installed."""


def one_line(error: BaseException, limit: int | None = None) -> str:
    """The message of a library's exception on one line, truncated to `limit` characters."""
    return " ".join(str(error).split())[:limit]


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Convert errors of the file system while writing `path` into a `StorageError` that says how to fix it."""
    try:
        yield
    except OSError as error:
        fix = {
            errno.ENOSPC: "Free some space, or choose another disk.",
            errno.EDQUOT: "Your quota is used up: free some space, or choose another disk.",
            errno.EFBIG: "The file is larger than this disk, or your account, allows: choose another disk.",
            errno.EROFS: "Choose a writable directory.",
            errno.EACCES: "Choose a directory that you may write to.",
            errno.EPERM: "Choose a directory that you may write to.",
        }.get(error.errno or 0)
        if fix is None:
            raise
        raise StorageError(f"cannot write {path}: {error.strerror}. Nothing was left behind. {fix}") from error
