"""Hashes and copies of files, the cache directory, and paths that stay inside their directory."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path, PurePosixPath

from intaglio.errors import BundleError, storage_errors


def sha256(path: Path) -> str:
    """SHA-256 of a file's content as 64 hex digits, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


DISTRUST = "Do not use this bundle; export it again from a source that you trust."


def inside(directory: Path, relative: str, what: str, fix: str = DISTRUST) -> Path:
    """The path `relative` below `directory`.

    Raises `BundleError` if it is absolute or contains ".."; `what` names the origin of the path in the message, `fix`
    what to do. The file may be a link to another place, as in the hub's cache: the name comes from the bundle, the link
    from the user.
    """
    pure = PurePosixPath(relative)
    if not relative or pure.is_absolute() or ".." in pure.parts or "\\" in relative or "\0" in relative:
        raise BundleError(f"{what}: got the path {relative!r}, expected one that stays inside {directory}. {fix}")
    return directory / pure


def inside_to_write(directory: Path, relative: str, what: str) -> Path:
    """`inside`, for a file that is going to be written: its folder must not be a link out of `directory` either."""
    path = inside(directory, relative, what)
    if not path.parent.resolve().is_relative_to(directory.resolve()):
        raise BundleError(
            f"{what}: {relative!r} would be written to {path.parent.resolve()}, expected a folder inside {directory}. "
            "Replace the link by a folder."
        )
    return path


def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/intaglio`, by default `~/.cache/intaglio`: its content can be re-created. It may not exist."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification: ignore relative paths.
    return (Path(cache) if Path(cache).is_absolute() else _home() / ".cache") / "intaglio"


def _home() -> Path:
    """The user's home directory; a nonexistent one for a user without any, as in some containers."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/nonexistent")  # Debian's name for it


def copy_file(source: Path, target: Path) -> None:
    """Copy a file's content to `target`, creating its folder."""
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
