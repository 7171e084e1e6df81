"""Temporary directories that are removed at the end, also after a process was killed."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from intaglio import interrupts
from intaglio.errors import storage_errors

# A process that uses a temporary directory holds a lock on it, which the kernel releases when the process ends in any
# way. So an unlocked one belongs to a process that was killed, and the next process that works there removes it.

SUFFIX = ".intaglio-tmp"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW  # a directory, and no link to one
_OURS = re.compile(rf"[.a-z].*[a-z0-9_]{{8}}{re.escape(SUFFIX)}", re.DOTALL)  # names as `tempfile.mkdtemp` creates them
_swept: set[Path] = set()  # directories that this process has already cleaned up


@contextmanager
def temporary_directory(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield a new directory in `parent` that is always removed at the end, if it still exists.

    If the process is killed, the next one that creates a temporary directory in `parent` removes it.
    """
    made: tuple[Path, int] | None = None
    _sweep(parent)
    try:
        with storage_errors(parent), interrupts.uninterrupted():
            while made is None:  # another process may remove it before it is locked
                made = _made(Path(tempfile.mkdtemp(prefix=prefix, suffix=SUFFIX, dir=parent)))
        with storage_errors(parent, made[0]):
            yield made[0]
    finally:
        with interrupts.uninterrupted():
            if made is not None:
                shutil.rmtree(made[0], ignore_errors=True)
                os.close(made[1])


def sibling_directory(path: Path) -> AbstractContextManager[Path]:
    """A `temporary_directory` next to `path`, for files to be renamed to it."""
    return temporary_directory(path.absolute().parent, f".{path.name[:40]}.")


def scratch_directory(purpose: str) -> AbstractContextManager[Path]:
    """A `temporary_directory` in the system's temporary folder, named intaglio-`purpose`-*."""
    return temporary_directory(Path(tempfile.gettempdir()), f"intaglio-{purpose}-")


def _made(directory: Path) -> tuple[Path, int] | None:
    """Create a directory; return it with the descriptor that holds its lock, or None if another process took it."""
    try:
        descriptor = os.open(directory, _DIRECTORY)
    except FileNotFoundError:
        return None
    if _locked(descriptor) is not False and _is(directory, descriptor):
        return directory, descriptor
    os.close(descriptor)
    return None


def _sweep(parent: Path) -> None:
    """Remove the temporary directories in `parent` left by dead processes, once per process."""
    parent = parent.absolute()
    if parent in _swept:
        return
    _swept.add(parent)
    with suppress(OSError), os.scandir(parent) as entries:
        names = [entry.name for entry in entries if _OURS.fullmatch(entry.name)]
        for name in names:
            with taken(parent / name) as dead:
                if dead:
                    shutil.rmtree(parent / name, ignore_errors=True)


@contextmanager
def taken(directory: Path) -> Iterator[bool]:
    """Hold the lock of a directory of this user; False if its owner is alive, or that cannot be determined."""
    try:
        descriptor = os.open(directory, _DIRECTORY)
    except (OSError, ValueError):  # ValueError: not a valid file name
        yield False
        return
    try:
        owned = os.fstat(descriptor).st_uid == os.getuid()
        yield owned and _locked(descriptor) is True and _is(directory, descriptor)
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool | None:
    """Try to lock without waiting; return whether that worked, or None if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is(directory: Path, descriptor: int) -> bool:
    """Whether the path still refers to the open directory."""
    try:
        return os.path.samestat(os.lstat(directory), os.fstat(descriptor))
    except OSError:
        return False
