"""Atomic output: a path is checked before the work, written to a temporary sibling, and renamed at the end."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from intaglio import interrupts
from intaglio.errors import UsageError, storage_errors
from intaglio.processes.temporary import sibling_directory, taken

# Files that mark a directory as replaceable by --force, and the word for it.
BUNDLE, CHECKPOINT, REPOSITORY, TENSORRT = "bundle.json", "config.json", "repository.json", "tensorrt.json"
KINDS = {
    BUNDLE: "bundles", CHECKPOINT: "checkpoints", REPOSITORY: "model repositories", TENSORRT: "folders for TensorRT",
}  # fmt: skip


def check_output_directory(path: Path, force: bool, holds: str = BUNDLE) -> None:
    """Reject an output path that exists (without `force`) or cannot be created, before any work is done.

    `force` only replaces a directory that contains the file `holds`, so that nothing else is deleted by mistake.
    """
    restore(path)
    if not path.absolute().parent.is_dir():
        raise UsageError(f"output {path}: its parent {path.absolute().parent} is not a directory. Create it first.")
    if any((parent / BUNDLE).exists() for parent in path.absolute().parents):
        raise UsageError(f"output {path}: is inside another bundle. Choose a path outside it.")
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise UsageError(f"output {path}: exists and is not a directory. Choose another path.")
    if path.is_dir() and any(path.iterdir()):
        if not force:
            raise UsageError(f"output {path}: the directory exists. Add --force to replace it, or choose another path.")
        if not (path / holds).is_file():
            raise UsageError(
                f"output {path}: --force replaces {KINDS[holds]} only, and this directory has no {holds}. "
                "Choose another path."
            )
    with sibling_directory(path):
        pass  # fail now if the directory is not writable


def check_output_file(path: Path, force: bool, option: str) -> None:
    """Reject a file that exists (without `force`) or cannot be created, before any work is done.

    `option` is the option that named it.
    """
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{option} {path}: its folder {path.absolute().parent} does not exist. Create it first.")
    if path.is_dir() or (path.exists() and not path.is_file()):
        raise UsageError(f"{option} {path}: exists already and is not a file. Choose another path.")
    if path.exists() and not force:
        raise UsageError(f"{option} {path}: exists already. Add --force to replace it, or choose another path.")
    with sibling_directory(path):
        pass  # fail now if the directory is not writable


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold a lock on `directory` while the block runs; other processes that lock it wait. Writes no file."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def atomic_directory(target: Path, force: bool = False, holds: str = BUNDLE) -> Iterator[Path]:
    """Yield a temporary sibling of `target` to fill; on success rename it atomically to `target`, else remove it.

    An interrupt, a full disk or any other exception leaves `target` unchanged. For `force` and `holds` see
    `check_output_directory`.
    """
    check_output_directory(target, force, holds)
    target = target.absolute()
    with sibling_directory(target) as temporary, storage_errors(target, temporary):
        temporary.chmod(0o755)
        yield temporary
        for path in temporary.rglob("*"):
            if path.is_file():
                _sync(path)
        interrupts.check()
        with interrupts.uninterrupted():
            _put(temporary, target)


@contextmanager
def atomic_update(target: Path) -> Iterator[Path]:
    """Yield a temporary sibling of the directory `target` to fill; on success move what is in it into `target`.

    A folder that `target` does not have appears whole, then files are replaced, those of `target` itself last. Others
    do not change. An interrupt, a full disk or any other exception leaves `target` unchanged; a process that is
    killed while the paths are moved leaves some of them.
    """
    target = target.absolute()
    with sibling_directory(target) as temporary, storage_errors(target, temporary):
        yield temporary
        for path in temporary.rglob("*"):
            if path.is_file():
                _sync(path)
        moved = sorted(_new_paths(temporary, target), key=lambda path: (path.is_file(), -len(path.parts), path))
        interrupts.check()
        with interrupts.uninterrupted():
            _move(temporary, target, [path.relative_to(temporary) for path in moved])


def _new_paths(temporary: Path, target: Path) -> Iterator[Path]:
    """The files below `temporary`, and the folders in place of theirs that `target` does not have."""
    for path in temporary.iterdir():
        if path.is_dir() and (target / path.name).is_dir():
            yield from _new_paths(path, target / path.name)
        else:
            yield path


def _move(temporary: Path, target: Path, paths: Sequence[Path]) -> None:
    """Move `paths` from one directory to the other; a failure takes all of them back."""
    old = {path: (target / path).read_bytes() for path in paths if (target / path).is_file()}
    done: list[Path] = []
    try:
        for path in paths:
            (temporary / path).replace(target / path)
            done.append(path)
    except BaseException:
        for path in reversed(done):
            (target / path).replace(temporary / path)
            if path in old:
                (temporary / path).write_bytes(old[path])
                (temporary / path).replace(target / path)
        raise


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a path to write; the file then atomically replaces the one at `path`. On failure the old file stays."""
    with sibling_directory(path) as folder, storage_errors(path, folder):
        temporary = folder / "file"
        yield temporary
        _sync(temporary)
        temporary.chmod(0o644)
        temporary.replace(path)


def atomic_write(path: Path, data: bytes) -> None:
    """Replace the file at `path` by `data` atomically; on failure the old content stays."""
    with atomic_file(path) as temporary:
        temporary.write_bytes(data)


def _sync(path: Path) -> None:
    """Flush a file to disk before a rename makes it visible; a full disk is reported here."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _put(temporary: Path, target: Path) -> None:
    """Move `temporary` to `target`; the previous content is removed afterwards."""
    if not target.exists():
        temporary.rename(target)
    elif not _exchange(temporary, target):
        # A process killed between these two renames leaves nothing at `target`. `restore` puts the old directory back;
        # it must not be removed as a dead process's temporary directory before that.
        aside = _aside(target)
        with locked(target):
            target.rename(aside)
            try:
                temporary.rename(target)
            except BaseException:
                aside.rename(target)
                raise
            shutil.rmtree(aside, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two paths atomically; False if the kernel or the file system does not support it."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0:
        return True
    if ctypes.get_errno() in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM):
        return False
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(other))


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.intaglio-replaced")


def restore(target: Path) -> None:
    """Restore `target` after a process died while replacing it, on a file system without atomic exchange."""
    target = target.absolute()
    if not target.name:  # the root directory
        return
    aside = _aside(target)
    with suppress(OSError), taken(aside) as dead:
        if dead and not target.exists():
            aside.rename(target)
        elif dead:
            shutil.rmtree(aside, ignore_errors=True)
