"""The exceptions of the project, drawn as a tree.

    IntaglioError
    ├── UsageError          an option or argument that makes no sense
    ├── SourceError         a checkpoint that cannot be exported
    ├── BundleError         a bundle that is missing, damaged, or from a newer version
    ├── StorageError        the disk said no: full, read-only, no permission
    ├── GraphError          a graph or a recipe that a pass cannot take
    ├── EngineError         an engine that does not open, or inputs it does not take
    ├── BuildError          what an engine builder refused
    ├── BusyError           a scheduler whose queue is full
    └── MissingExtraError   a library of an optional extra is not installed

Each message is one line that says what, got, expected, mend. The command line prints it and exits with 2.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class IntaglioError(Exception):
    """Whatever the user can mend. The message is one line: what, got, expected, mend."""


class UsageError(IntaglioError):
    """An option or an argument that makes no sense."""


class SourceError(IntaglioError):
    """A checkpoint that cannot be exported."""


class BundleError(IntaglioError):
    """A bundle that is missing, damaged, or written by a newer version."""


class StorageError(IntaglioError):
    """The file system refused: no space, no permission, read-only."""


class GraphError(IntaglioError):
    """A graph or a recipe that a pass cannot take."""


class EngineError(IntaglioError):
    """An engine that does not open, or inputs it does not take."""


class BuildError(IntaglioError):
    """What an engine builder refused."""


class BusyError(IntaglioError):
    """A scheduler whose queue is full: try again later."""


class MissingExtraError(IntaglioError):
    """A library of an optional extra is not installed."""


def one_line(error: BaseException, limit: int | None = None) -> str:
    """The message of a library's exception on one line, cut to `limit` characters."""
    return " ".join(str(error).split())[:limit]


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn the file system's refusals while writing `path` into a `StorageError` with the way to mend it."""
    try:
        yield
    except OSError as error:
        mend = {
            errno.ENOSPC: "Free some space, or choose another disk.",
            errno.EDQUOT: "Your quota is used up: free some space, or choose another disk.",
            errno.EFBIG: "It is larger than this disk, or this account, allows for one file: choose another disk.",
            errno.EROFS: "Choose a directory that can be written to.",
            errno.EACCES: "Choose a directory that you may write to.",
            errno.EPERM: "Choose a directory that you may write to.",
        }.get(error.errno or 0)
        if mend is None:
            raise
        raise StorageError(f"cannot write {path}: {error.strerror}. Nothing was left behind. {mend}") from error
