"""Writing without half-written results, hashing, and paths that stay in their directory."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from intaglio import interrupts
from intaglio.errors import BundleError, UsageError, storage_errors


def sha256(path: Path) -> str:
    """SHA-256 of a file's content as 64 hex digits, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def inside(directory: Path, relative: str, what: str) -> Path:
    """The path `relative` names below `directory`.

    Raises `BundleError` when it is absolute, steps up, or leaves the directory through a link; `what` says in
    the message where the path was found.
    """
    pure = PurePosixPath(relative)
    named_inside = relative and not pure.is_absolute() and ".." not in pure.parts and "\\" not in relative
    if not named_inside or "\0" in relative or not (directory / pure).resolve().is_relative_to(directory.resolve()):
        raise BundleError(
            f"{what}: got the path {relative!r}, expected one that stays inside {directory}. "
            "Do not use this bundle; export it anew from a source that you trust."
        )
    return directory / pure


BUNDLE, CHECKPOINT = "bundle.json", "config.json"  # what a directory that --force may replace holds


def check_output_directory(path: Path, force: bool, holds: str = BUNDLE) -> None:
    """Refuse an output path that exists (without `force`) or cannot be made, before any work is done.

    With `force` a directory is replaced that holds the file `holds`, so that nothing else is deleted by mistake.
    """
    if not path.absolute().parent.is_dir():
        raise UsageError(f"output {path}: its parent {path.absolute().parent} is not a directory. Create it first.")
    if any((parent / BUNDLE).exists() for parent in path.absolute().parents):
        raise UsageError(f"output {path}: lies inside another bundle. Choose a path beside it.")
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise UsageError(f"output {path}: exists and is not a directory. Choose another path.")
    if path.is_dir() and any(path.iterdir()):
        if not force:
            raise UsageError(f"output {path}: the directory exists. Add --force to replace it, or choose another path.")
        if not (path / holds).is_file():
            kind = "bundles" if holds == BUNDLE else "checkpoints"
            raise UsageError(
                f"output {path}: --force replaces {kind} only, and this directory holds no {holds}. "
                "Choose another path."
            )
    with temporary_directory(path.absolute().parent, f".{path.name[:100]}."):
        pass  # a place that cannot be written to says so now


def check_output_file(path: Path, force: bool, option: str) -> None:
    """Refuse a file that exists (without `force`) or cannot be made, before any work is done.

    `option` is what the user named it by.
    """
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{option} {path}: its folder {path.absolute().parent} is not there. Create it first.")
    if path.is_dir() or (path.exists() and not path.is_file()):
        raise UsageError(f"{option} {path}: exists already and is not a file. Choose another path.")
    if path.exists() and not force:
        raise UsageError(f"{option} {path}: exists already. Add --force to replace it, or choose another path.")
    with temporary_directory(path.absolute().parent, f".{path.name[:100]}."):
        pass  # a place that cannot be written to says so now


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep other processes that lock `directory` waiting while the block runs; nothing is written for it."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def atomic_directory(target: Path, force: bool = False, holds: str = BUNDLE) -> Iterator[Path]:
    """Yield a temporary sibling of `target` to fill; on success rename it into place, else remove it.

    An interrupt, a full disk or any other exception leaves what stood at `target` as it was. `force` and `holds` are
    those of `check_output_directory`.
    """
    check_output_directory(target, force, holds)
    target = target.absolute()
    with temporary_directory(target.parent, f".{target.name[:100]}.") as temporary, storage_errors(target):
        temporary.chmod(0o755)
        yield temporary
        _sync(temporary)
        interrupts.check()
        with interrupts.uninterrupted():
            _swap(temporary, target)


@contextmanager
def temporary_directory(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield a new directory in `parent` that is removed at the end, if it is still there, whatever happens."""
    directory = None
    try:
        with storage_errors(parent), interrupts.uninterrupted():
            directory = Path(tempfile.mkdtemp(prefix=prefix, suffix=".tmp", dir=parent))
        yield directory
    finally:
        with interrupts.uninterrupted():
            if directory is not None:
                shutil.rmtree(directory, ignore_errors=True)


def _sync(directory: Path) -> None:
    """Make the disk hold every file before the rename makes them visible; reports a full disk in time."""
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _swap(temporary: Path, target: Path) -> None:
    """Put `temporary` at `target`; what stood there is kept aside until the new directory is in place."""
    if not target.exists():
        temporary.rename(target)
        return
    aside = temporary.with_suffix(".old")
    target.rename(aside)
    try:
        temporary.rename(target)
    except BaseException:
        aside.rename(target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def atomic_write(path: Path, data: bytes) -> None:
    """Replace the file at `path` by `data` in one step; on failure the old content stands."""
    with storage_errors(path), tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
        temporary = Path(file.name)
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            temporary.chmod(0o644)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/intaglio`, by default `~/.cache/intaglio`: what it holds can be made again. It may not exist."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification: a relative path is to be ignored.
    cache = Path(home) if Path(home).is_absolute() else Path.home() / ".cache"
    return cache / "intaglio"


def read_text(path: Path, what: str) -> str:
    """The UTF-8 text of the user's file `path`; `what` names it in the error, such as "--input"."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} {path}: not UTF-8 text (byte {error.start}). Convert it first.") from error
    except OSError as error:
        raise UsageError(f"{what} {path}: {error.strerror}. Give the path of a readable text file.") from error


def copy_file(source: Path, target: Path) -> None:
    """Copy a file's content to `target`, making its folder."""
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
